#include "runtime/device/device_memory.hpp"

#include <fmt/format.h>

namespace troupe::runtime {

DeviceMemory::PhaseGuard& DeviceMemory::PhaseGuard::operator=(PhaseGuard&& other) noexcept {
  if (this != &other) {
    end();
    memory_ = std::exchange(other.memory_, nullptr);
  }
  return *this;
}

void DeviceMemory::PhaseGuard::end() {
  if (memory_ != nullptr) std::exchange(memory_, nullptr)->leave();
}

result<void> DeviceMemory::add(MemoryEntry entry, MemoryActions actions) {
  const std::scoped_lock lock(mutex_);
  const MemoryKey key = entry.key;
  TROUPE_TRY_VOID(ledger_.add(std::move(entry)));
  actions_[key] = std::move(actions);
  return {};
}

result<void> DeviceMemory::remove(const MemoryKey& key) {
  const std::scoped_lock lock(mutex_);
  TROUPE_TRY_VOID(ledger_.remove(key));
  actions_.erase(key);
  return {};
}

result<void> DeviceMemory::resize(const MemoryKey& key, Bytes bytes) {
  const std::scoped_lock lock(mutex_);
  return ledger_.resize(key, bytes);
}

result<DeviceMemory::PhaseGuard> DeviceMemory::begin(const Phase& phase) {
  std::vector<MemoryMove> moves;
  {
    const std::scoped_lock lock(mutex_);
    TROUPE_TRY(moves, ledger_.plan(phase));
  }
  for (const auto& move : moves) {
    MemoryActions actions;
    {
      const std::scoped_lock lock(mutex_);
      actions = actions_[move.key];
    }
    const auto& action = move.kind == MoveKind::kLoad      ? actions.load
                         : move.kind == MoveKind::kOffload ? actions.offload
                                                           : actions.drop;
    if (action) {
      if (auto done = action(); !done) {
        const ErrorCode code = done.error().code;
        return fail(std::move(done).error().wrap(
            code, fmt::format("device {}: phase {}: cannot {} {} ({})", ledger_.device().value,
                              phase.name,
                              move.kind == MoveKind::kLoad      ? "load"
                              : move.kind == MoveKind::kOffload ? "offload"
                                                                : "drop",
                              move.key.to_string(), to_string(move.bytes))));
      }
    }
    const std::scoped_lock lock(mutex_);
    TROUPE_TRY_VOID(ledger_.apply(move));
  }
  const std::scoped_lock lock(mutex_);
  TROUPE_TRY_VOID(ledger_.enter(phase));
  return PhaseGuard(this);
}

result<Bytes> DeviceMemory::room_in(const Phase& phase) const {
  const std::scoped_lock lock(mutex_);
  return ledger_.room_in(phase);
}

MemoryLedger DeviceMemory::snapshot() const {
  const std::scoped_lock lock(mutex_);
  return ledger_;
}

void DeviceMemory::leave() {
  const std::scoped_lock lock(mutex_);
  ledger_.leave();
}

result<DevicePhase> begin_phase(Device& device, const Phase& phase, const std::string& owner,
                                Deadline deadline) {
  TROUPE_TRY(auto turn, device.lane.acquire({.phase = phase.name, .owner = owner}, deadline));
  TROUPE_TRY(auto memory, device.memory.begin(phase));
  return DevicePhase{std::move(turn), std::move(memory)};
}

}  // namespace troupe::runtime

#include "actors/roles/colocated_gate.hpp"

#include <optional>

namespace troupe::actors {

/// The lane's turn, and once it has come the phase of the ledger. Memory ends before the turn.
class RoleGate::MemoryTurn final : public runtime::LaneGate::Turn {
 public:
  MemoryTurn(std::unique_ptr<runtime::LaneGate::Turn> turn, runtime::DeviceMemory& memory,
             const runtime::Phase* phase)
      : turn_(std::move(turn)), memory_(memory), phase_(phase) {}

  result<void> wait(Deadline deadline) override {
    TROUPE_TRY_VOID(turn_->wait(deadline));
    if (phase_ == nullptr) return {};
    TROUPE_TRY(guard_, memory_.begin(*phase_));
    return {};
  }

 private:
  std::unique_ptr<runtime::LaneGate::Turn> turn_;
  runtime::DeviceMemory& memory_;
  const runtime::Phase* phase_;
  std::optional<runtime::DeviceMemory::PhaseGuard> guard_;  // destroyed first
};

void RoleGate::declare(const std::string& phase, std::vector<std::string> resident, Bytes scratch) {
  runtime::Phase needs{.name = role_ + "/" + phase, .resident = {}, .scratch = scratch};
  for (std::string& what : resident) needs.resident.push_back({role_, std::move(what)});
  phases_[phase] = std::move(needs);
}

result<std::unique_ptr<runtime::LaneGate::Turn>> RoleGate::reserve(
    const runtime::LaneRequest& request) {
  TROUPE_TRY(auto turn, device_.lane().reserve(request));
  const auto found = phases_.find(request.phase);
  const runtime::Phase* phase = found == phases_.end() ? nullptr : &found->second;
  return std::make_unique<MemoryTurn>(std::move(turn), device_.memory(), phase);
}

}  // namespace troupe::actors

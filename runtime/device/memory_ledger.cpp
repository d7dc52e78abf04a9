#include "runtime/device/memory_ledger.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

namespace troupe::runtime {
namespace {

std::string_view residency_name(Residency residency) {
  switch (residency) {
    case Residency::kResident:
      return "resident";
    case Residency::kOffloaded:
      return "offloaded";
    case Residency::kDropped:
      return "dropped";
  }
  return "?";
}

std::string_view eviction_name(Eviction eviction) {
  switch (eviction) {
    case Eviction::kNever:
      return "stays";
    case Eviction::kOffload:
      return "can be offloaded";
    case Eviction::kDrop:
      return "can be dropped";
  }
  return "?";
}

std::string_view move_name(MoveKind kind) {
  switch (kind) {
    case MoveKind::kLoad:
      return "load";
    case MoveKind::kOffload:
      return "offload";
    case MoveKind::kDrop:
      return "drop";
  }
  return "?";
}

/// Sums of hostile sizes must not wrap: beyond this, everything is "too much" alike.
Bytes plus(Bytes a, Bytes b) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return a.value > kMost - b.value ? Bytes{kMost} : a + b;
}

MemoryEntry* find_entry(std::vector<MemoryEntry>& entries, const MemoryKey& key) {
  const auto at =
      std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.key == key; });
  return at == entries.end() ? nullptr : &*at;
}

}  // namespace

MemoryLedger::MemoryLedger(DeviceId device, Bytes capacity) : device_(device), capacity_(capacity) {
  // Half of the range, so that a saturated sum is above every capacity.
  TROUPE_CHECK(capacity.value >= 0 && capacity.value <= std::int64_t{1} << 62,
               "device {}: capacity of {} bytes", device.value, capacity.value);
}

Bytes MemoryLedger::used() const {
  Bytes total = phase_ ? phase_->scratch : Bytes{0};
  for (const auto& entry : entries_) {
    if (entry.residency == Residency::kResident) total = plus(total, entry.bytes);
  }
  return total;
}

const MemoryEntry* MemoryLedger::find(const MemoryKey& key) const {
  const auto at =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return e.key == key; });
  return at == entries_.end() ? nullptr : &*at;
}

std::string MemoryLedger::table() const {
  std::vector<const MemoryEntry*> ordered;
  for (const auto& entry : entries_) ordered.push_back(&entry);
  std::stable_sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) {
    const bool a_here = a->residency == Residency::kResident;
    const bool b_here = b->residency == Residency::kResident;
    return a_here != b_here ? a_here : a->bytes > b->bytes;
  });
  std::string text = fmt::format("device {}: {} of {} used", device_.value, to_string(used()),
                                 to_string(capacity_));
  for (const auto* entry : ordered) {
    text += fmt::format("\n  {:>12}  {} ({}, {})", to_string(entry->bytes), entry->key.to_string(),
                        residency_name(entry->residency), eviction_name(entry->eviction));
  }
  if (phase_) {
    text +=
        fmt::format("\n  {:>12}  scratch of phase {}", to_string(phase_->scratch), phase_->name);
  }
  return text;
}

result<void> MemoryLedger::add(MemoryEntry entry) {
  if (entry.bytes.value < 0) {
    return fail(ErrorCode::kInvalidArgument, "device {}: {}: {} bytes", device_.value,
                entry.key.to_string(), entry.bytes.value);
  }
  if (find(entry.key) != nullptr) {
    return fail(ErrorCode::kAlreadyExists, "device {}: {} is already in the ledger", device_.value,
                entry.key.to_string());
  }
  if (entry.residency == Residency::kResident && plus(used(), entry.bytes) > capacity_) {
    return fail(ErrorCode::kResourceExhausted, "{} of {} does not fit; {}", to_string(entry.bytes),
                entry.key.to_string(), table());
  }
  entry.last_needed = phase_count_;
  entries_.push_back(std::move(entry));
  return {};
}

result<void> MemoryLedger::remove(const MemoryKey& key) {
  if (std::erase_if(entries_, [&](const auto& entry) { return entry.key == key; }) == 0) {
    return fail(ErrorCode::kNotFound, "device {}: no entry {}", device_.value, key.to_string());
  }
  return {};
}

result<void> MemoryLedger::resize(const MemoryKey& key, Bytes bytes) {
  MemoryEntry* entry = find_entry(entries_, key);
  if (entry == nullptr) {
    return fail(ErrorCode::kNotFound, "device {}: no entry {}", device_.value, key.to_string());
  }
  if (bytes.value < 0) {
    return fail(ErrorCode::kInvalidArgument, "device {}: {}: {} bytes", device_.value,
                key.to_string(), bytes.value);
  }
  if (entry->residency == Residency::kResident && plus(used() - entry->bytes, bytes) > capacity_) {
    return fail(ErrorCode::kResourceExhausted, "{} cannot grow from {} to {}; {}", key.to_string(),
                to_string(entry->bytes), to_string(bytes), table());
  }
  entry->bytes = bytes;
  return {};
}

result<std::vector<MemoryMove>> MemoryLedger::plan(const Phase& phase) const {
  if (phase_) {
    return fail(ErrorCode::kConflict, "device {}: phase {} asked for during phase {}",
                device_.value, phase.name, phase_->name);
  }
  if (phase.scratch.value < 0) {
    return fail(ErrorCode::kInvalidArgument, "device {}: phase {}: scratch of {} bytes",
                device_.value, phase.name, phase.scratch.value);
  }
  const std::set<MemoryKey> needed(phase.resident.begin(), phase.resident.end());
  Bytes wanted = phase.scratch;
  std::vector<MemoryMove> loads;
  for (const auto& key : needed) {
    const MemoryEntry* entry = find(key);
    if (entry == nullptr) {
      return fail(ErrorCode::kNotFound, "device {}: phase {} needs {}, which is not in the ledger",
                  device_.value, phase.name, key.to_string());
    }
    wanted = plus(wanted, entry->bytes);
  }
  std::vector<const MemoryEntry*> evictable;
  Bytes others{0};
  for (const auto& entry : entries_) {
    if (needed.contains(entry.key)) {
      if (entry.residency != Residency::kResident) {
        loads.push_back({MoveKind::kLoad, entry.key, entry.bytes});
      }
    } else if (entry.residency == Residency::kResident) {
      others = plus(others, entry.bytes);
      if (entry.eviction != Eviction::kNever) evictable.push_back(&entry);
    }
  }
  std::stable_sort(evictable.begin(), evictable.end(), [](const auto* a, const auto* b) {
    if (a->eviction != b->eviction) return a->eviction == Eviction::kDrop;
    return a->last_needed < b->last_needed;
  });
  std::vector<MemoryMove> moves;
  for (const auto* entry : evictable) {
    if (plus(wanted, others) <= capacity_) break;
    if (entry->bytes.value == 0) continue;
    others -= entry->bytes;
    moves.push_back({entry->eviction == Eviction::kDrop ? MoveKind::kDrop : MoveKind::kOffload,
                     entry->key, entry->bytes});
  }
  if (plus(wanted, others) > capacity_) {
    return fail(ErrorCode::kResourceExhausted,
                "phase {} cannot start: it needs {} (of it {} scratch) beside {} that stays; {}",
                phase.name, to_string(wanted), to_string(phase.scratch), to_string(others),
                table());
  }
  moves.insert(moves.end(), loads.begin(), loads.end());
  return moves;
}

result<void> MemoryLedger::apply(const MemoryMove& move) {
  MemoryEntry* entry = find_entry(entries_, move.key);
  if (entry == nullptr) {
    return fail(ErrorCode::kNotFound, "device {}: {} {}: no such entry", device_.value,
                move_name(move.kind), move.key.to_string());
  }
  const bool here = entry->residency == Residency::kResident;
  if (here == (move.kind == MoveKind::kLoad)) {
    return fail(ErrorCode::kConflict, "device {}: {} {}: it is {}", device_.value,
                move_name(move.kind), move.key.to_string(), residency_name(entry->residency));
  }
  if (move.kind == MoveKind::kLoad && plus(used(), entry->bytes) > capacity_) {
    return fail(ErrorCode::kResourceExhausted, "load {} ({}) does not fit; {}",
                move.key.to_string(), to_string(entry->bytes), table());
  }
  switch (move.kind) {
    case MoveKind::kLoad:
      entry->residency = Residency::kResident;
      break;
    case MoveKind::kOffload:
      entry->residency = Residency::kOffloaded;
      break;
    case MoveKind::kDrop:
      entry->residency = Residency::kDropped;
      break;
  }
  return {};
}

result<void> MemoryLedger::enter(const Phase& phase) {
  TROUPE_TRY(const auto moves, plan(phase));
  if (!moves.empty()) {
    return fail(ErrorCode::kConflict, "device {}: phase {}: {} {} first ({} moves are left)",
                device_.value, phase.name, move_name(moves[0].kind), moves[0].key.to_string(),
                moves.size());
  }
  ++phase_count_;
  for (const auto& key : phase.resident) find_entry(entries_, key)->last_needed = phase_count_;
  phase_ = phase;
  return {};
}

void MemoryLedger::leave() { phase_.reset(); }

result<Bytes> MemoryLedger::room_in(const Phase& phase) const {
  const std::set<MemoryKey> needed(phase.resident.begin(), phase.resident.end());
  Bytes kept = phase.scratch;
  for (const auto& key : needed) {
    if (find(key) == nullptr) {
      return fail(ErrorCode::kNotFound, "device {}: phase {} needs {}, which is not in the ledger",
                  device_.value, phase.name, key.to_string());
    }
  }
  for (const auto& entry : entries_) {
    const bool stays =
        entry.eviction == Eviction::kNever && entry.residency == Residency::kResident;
    if (stays || needed.contains(entry.key)) kept = plus(kept, entry.bytes);
  }
  return kept > capacity_ ? Bytes{0} : capacity_ - kept;
}

}  // namespace troupe::runtime

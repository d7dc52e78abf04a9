#pragma once

// What the head's ledger says: records, and the state that replaying them gives.
//
// The ledger holds what a restarted head must know and cannot ask nodes for: which groups exist,
// whose they are, and which placement was told to their owners. Attempts in flight are not in it:
// nodes report what they hold, and what no record names is given back.
// **Threads:** value types and pure functions.
// **Invariants:** replaying all records, or a snapshot and all records behind it, gives the state
// in which the head wrote the last one.

#include "placement/placement_protocol.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <variant>
#include <vector>

namespace troupe::placement {

/// One committed bundle.
struct CommittedSlot {
  Epoch epoch{};
  Slot slot{};
  bool operator==(const CommittedSlot&) const = default;
};

struct LedgerGroup {
  GroupId id{};
  Owner owner{};
  std::uint64_t number = 0;         ///< of the request that created it
  std::uint64_t resize_number = 0;  ///< of the last resize that was done
  GroupRequest request{};
  GroupTerms terms{};
  std::uint32_t next_slot = 0;
  bool was_active = false;  ///< its owner was told of a placement
  Epoch epoch{};            ///< of the last change of its placement; only rises
  std::map<std::int32_t, CommittedSlot> slots{};
  bool operator==(const LedgerGroup&) const = default;
};

struct LedgerCounters {
  std::uint64_t term = 0;
  GroupId next_group{1};
  NodeId next_node{};
  bool operator==(const LedgerCounters&) const = default;
};

struct GroupPut {
  LedgerGroup group{};
  bool operator==(const GroupPut&) const = default;
};
struct GroupPlaced {
  GroupId id{};
  std::uint32_t next_slot = 0;
  bool was_active = false;
  Epoch epoch{};
  std::map<std::int32_t, CommittedSlot> slots{};
  bool operator==(const GroupPlaced&) const = default;
};
struct GroupErased {
  GroupId id{};
  bool operator==(const GroupErased&) const = default;
};

using LedgerRecord = std::variant<LedgerCounters, GroupPut, GroupPlaced, GroupErased>;

struct LedgerState {
  LedgerCounters counters{};
  std::map<GroupId, LedgerGroup> groups{};
  bool operator==(const LedgerState&) const = default;

  /// kCorrupt names the record and the group that is missing.
  result<void> apply(const LedgerRecord& record);
  /// Records that give this state.
  std::vector<LedgerRecord> snapshot() const;
};

/// The payload of one ledger frame.
result<std::vector<std::byte>> encode_records(std::span<const LedgerRecord> records);
result<std::vector<LedgerRecord>> decode_records(std::span<const std::byte> payload);

/// The state after all payloads, in order; errors name the frame.
result<LedgerState> replay(std::span<const std::span<const std::byte>> payloads);

}  // namespace troupe::placement

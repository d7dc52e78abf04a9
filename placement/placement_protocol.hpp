#pragma once

// What travels between controllers, the head and node agents about placement groups: ids, states,
// and one struct per message. docs/placement_protocol.md tells who sends what and when.
//
// **Threads:** value types.
// **Invariants:** messages carry plain values, never pointers; what a peer sent is validated where
// it is used (PlacementCore, NodeReservations), its sizes already in protocol_codec.cpp.

#include "placement/bundle.hpp"
#include "placement/topology.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

/// Given by the head, rising, never used twice, also not by a restarted head.
using GroupId = StrongId<struct PlacementGroupTag, std::uint64_t>;
/// One attempt to place bundles: the head's term in the upper 24 bits, a counter below. Whatever
/// names an older attempt than the one in force is refused.
using Epoch = StrongId<struct PlacementEpochTag, std::uint64_t>;

/// The terms that a head may live through, and the attempts of one term.
inline constexpr int kEpochCounterBits = 40;

enum class GroupStatus : std::uint8_t {
  kPending,       ///< waits in the queue, or its nodes are being asked
  kPrepared,      ///< every node holds its bundles for it; being committed
  kActive,        ///< every bundle is committed and the ledger says so
  kRescheduling,  ///< bundles were lost with their node and are being replaced
  kRemoving,      ///< nodes are giving its bundles up
  kRemoved,
  kInfeasible,  ///< these nodes can never hold it, whoever leaves; retried when a node joins
};
/// `PENDING`, `PREPARED`, …
std::string_view group_status_name(GroupStatus status);

/// What happens to a group whose node is lost.
enum class RepairPolicy : std::uint8_t {
  kRestartBundle,  ///< the lost bundles move, the others stay
  kRestartGroup,   ///< all bundles are given up and placed anew
  kFailGroup,      ///< the group is removed
};
/// `restart_bundle`, `restart_group`, `fail_group`.
std::string_view repair_policy_name(RepairPolicy policy);
/// kInvalidArgument lists them.
result<RepairPolicy> parse_repair_policy(std::string_view text);

/// A controller. Its groups live as long as it keeps a session, unless they are detached. The
/// instance tells a restarted controller from the one before it.
struct Owner {
  std::string name{};
  std::uint64_t instance = 0;
  auto operator<=>(const Owner&) const = default;
};

/// What a group's owner settles besides the bundles.
struct GroupTerms {
  RepairPolicy repair = RepairPolicy::kRestartBundle;
  bool detached = false;  ///< outlives its owner; somebody must remove it
  /// For so long after its creation "can never fit" is not final: nodes may still be joining.
  Duration feasible_within{0};
  bool operator==(const GroupTerms&) const = default;
};

// ---- controller → head ---------------------------------------------------------------------

/// Opens the session of an owner on a channel, and says which groups it believes in: those that are
/// gone are told as removed, the others as they are.
struct OpenSession {
  Owner owner{};
  std::vector<GroupId> known{};
  bool operator==(const OpenSession&) const = default;
};

struct CreateGroup {
  std::uint64_t number =
      0;  ///< of this request among its owner's: a repeated one is answered alike
  GroupRequest request{};
  GroupTerms terms{};
  bool operator==(const CreateGroup&) const = default;
};

/// A group by id, or by name when `id` is 0.
struct GroupKey {
  GroupId id{};
  std::string name{};
  bool operator==(const GroupKey&) const = default;
};
/// `group 17` or `group 'pool'`.
std::string to_string(const GroupKey& key);

/// Drops the bundles `remove` (the others close ranks, in order), then appends `add`.
struct ResizeGroup {
  std::uint64_t number = 0;
  GroupKey group{};
  std::vector<std::int32_t> remove{};
  std::vector<Bundle> add{};
  bool operator==(const ResizeGroup&) const = default;
};

struct ListGroups {
  GroupId after{};  ///< ids above this one
  std::uint32_t limit = 100;
  bool operator==(const ListGroups&) const = default;
};
inline constexpr std::uint32_t kListLimitMax = 1'000;

// ---- head → controller ---------------------------------------------------------------------

/// A group as others see it.
struct GroupView {
  GroupId id{};
  std::string name{};
  Owner owner{};
  GroupStatus status = GroupStatus::kPending;
  GroupTerms terms{};
  Epoch epoch{};  ///< of the newest placement; 0 before the first
  std::uint32_t bundles = 0;
  std::vector<BundlePlacement> placements{};  ///< by bundle; those that are placed now
  Duration age{0};
  std::string why{};  ///< what it waits for; empty when active
  bool operator==(const GroupView&) const = default;
};

struct GroupPage {
  std::vector<GroupView> groups{};
  bool more = false;
  bool operator==(const GroupPage&) const = default;
};

/// One for each group of a create or remove message, in its order.
using GroupOutcomes = std::vector<result<GroupId>>;

enum class ChangeKind : std::uint8_t {
  kActive,      ///< placed for the first time
  kMoved,       ///< `bundles` have new places
  kLost,        ///< `bundles` went with their node; `cause` says which
  kResized,     ///< bundles were added or removed
  kInfeasible,  ///< `cause` says what is missing
  kRemoved,     ///< with a `cause` when nobody asked for it
};
/// `active`, `moved`, …
std::string_view change_kind_name(ChangeKind kind);

/// Told to the owner, in order, once durable. Told again, as the present state, to a new session.
struct GroupChange {
  ChangeKind kind = ChangeKind::kActive;
  GroupId group{};
  GroupStatus status = GroupStatus::kActive;
  Epoch epoch{};
  std::vector<std::int32_t> bundles{};        ///< that the change is about
  std::vector<BundlePlacement> placements{};  ///< all of the group's, for active, moved, resized
  std::optional<Error> cause{};
  bool operator==(const GroupChange&) const = default;
};

// ---- node → head ---------------------------------------------------------------------------

/// The first thing an agent says on a channel; with changed `spec` also later on.
struct NodeHello {
  NodeSpec spec{};
  std::uint64_t incarnation = 0;  ///< of the agent process; reservations do not survive it
  std::uint64_t hello = 0;        ///< rises with every hello of the incarnation
  bool operator==(const NodeHello&) const = default;
};

// ---- head → node ---------------------------------------------------------------------------

enum class NodeOpKind : std::uint8_t {
  kPrepare,   ///< hold these bundles for the attempt, all or none, for the length of a lease
  kCommit,    ///< what the attempt prepared stays until it is cancelled
  kReserve,   ///< both at once: the attempt has no other node
  kCancel,    ///< give up these slots, of attempts up to the epoch
  kRenumber,  ///< slots belong to other bundles from now on, after a group shrank
};
/// `prepare`, `commit`, `reserve`, `cancel`, `renumber`.
std::string_view node_op_name(NodeOpKind kind);

/// What a bundle holds on a node. Slots are numbered by the head, within a group, and never used
/// twice; the number of the bundle that a slot is for may change when the group shrinks.
struct Slot {
  std::uint32_t slot = 0;
  BundlePlacement placement{};
  bool operator==(const Slot&) const = default;
};

struct SlotBundle {
  std::uint32_t slot = 0;
  std::int32_t bundle = 0;
  auto operator<=>(const SlotBundle&) const = default;
};

struct NodeOp {
  NodeOpKind kind = NodeOpKind::kPrepare;
  GroupId group{};
  Epoch epoch{};
  std::string name{};                 ///< of the group; prepare and reserve
  std::vector<Slot> slots{};          ///< prepare and reserve
  std::vector<SlotBundle> bundles{};  ///< renumber; cancel looks at the slots only
  bool operator==(const NodeOp&) const = default;
};

/// Everything the head has to say to one node at one time. (term, session, number) only rises; a
/// node drops what does not.
struct NodePass {
  std::uint64_t term = 0;     ///< of the head: rises with every start
  std::uint64_t session = 0;  ///< of the node with this head
  std::uint64_t number = 0;   ///< in the session, from 1
  std::uint64_t hello = 0;    ///< which hello the session answers
  Duration lease{0};          ///< prepared bundles are held so long without another pass
  bool want_truth = false;
  std::vector<NodeOp> ops{};
  bool operator==(const NodePass&) const = default;
};

/// One bundle that a node holds, as the head needs to know it.
struct HeldSlot {
  GroupId group{};
  std::uint32_t slot = 0;
  std::int32_t bundle = 0;
  Epoch epoch{};
  bool committed = false;
  auto operator<=>(const HeldSlot&) const = default;
};

/// Answers one pass: `refusals[i]` is empty when op i was done.
struct NodeReply {
  std::uint64_t term = 0;
  std::uint64_t session = 0;
  std::uint64_t number = 0;
  bool draining = false;
  std::vector<std::optional<Error>> refusals{};
  bool has_truth = false;
  std::vector<HeldSlot> truth{};  ///< after the ops
  bool operator==(const NodeReply&) const = default;
};

// ---- bounds --------------------------------------------------------------------------------

/// Bundles of one group over the protocol, so that a group's placements fit one control frame.
inline constexpr std::size_t kGroupBundlesMax = 4'096;
/// Bundles that one node holds.
inline constexpr std::size_t kNodeBundlesMax = 16'384;
/// Longest lease that a node grants.
inline constexpr Duration kLeaseMax = std::chrono::minutes(1);
/// Requests in one create or remove message.
inline constexpr std::size_t kRequestsPerMessageMax = 4'096;

}  // namespace troupe::placement

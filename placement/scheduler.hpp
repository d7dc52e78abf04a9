#pragma once

// The scheduling core: many queued groups, one pass, one decision each.
//
// Groups are tried by standing (the time waited, plus `age_per_priority` for each step of
// priority), then in order of arrival. A group that does not fit now waits; the first ones to wait
// get a reservation: a place on nodes as they would be when running groups end. Groups behind may
// use what reservations leave over (backfill) and never what they hold, so a big group is not
// starved by small ones. docs/placement.md argues why.
// **Ownership:** one scheduler serves one cluster: it remembers reservations, and what could never
// fit the nodes of the present `topology_version`. For a what-if on a changed copy make another.
// **Threads:** belongs to one owner. No clock: the caller says how long each group has waited.
// **Invariants:** all bundles of a group or none; what is decided is allocated in the cluster when
// `pass` returns; the decisions depend on cluster, queue and earlier passes only, never on the
// order in which nodes or groups were inserted.

#include "placement/bundle.hpp"
#include "placement/cluster.hpp"
#include "placement/place.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::placement {

/// One group that wants to be placed. A group of this name that is active in the cluster keeps the
/// bundles it holds and gets the missing ones: this is repair, and growth by more bundles.
struct QueuedGroup {
  GroupRequest request;
  std::uint64_t arrival = 0;  ///< smaller came first; unique in a queue
  Duration waited = {};       ///< since it was queued
};

enum class DecisionKind : std::uint8_t {
  kPlaced,      ///< allocated in the cluster
  kWaiting,     ///< not now
  kInfeasible,  ///< never on the nodes there are
  kRejected,    ///< the request is bad
};

enum class WaitReason : std::uint8_t {
  kNone,
  kResources,     ///< fits when running groups end
  kReserved,      ///< would fit, but in what is held for a group before it
  kAffinity,      ///< waits until a group it wants to be near is placed, or one it avoids is gone
  kSearchBudget,  ///< neither a place nor a proof was found within the budget
};
std::string_view wait_reason_name(WaitReason reason);

struct Decision {
  std::string group;
  DecisionKind kind = DecisionKind::kWaiting;
  WaitReason wait = WaitReason::kNone;
  std::vector<BundlePlacement> bundles = {};  ///< the new ones, by bundle, when placed
  std::size_t position = 0;                   ///< in the queue of those that wait, from 1
  /// Why it is infeasible (kResourceExhausted: the cluster is too small) or rejected
  /// (kInvalidArgument, kAlreadyExists, kNotFound), or a sentence on what it waits for.
  std::optional<Error> error = {};
  PlacementCost cost = {};  ///< when placed
};

struct SchedulerOptions {
  SearchOptions search = {};
  Duration age_per_priority = std::chrono::seconds(30);  ///< zero: priorities never age; ≤ 1 h
  std::size_t reservations_max = 4;                      ///< at least 1
  std::size_t queue_max = 100'000;                       ///< longer queues are refused
  std::size_t pass_steps_max = 1'000'000;  ///< of backtracking in one pass, all groups together
};

/// A place that is held for a waiting group.
struct Reservation {
  std::string group;
  GroupRequest request;
  std::vector<BundlePlacement> bundles;
};

struct PassResult {
  std::vector<Decision> decisions;  ///< one per queued group, in the order they were tried
  std::vector<Reservation> reservations;
  std::uint64_t cluster_version = 0;  ///< after the pass
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options = {});
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  /// kResourceExhausted when the queue is longer than queue_max. A name twice in one queue, or an
  /// active group that is complete, is rejected with kAlreadyExists.
  result<PassResult> pass(Cluster& cluster, std::span<const QueuedGroup> queue);
  /// One group at once, in front of all others: as a pass with a queue of one, which forgets no
  /// reservation and respects each.
  Decision place_one(Cluster& cluster, const GroupRequest& request);
  /// Whether the cluster could ever hold it: nothing, or the error of kInfeasible or kRejected.
  /// Answers at submission, before the group waits.
  result<void> check_feasible(const Cluster& cluster, const GroupRequest& request);
  /// What to ask once, when a group is submitted: as check_feasible; and kAlreadyExists when its
  /// name is queued or active, kNotFound when an affinity names a group that is neither.
  result<void> check_submission(const Cluster& cluster, std::span<const QueuedGroup> queue,
                                const GroupRequest& request);

  const SchedulerOptions& options() const { return options_; }
  const std::vector<Reservation>& reservations() const { return reservations_; }

 private:
  class Pass;
  using Verdicts = std::map<std::string, PlaceOutcome>;  ///< by shape_key
  PlaceOutcome feasible(const Cluster& cluster, const GroupRequest& request,
                        const ActiveGroup* kept, std::size_t& steps);

  SchedulerOptions options_;
  std::unique_ptr<Placer> placer_;
  std::vector<Reservation> reservations_;
  Verdicts on_empty_;  ///< what fits the empty cluster, at topology_version_
  std::uint64_t topology_version_ = 0;
};

/// What `pass` orders by before arrival, larger first: the time waited plus `age_per_priority` for
/// each step of priority. The difference of two queued groups never changes, so who is ahead stays
/// ahead of all but newcomers of higher priority, and in the end of those, too.
Duration standing(const QueuedGroup& group, const SchedulerOptions& options);

/// Takes bundles out of an active group and their resources free. The others keep their places and
/// are numbered anew without gaps; the result has the old number of each. kNotFound names a group
/// or bundle that is not there, kInvalidArgument and kConflict what the smaller group would break.
/// Nothing changes on error.
result<std::vector<std::int32_t>> shrink(Cluster& cluster, std::string_view group,
                                         std::span<const std::int32_t> drop);
/// The request of an active group with more bundles at its end; queue it to place them. Errors as
/// `validate`.
result<GroupRequest> grow(const ActiveGroup& group, std::span<const Bundle> more);

}  // namespace troupe::placement

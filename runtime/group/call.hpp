#pragma once

// One call in flight, as the group's core and the engines see it.
//
// Ownership: counted; held by the core while open, and by each engine's queue.
// **Threads:** `run` on each rank's engine thread in parallel; the rest from any thread.
// **Invariants:** completed exactly once, by whoever settles it first; all ranks take the same
// decision whether to run it, and whether to rebuild the communicators before (`plan`), because the
// first one to decide wins.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/lane_gate.hpp"
#include "runtime/group/worker_context.hpp"
#include "runtime/task/cancel.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace troupe::runtime {

class Call : public RefCounted {
 public:
  /// Runs the method of `worker` with this rank's arguments and keeps the value.
  virtual result<void> run(void* worker, RankId rank, WorkerContext& context) = 0;
  /// Joins the values of all ranks; `deliver` then completes the caller's pending.
  virtual result<void> join() = 0;
  virtual void deliver() = 0;
  /// Completes the pending with an error; false when it is over.
  virtual bool fail(Error error) = 0;
  virtual bool over() const = 0;
  /// The place of `rank` in its device's lane, if the call has one; each is taken once.
  virtual std::unique_ptr<LaneGate::Turn> take_turn(RankId rank) {
    const auto own = static_cast<std::size_t>(rank.value);
    return own < turns.size() ? std::move(turns[own]) : nullptr;
  }

  // Set before submission.
  std::string_view method;
  std::string_view phase;
  Deadline deadline;

  // Managed by the core.
  static constexpr std::int64_t kUndecided = 0;
  static constexpr std::int64_t kRun = 1;
  static constexpr std::int64_t kSkip = 2;
  static constexpr std::int64_t kRebuildBase = 16;  ///< plus the epoch: rebuild, then run
  /// The plan; becomes `proposed` if nobody decided before.
  std::int64_t decide(std::int64_t proposed) {
    std::int64_t seen = kUndecided;
    return plan.compare_exchange_strong(seen, proposed) ? proposed : seen;
  }
  std::atomic<std::int64_t> plan{kUndecided};
  std::atomic<std::int64_t> ranks_left{0};
  /// True for the one who may complete the call.
  bool settle() { return !settled.exchange(true); }
  std::atomic<bool> settled{false};
  std::atomic<bool> failed{false};     ///< some rank did not give a value
  std::atomic<bool> broken{false};     ///< its communicators were aborted: late ranks skip it
  std::atomic<bool> abandoned{false};  ///< nobody wants the result
  CallId id;
  TimePoint submitted;
  std::vector<std::unique_ptr<LaneGate::Turn>> turns;  ///< [R], each used by its rank only
  std::optional<CallTimer::Id> timer;                  // guarded by the core's mutex
  CancelRegistration registration;                     // guarded by the core's mutex
};

}  // namespace troupe::runtime

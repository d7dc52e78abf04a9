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
#include <span>
#include <string_view>
#include <vector>

namespace troupe::runtime {

class WireContext;

/// How a call travels to ranks in other processes; see remote_rank.hpp. Used by those only.
class CallWire {
 public:
  virtual ~CallWire() = default;
  /// Place of the method in the worker's declaration.
  virtual std::size_t method_place() const = 0;
  virtual std::size_t argument_count() const = 0;
  /// True when the value of `rank` is wanted.
  virtual bool wanted_from(RankId rank) const = 0;
  /// True when values hold batches or columns, which may have to be pulled.
  virtual bool value_has_columns() const = 0;
  /// True when columns of values stay at their ranks.
  virtual bool keeps_columns() const = 0;
  /// Encodes the parts of argument `i`, one for each value that ranks share. kUnsupported names
  /// the method when a type has no wire form.
  virtual result<std::vector<std::vector<std::byte>>> encode_argument(std::size_t i,
                                                                      WireContext* context) = 0;
  /// Which of the parts is `rank`'s.
  virtual std::size_t part_of(std::size_t i, RankId rank) const = 0;
  /// Decodes and keeps the value of `rank`.
  virtual result<void> put_value(RankId rank, std::span<const std::byte> bytes,
                                 WireContext* context) = 0;
};

/// The encoded arguments of a call on its way, and what keeps the columns that they refer to.
struct CallTravel {
  struct Part {
    std::vector<std::byte> bytes;
    bool held = false;  ///< the bytes are an exported column that holds the value
  };
  std::vector<std::vector<Part>> arguments;  ///< [arguments][parts]
  std::vector<std::shared_ptr<const void>> keep;
};

class Call : public RefCounted {
 public:
  virtual CallWire& wire() = 0;
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
  std::unique_ptr<CallTravel> travel;                  ///< for ranks in other processes
  std::vector<std::unique_ptr<LaneGate::Turn>> turns;  ///< [R], each used by its rank only
  bool held = false;                                   // these three guarded by the core's mutex
  std::optional<CallTimer::Id> timer;
  CancelRegistration registration;
};

}  // namespace troupe::runtime

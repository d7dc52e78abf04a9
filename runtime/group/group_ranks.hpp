#pragma once

// `GroupRanks`: the ranks of one group as its core sees them, wherever they run.
//
// `LocalRanks` are threads of this process, `RemoteRanks` are processes behind channels. The core
// keeps the order of calls, deadlines, errors and deaths; the ranks run calls and report
// `rank_constructed`, `rank_done` and `rank_died` to it.
// Ownership: owned by the core, which it may keep alive until `close`.
// **Threads:** any, but `push`, which the core calls under its lock.
// **Invariants:** calls run in the order of `push` on every rank; every pushed call ends in one
// `rank_done` per rank, unless the rank died. All ranks run a call or none does, and they rebuild
// their collectives before the same call: what `skip` and `break_call` ask for is agreed upon.

#include "runtime/base/result.hpp"
#include "runtime/group/call.hpp"
#include "runtime/group/group_options.hpp"

#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

class GroupCore;

class GroupRanks {
 public:
  virtual ~GroupRanks() = default;

  /// Starts all ranks; workers are constructed by `deadline`.
  virtual result<void> start(const Ref<GroupCore>& core, Deadline deadline) = 0;

  /// Makes the call ready to travel, without locks held; its errors refuse the call.
  virtual result<void> prepare(Call& call) = 0;
  virtual void push(const Ref<Call>& call) = 0;
  /// After one or more pushes, without locks held.
  virtual void wake() = 0;

  /// Nobody wants the result: the call runs on no rank, unless one has begun it.
  virtual void skip(const Ref<Call>& call) = 0;
  /// Sets `cancelled()` in workers that run the call.
  virtual void cancel(const Call& call) = 0;
  /// As `skip`, and if some rank has begun it, then as `break_call` by the rank of the error.
  virtual void expire(const Ref<Call>& call, const Error& error) = 0;
  /// One rank has failed in the call: frees peers that wait for it, if `others_wait`, and lets the
  /// first call that none has begun rebuild the communicators, if they are broken.
  virtual void break_call(Call& call, RankId culprit, const Error& cause, bool others_wait) = 0;
  /// Ends what the ranks wait for in collectives.
  virtual void abort(RankId culprit, const Error& cause) = 0;

  /// The rank counts as dead; what is queued at it is dropped.
  virtual void bury(RankId rank, const Error& cause) = 0;
  /// The group is dead or going: ranks wait for no peer any more.
  virtual void leave() = 0;
  /// The group goes: ends the ranks, by `deadline` at the latest; warns of those that did not end.
  virtual void close(Deadline deadline) = 0;

  /// What is known here of one rank, at once.
  virtual RankStatus status_of(RankId rank) const = 0;
  /// True when the rank has begun the call and is not through, as far as is known here.
  virtual bool runs(RankId rank, const Call& call) const = 0;
  /// Asks the shells; blocks. kDeadline names the rank that did not answer.
  virtual result<std::vector<RankStatus>> status(Deadline deadline) = 0;
  virtual void kill(RankId rank, Error cause) = 0;
  virtual void request_abort(RankId rank, Error cause) = 0;
};

}  // namespace troupe::runtime

#pragma once

// The untyped heart of a worker group: ranks, the order of calls, deadlines, failures.
//
// Users meet `WorkerGroup<W>` (worker_group.hpp).
// Ownership: counted; engines and actors hold it, `shutdown` breaks the cycles.
// **Threads:** every public function from any thread.
// **Invariants:** all ranks see calls in one order; every submitted call ends; the first death of
// a rank is the group's cause of death for ever.

#include "runtime/base/result.hpp"
#include "runtime/group/call.hpp"
#include "runtime/group/group_options.hpp"
#include "runtime/group/group_ranks.hpp"
#include "runtime/group/rank.hpp"

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace troupe::runtime {

class GroupCore final : public RankOwner {
 public:
  /// Starts the ranks and waits until every worker is constructed. The error names group and rank.
  static result<Ref<GroupCore>> create(ActorSystem& system, GroupOptions options,
                                       std::unique_ptr<GroupRanks> ranks);

  /// Queues `call` on all ranks, or fails it at once.
  void submit(Ref<Call> call, const CancelToken& cancel);
  /// The caller cancelled its pending, which is over.
  void abandon(Call& call);
  /// Ends all calls with kCancelled, stops ranks and actors. Waits at most shutdown_wait.
  void shutdown();

  /// Asks every shell; kDeadline names the rank that did not answer.
  result<std::vector<RankStatus>> status(Deadline deadline);
  /// Kills a rank as if it had died of `cause`.
  void kill(RankId rank, Error cause);
  /// Asks the shell of `rank` to abort.
  void request_abort(RankId rank, Error cause);
  /// Ends what the ranks wait for in collectives; the group goes on with the next call.
  void abort(RankId rank, const Error& cause);
  /// Why the group cannot be called any more, if so.
  std::optional<Error> dead_cause() const;
  std::size_t calls_open() const;
  const GroupOptions& options() const { return options_; }

  // From the ranks.
  void rank_constructed(RankId rank, std::optional<Error> error) override;
  void rank_done(Call& call, RankId rank, result<void> outcome) override;
  void rank_died(RankId rank, Error cause, Call* during) override;
  CallTrace* trace() const override { return options_.trace; }
  Duration create_deadline() const override { return options_.create_deadline; }
  /// The first call that nobody has begun rebuilds the communicators first. Returns it; null when
  /// it is yet to come.
  Ref<Call> plan_rebuild();
  /// All calls up to this one were begun by some rank, so they run on all.
  void decide_begun(CallId last_begun);

 private:
  GroupCore(ActorSystem& system, GroupOptions options, std::unique_ptr<GroupRanks> ranks);
  ~GroupCore() override;

  int size() const { return options_.mesh.size(); }
  result<void> start();
  result<void> check_options() const;
  std::optional<Error> refusal_locked() const;
  result<void> take_lanes(Call& call);
  void deadline_passed(Call& call);
  /// True of an error that only says that a rank of this group is gone, not why.
  bool tells_of_a_death(const Error& error) const;
  /// Keeps a failed call open for a moment, so that it ends with the cause of the death that
  /// `error` tells of, whose report may be under way; with `error` when none comes. False: it is
  /// over.
  bool hold(Call& call, const Error& error);
  /// Takes a call that is over off the books.
  void close(Call& call);
  /// Completes a call that the caller of this has settled.
  void fail_settled(Call& call, Error error);
  std::string waiting_ranks(const Call& call) const;

  ActorSystem& system_;
  const GroupOptions options_;
  const std::unique_ptr<GroupRanks> ranks_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable constructed_;
  int constructed_count_ = 0;
  std::optional<Error> construct_error_;
  std::deque<Ref<Call>> open_calls_;  // in submission order
  std::optional<Error> dead_cause_;
  bool closed_ = false;
  std::uint64_t last_call_ = 0;
  std::int64_t epoch_ = 0;
  bool rebuild_next_ = false;
};

}  // namespace troupe::runtime

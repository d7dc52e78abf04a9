#pragma once

// `RemoteRanks::Shared`: what ranks, timers and the core's side of a group of processes share.
// Internal to remote_ranks.cpp and remote_agreement.cpp.
//
// Ownership: counted; lets go of the core in `close`.
// **Threads:** any.
// **Invariants:** as RemoteRanks.

#include "runtime/group/group_core.hpp"
#include "runtime/group/remote_ranks.hpp"

#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// What ranks, timers and the core's side share.
class RemoteRanks::Shared final : public RemoteRankOwner {
 public:
  Shared(ClusterJob& job, RemoteProgram program, std::vector<MethodName> methods)
      : job_(job),
        system_(job.system()),
        program_(std::move(program)),
        methods_(std::move(methods)),
        round_(0) {}

  result<void> start(const Ref<GroupCore>& core, Deadline deadline);
  result<void> prepare(Call& call);
  void want(Ref<Call> skipped, std::optional<Error> error, bool rebuild);
  void break_call(Call& call, RankId culprit, const Error& cause, bool others_wait);
  void abort(const Error& cause, CallId broken);
  void bury(RankId rank, const Error& cause);
  void set_leaving() {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  void close(Deadline deadline);
  result<std::vector<RankStatus>> status(Deadline deadline);
  const std::vector<Ref<RemoteRank>>& ranks() const { return ranks_; }
  RemoteRank& at(RankId rank) const { return *ranks_[static_cast<std::size_t>(rank.value)]; }
  bool have_collectives() const { return collectives_; }
  Ref<GroupCore> core() const {
    const std::lock_guard lock(mutex_);
    return core_;
  }

  RankWelcome welcome(RankId rank) override;
  void on_constructed(RankId rank, std::optional<Error> error) override;
  void on_result(RankId rank, const Ref<Call>& call, const ResultFrame& frame) override;
  void on_held(RankId rank, const GroupHeld& held) override;
  void on_death(RankId rank, Error cause, Ref<Call> during) override;

 private:
  struct Want {
    Ref<Call> call;
    std::optional<Error> error;  // breaks the call if it has begun
  };
  struct Watched {
    std::int64_t heartbeat = -1;
    bool asked = false;
    bool said_stuck = false;
  };

  void announce(std::uint64_t round);
  void finish_round();
  /// Decides each wanted skip; returns the calls that run nowhere.
  std::vector<CallId> decide_skips(const std::vector<Want>& wants, CallId last_begun);
  result<void> launch_all(Deadline deadline);
  result<void> check_lanes() const;
  void trace(RankId rank, const Call& call, const ResultFrame& frame) const;
  result<void> take_value(RankId rank, Call& call, std::vector<std::byte> bytes, bool held);
  void watch_again();
  void watch();
  void note_heartbeat(std::size_t rank, const RankReport& report);

  ClusterJob& job_;  // may be gone once the group is closed; see RemoteRank
  ActorSystem& system_;
  const RemoteProgram program_;
  const std::vector<MethodName> methods_;
  std::string name_;
  bool collectives_ = false;
  std::vector<Ref<RemoteRank>> ranks_;  // fixed by start

  mutable std::mutex mutex_;  // guards what follows; taken before the core's and the ranks'
  Ref<GroupCore> core_;
  Deadline create_until_{};
  PlanRound round_;
  std::vector<Want> wants_;
  bool want_rebuild_ = false;
  std::vector<CallId> failed_seen_;
  std::vector<char> broken_;
  std::vector<Watched> watched_;
  std::optional<CallTimer::Id> timer_;
  bool leaving_ = false;
};

}  // namespace troupe::runtime

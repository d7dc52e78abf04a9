#pragma once

// `RemoteRanks`: the ranks of a group that are processes: starting them, agreeing on calls, asking
// how they are.
//
// Agreement. Calls are sent ahead, and a rank runs what it has. When a call should run nowhere
// (cancelled, its deadline passed) or the communicators are broken, a *round* is held: every rank
// is told to begin nothing more and says which call it began last. What nobody has begun is then
// decided for all, and told to all, and they go on. A rank whose method failed holds by itself
// until such a round has heard of it. docs/remote_groups.md has the protocol.
// Ownership: owned by the core; ranks and timers hold it through its shared part until `close`.
// **Threads:** as GroupRanks.
// **Invariants:** one round at a time; what is asked for during a round is decided with it or
// in the next one. Without a death a round ends.

#include "runtime/group/cluster_job.hpp"
#include "runtime/group/group_ranks.hpp"
#include "runtime/group/plan_round.hpp"
#include "runtime/group/remote_program.hpp"
#include "runtime/group/remote_rank.hpp"

#include <memory>
#include <vector>

namespace troupe::runtime {

class RemoteRanks final : public GroupRanks {
 public:
  RemoteRanks(ClusterJob& job, RemoteProgram program, std::vector<MethodName> methods);
  ~RemoteRanks() override;

  result<void> start(const Ref<GroupCore>& core, Deadline deadline) override;
  result<void> prepare(Call& call) override;
  void push(const Ref<Call>& call) override;
  void wake() override;
  void skip(const Ref<Call>& call) override;
  void cancel(const Call& call) override;
  void expire(const Ref<Call>& call, const Error& error) override;
  void break_call(Call& call, RankId culprit, const Error& cause, bool others_wait) override;
  void abort(RankId culprit, const Error& cause) override;
  void bury(RankId rank, const Error& cause) override;
  void leave() override;
  void close(Deadline deadline) override;
  RankStatus status_of(RankId rank) const override;
  bool runs(RankId rank, const Call& call) const override;
  result<std::vector<RankStatus>> status(Deadline deadline) override;
  void kill(RankId rank, Error cause) override;
  void request_abort(RankId rank, Error cause) override;

 private:
  class Shared;
  Ref<Shared> shared_;
};

}  // namespace troupe::runtime

#pragma once

// `LocalRanks`: ranks that are threads of this process, with a shell actor each.
//
// Ownership: owned by the core; engines hold the core until `close`, or for ever when stuck.
// **Threads:** as GroupRanks.
// **Invariants:** the first rank that begins a call decides for all (`Call::plan`).

#include "runtime/group/group_actors.hpp"
#include "runtime/group/group_ranks.hpp"
#include "runtime/group/rank.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

class LocalRanks final : public GroupRanks {
 public:
  LocalRanks(ActorSystem& system, MakeWorker make_worker)
      : system_(system), make_worker_(std::move(make_worker)) {}

  result<void> start(const Ref<GroupCore>& core, Deadline deadline) override;
  result<void> prepare(Call&) override { return {}; }
  void push(const Ref<Call>& call) override;
  void wake() override;
  void skip(const Ref<Call>& call) override { call->decide(Call::kSkip); }
  void cancel(const Call& call) override;
  void expire(const Ref<Call>& call, const Error& error) override;
  void break_call(Call& call, RankId culprit, const Error& cause, bool others_wait) override;
  void abort(RankId culprit, const Error& cause) override;
  void bury(RankId rank, const Error& cause) override;
  void leave() override;
  void close(Deadline deadline) override;
  RankStatus status_of(RankId rank) const override { return at(rank).status(); }
  bool runs(RankId rank, const Call& call) const override;
  result<std::vector<RankStatus>> status(Deadline deadline) override;
  void kill(RankId rank, Error cause) override;
  void request_abort(RankId rank, Error cause) override;

 private:
  Rank& at(RankId rank) const { return *ranks_[static_cast<std::size_t>(rank.value)]; }
  bool have_collectives() const;

  ActorSystem& system_;
  MakeWorker make_worker_;
  GroupCore* core_ = nullptr;
  std::vector<Ref<Rank>> ranks_;
  std::unique_ptr<GroupActors> actors_;
};

}  // namespace troupe::runtime

#include "runtime/group/local_ranks.hpp"

#include "runtime/base/log.hpp"
#include "runtime/group/group_core.hpp"

#include <utility>

namespace troupe::runtime {

result<void> LocalRanks::start(const Ref<GroupCore>& core, Deadline) {
  core_ = core.get();
  const GroupOptions& options = core->options();
  const int size = options.mesh.size();
  std::vector<std::unique_ptr<Collective>> worlds(static_cast<std::size_t>(size));
  if (options.collectives) worlds = make_local_group(size, {.name = options.name});
  for (int i = 0; i < size; ++i) {
    ranks_.push_back(make_ref<Rank>(options.name, RankId{i}, options.mesh,
                                    std::move(worlds[static_cast<std::size_t>(i)])));
  }
  actors_ = std::make_unique<GroupActors>(system_, core, ranks_);
  for (const auto& rank : ranks_) rank->start(core, make_worker_);
  make_worker_ = nullptr;
  return {};
}

void LocalRanks::push(const Ref<Call>& call) {
  if (core_->options().route == CallRoute::kShells) return actors_->submit(call);
  for (const auto& rank : ranks_) rank->push(call);
}

void LocalRanks::wake() {
  if (core_->options().route == CallRoute::kShells) return;
  for (const auto& rank : ranks_) rank->wake();
}

void LocalRanks::cancel(const Call& call) {
  for (const auto& rank : ranks_) rank->cancel(call);
}

bool LocalRanks::have_collectives() const {
  return core_->options().collectives && ranks_.size() > 1;
}

void LocalRanks::expire(const Ref<Call>& call, const Error& error) {
  if (call->decide(Call::kSkip) == Call::kSkip) return;
  if (!call->failed.exchange(true))
    break_call(*call, error.origin.rank.value_or(RankId{0}), error, true);
}

void LocalRanks::break_call(Call& call, RankId culprit, const Error& cause, bool others_wait) {
  if (!have_collectives()) return;
  Collective& world = *at(culprit).cell().world;
  if (others_wait) {
    call.broken.store(true);
    world.abort(cause);
  }
  if (world.failure()) core_->plan_rebuild();
}

void LocalRanks::abort(RankId culprit, const Error& cause) {
  if (!have_collectives()) return;
  at(culprit).cell().world->abort(cause);
  core_->plan_rebuild();
}

void LocalRanks::bury(RankId rank, const Error& cause) {
  at(rank).bury(cause);
  at(rank).stop();
}

void LocalRanks::leave() {
  for (const auto& rank : ranks_) rank->cell().leaving.store(true);
}

void LocalRanks::close(Deadline deadline) {
  const GroupOptions& options = core_->options();
  for (const auto& rank : ranks_) rank->stop();
  abort(RankId{0}, cancelled(fmt::format("{}: the group was destroyed", options.name)));
  for (const auto& rank : ranks_) {
    const RankStatus last = rank->status();
    if (!rank->join(deadline)) {
      log::warn("{}: {}: its engine did not end in {:.1f} s and is left behind", options.name,
                last.to_string(), seconds(options.shutdown_wait));
    }
  }
  if (actors_) actors_->stop();
}

bool LocalRanks::runs(RankId rank, const Call& call) const { return at(rank).runs(call); }

result<std::vector<RankStatus>> LocalRanks::status(Deadline deadline) {
  return actors_->status(deadline);
}
void LocalRanks::kill(RankId rank, Error cause) { actors_->kill(rank, std::move(cause)); }
void LocalRanks::request_abort(RankId rank, Error cause) { actors_->abort(rank, std::move(cause)); }

}  // namespace troupe::runtime

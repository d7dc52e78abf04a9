#include "actors/roles/group_reward.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/roles/select_present.hpp"
#include "actors/roles/settled.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/failure.hpp"

#include <utility>

namespace troupe::actors {

using runtime::Batch;
using runtime::Failure;
using runtime::task;
using runtime::value_or_throw;

result<std::unique_ptr<GroupReward>> GroupReward::create(Make make,
                                                         const GroupRewardOptions& options) {
  std::unique_ptr<GroupReward> made(new GroupReward(std::move(make), options));
  TROUPE_TRY(Group group, made->make_({.generation = 1, .within = options.create_within}));
  made->group_ = std::make_unique<Group>(std::move(group));
  return made;
}

task<Batch> GroupReward::score(Batch batch) {
  const Batch needed =
      select_present(batch, {column::kPrompts, column::kResponses, column::kDataSource,
                             column::kGroundTruth, column::kExtraInfo});
  for (;;) {
    co_await ensure_alive();
    const int made = remakes_;
    auto scored = co_await settled(group_->call<&RewardWorker::score>(needed));
    if (scored && options_.fetch) scored = scored->resolve();
    if (scored) {
      if (remakes_ > 0)
        scored->metrics().add("reward/remakes", remakes_, runtime::Reduction::kLast);
      co_return *std::move(scored);
    }
    const bool died = made != remakes_ || !alive();
    if (!died) throw Failure(std::move(scored).error());
  }
}

task<void> GroupReward::ensure_alive() {
  if (alive()) co_return;
  const Turnstile::Pass pass = co_await making_.enter();
  if (alive()) co_return;
  if (group_ != nullptr) cause_ = group_->dead_cause();
  if (remakes_ >= options_.remakes_max)
    throw Failure(Error(*cause_).wrap(
        ErrorCode::kRankDead,
        fmt::format("reward: its group died again after it was made anew {} times", remakes_)));
  ++remakes_;
  log::warn("the reward group is made anew ({} of {}): {}", remakes_, options_.remakes_max,
            cause_->to_string());
  const GroupMaking making{.generation = remakes_ + 1, .within = options_.remake_within};
  auto making_it =
      make_anew(job_, std::move(group_), [make = make_, making] { return make(making); });
  auto made = co_await settled(std::move(making_it));
  if (!made) {
    cause_ = std::move(made).error();
    throw Failure(*cause_);
  }
  group_ = *std::move(made);
}

std::optional<Error> GroupReward::dead_cause() const {
  if (alive() || remakes_ < options_.remakes_max || making_.occupied()) return std::nullopt;
  return group_ != nullptr ? group_->dead_cause() : cause_;
}

}  // namespace troupe::actors

#include "actors/roles/group_world.hpp"

#include "actors/loops/columns.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/roles/canary.hpp"
#include "actors/roles/engine_checkpoint.hpp"
#include "actors/roles/role_meshes.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::task;

namespace {

/// Within what both engines take as one sequence.
CanaryRequest canary_of(const WorldOptions& options) {
  const TrainEngineOptions& engine = options.policy.engine;
  std::int64_t most = std::min(
      options.policy.model.positions_max,
      engine.forward_tokens_max > 0 ? engine.forward_tokens_max : engine.micro_batch_tokens_max);
  if (options.rollout.max_model_tokens > 0)
    most = std::min<std::int64_t>(most, options.rollout.max_model_tokens);
  if (options.publication.canary_tokens == 0 || most < 2) return {};
  return canary_request(options.policy.model.vocab_size, most, options.publication.canary_tokens);
}

}  // namespace

result<std::unique_ptr<GroupWorld>> GroupWorld::create(std::unique_ptr<WorldPlace> place,
                                                       const WorldOptions& options) {
  if (options.devices < 1)
    return fail(ErrorCode::kInvalidArgument, "world: {} devices, wanted at least 1",
                options.devices);
  std::unique_ptr<GroupWorld> world(new GroupWorld(std::move(place)));
  TROUPE_TRY_VOID(world->create_groups(options));
  world->create_roles(options);
  return world;
}

result<void> GroupWorld::create_groups(const WorldOptions& options) {
  model_ = options.policy.model;
  TROUPE_TRY(policy_, place_->make_policy("policy", options.policy));
  if (options.reference) {
    TrainedRole frozen = *options.reference;
    frozen.engine.trainable = false;
    TROUPE_TRY(reference_, place_->make_policy("ref", frozen));
  }
  if (options.critic) {
    TROUPE_TRY(critic_, place_->make_critic(*options.critic));
  }
  TROUPE_TRY(rollout_, place_->make_rollout());
  TROUPE_TRY(reward_, place_->make_reward());
  return {};
}

void GroupWorld::create_roles(const WorldOptions& options) {
  rollout_role_.emplace(*rollout_, options.publication.sleep);
  reward_role_.emplace(*reward_);
  policy_role_.emplace(*policy_,
                       LogProbRequest{.temperature = options.temperature,
                                      .column = std::string(column::kOldLogProbs),
                                      .compare = true},
                       options.policy_update, options.policy.plan);
  weights_role_.emplace(
      *policy_, *rollout_, options.publication, canary_of(options),
      rollout_devices(options.policy.engine.parallel, options.rollout_tp, options.devices));
  if (reference_)
    reference_role_.emplace(*reference_,
                            LogProbRequest{.temperature = options.temperature,
                                           .column = std::string(column::kReferenceLogProbs),
                                           .compare = false},
                            options.policy.plan.balance);
  if (critic_) critic_role_.emplace(*critic_, options.value_update, options.critic->plan);
}

std::optional<Error> GroupWorld::dead_cause() const {
  std::optional<Error> cause;
  const auto look = [&cause](const auto& group) {
    if (!cause && group) cause = group->dead_cause();
  };
  look(policy_);
  look(reference_);
  look(critic_);
  look(rollout_);
  look(reward_);
  return cause;
}

task<void> GroupWorld::save(runtime::CheckpointWriter& writer) {
  co_await save_role(*policy_, "actor", writer);
  if (critic_) co_await save_role(*critic_, "critic", writer);
}

task<void> GroupWorld::load(const runtime::Checkpoint& checkpoint) {
  co_await load_role(*policy_, "actor", checkpoint);
  if (critic_) co_await load_role(*critic_, "critic", checkpoint);
}

task<WeightSet> GroupWorld::policy_weights() {
  co_return co_await gather_weights(*policy_, expected_tensors(model_));
}

}  // namespace troupe::actors

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
  const RolloutPool pool = rollout_pool(options);
  TROUPE_TRY(auto seats, rollout_seats(pool));
  TROUPE_TRY(replicas_, create_replicas(options, std::move(seats), options.streaming));
  if (options.evaluation_devices > 0) {
    TROUPE_TRY(RolloutSeat seat, evaluation_seat(pool));
    TROUPE_TRY(evaluation_, create_replicas(options, {std::move(seat)}, true));
  }
  TROUPE_TRY(reward_role_, GroupReward::create(
                               [place = place_.get()](const GroupMaking& making) {
                                 return place->make_reward(making);
                               },
                               {.remakes_max = options.reward_remakes_max,
                                .create_within = options.create_deadline,
                                .remake_within = options.revive_within,
                                .fetch = options.streaming}));
  if (!options.environment) return {};
  TROUPE_TRY(environment_role_, GroupEnvironment::create(
                                    [place = place_.get()](int seat, const GroupMaking& making) {
                                      return place->make_environment(seat, making);
                                    },
                                    {.ranks = options.environment_workers,
                                     .remakes_max = options.reward_remakes_max,
                                     .create_within = options.create_deadline,
                                     .remake_within = options.revive_within,
                                     .turn_within = options.call_deadline}));
  return {};
}

result<std::unique_ptr<RolloutReplicas>> GroupWorld::create_replicas(const WorldOptions& options,
                                                                     std::vector<RolloutSeat> seats,
                                                                     bool survive) {
  return RolloutReplicas::create(
      [place = place_.get()](const GroupMaking& making, const RolloutSeat& seat) {
        return place->make_rollout(making, seat);
      },
      std::move(seats), publishing_,
      {.survive = survive,
       .revives_max = options.revives_max,
       .create_within = options.create_deadline,
       .revive_within = options.revive_within});
}

void GroupWorld::create_roles(const WorldOptions& options) {
  const bool shared = options.rollout_devices_own == 0 || options.lend_trainer_devices;
  rollout_role_.emplace(*replicas_, options.streaming ? std::nullopt : options.publication.sleep);
  if (options.streaming)
    streaming_role_.emplace(*replicas_, shared ? options.call_deadline : options.advance_within);
  policy_role_.emplace(*policy_,
                       LogProbRequest{.temperature = options.temperature,
                                      .column = std::string(column::kOldLogProbs),
                                      .compare = true,
                                      .cut = options.policy_update.cut},
                       options.policy_update, options.policy.plan);
  transfer_.emplace(*policy_, transfer_options(options.publication));
  weights_role_.emplace(PublicationWay{*policy_, *replicas_, *transfer_, publishing_},
                        options.publication, canary_of(options));
  if (evaluation_)
    evaluator_.emplace(PublicationWay{*policy_, *evaluation_, *transfer_, publishing_},
                       *weights_role_);
  if (reference_)
    reference_role_.emplace(*reference_,
                            LogProbRequest{.temperature = options.temperature,
                                           .column = std::string(column::kReferenceLogProbs),
                                           .compare = false,
                                           .cut = {}},
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
  if (!cause) cause = replicas_->dead_cause();
  if (!cause) cause = reward_role_->dead_cause();
  if (!cause && environment_role_) cause = environment_role_->dead_cause();
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

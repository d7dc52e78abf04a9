#include "actors/roles/local_world.hpp"

#include "actors/loops/columns.hpp"

#include <string>
#include <utility>

namespace troupe::actors {

using runtime::Mesh;
using runtime::task;
using runtime::WorkerContext;
using runtime::WorkerGroup;

namespace {

std::size_t place(const WorkerContext& context) {
  return static_cast<std::size_t>(context.rank().value);
}

}  // namespace

LocalWorld::LocalWorld(const LocalWorldOptions& options) {
  for (int index = 0; index < options.devices; ++index)
    devices_.push_back(std::make_unique<DeviceGate>(DeviceId{index}, options.device_memory));
}

std::vector<runtime::LaneGate*> LocalWorld::gates(const std::string& role, PhaseNeeds needs) {
  std::vector<runtime::LaneGate*> gates;
  for (const auto& device : devices_) {
    role_gates_.push_back(std::make_unique<RoleGate>(*device, role));
    for (const auto& [phase, need] : needs)
      role_gates_.back()->declare(phase, need.resident, need.scratch);
    gates.push_back(role_gates_.back().get());
  }
  return gates;
}

runtime::GroupOptions LocalWorld::group_options(const LocalWorldOptions& options,
                                                const std::string& role, PhaseNeeds needs) {
  runtime::GroupOptions group;
  group.name = role;
  group.mesh = Mesh::data_parallel(options.devices);
  group.lanes = gates(role, std::move(needs));
  group.trace = options.trace;
  group.call_deadline = options.call_deadline;
  return group;
}

result<std::unique_ptr<LocalWorld>> LocalWorld::create(runtime::ActorSystem& system,
                                                       const LocalWorldOptions& options,
                                                       const Tokenizer& tokenizer,
                                                       const RewardRegistry& rules) {
  if (options.devices < 1)
    return fail(ErrorCode::kInvalidArgument, "world: {} devices, wanted at least 1",
                options.devices);
  std::unique_ptr<LocalWorld> world(new LocalWorld(options));
  TROUPE_TRY_VOID(world->create_trained(system, options));
  TROUPE_TRY_VOID(world->create_serving(system, options, tokenizer, rules));
  world->create_roles(options);
  return world;
}

result<void> LocalWorld::create_trained(runtime::ActorSystem& system,
                                        const LocalWorldOptions& options) {
  const auto worker_options = [this](const TrainedRole& role, const WorkerContext& context) {
    return TrainWorkerOptions{.model = role.model,
                              .weights = role.weights,
                              .engine = role.engine,
                              .memory = &devices_[place(context)]->memory()};
  };
  const auto needs = [](const TrainedRole& role) {
    return PhaseNeeds{
        {"log_prob", {{"weights"}, {}}},
        {"values", {{"weights"}, {}}},
        {"train",
         {{"weights", "gradients", "optimizer"}, activation_estimate(role.model, role.engine)}}};
  };
  TROUPE_TRY(policy_, WorkerGroup<PolicyWorker>::create(
                          system, group_options(options, "policy", needs(options.policy)),
                          [&](WorkerContext& context) {
                            return PolicyWorker::create(context,
                                                        worker_options(options.policy, context));
                          }));
  if (options.reference) {
    TrainedRole frozen = *options.reference;
    frozen.engine.trainable = false;
    TROUPE_TRY(reference_,
               WorkerGroup<PolicyWorker>::create(
                   system, group_options(options, "ref", {{"log_prob", {{"weights"}, {}}}}),
                   [&](WorkerContext& context) {
                     return PolicyWorker::create(context, worker_options(frozen, context));
                   }));
  }
  if (options.critic) {
    TROUPE_TRY(critic_, WorkerGroup<CriticWorker>::create(
                            system, group_options(options, "critic", needs(*options.critic)),
                            [&](WorkerContext& context) {
                              return CriticWorker::create(context,
                                                          worker_options(*options.critic, context));
                            }));
  }
  return {};
}

result<void> LocalWorld::create_serving(runtime::ActorSystem& system,
                                        const LocalWorldOptions& options,
                                        const Tokenizer& tokenizer, const RewardRegistry& rules) {
  const PhaseNeeds needs{{"rollout", {{"weights", "kv cache"}, {}}},
                         {"publish", {{"weights"}, {}}}};
  TROUPE_TRY(rollout_,
             WorkerGroup<RolloutWorker>::create(
                 system, group_options(options, "rollout", needs), [&](WorkerContext& context) {
                   return RolloutWorker::create(context,
                                                {.model = options.policy.model,
                                                 .engine = options.rollout,
                                                 .memory = &devices_[place(context)]->memory()});
                 }));
  runtime::GroupOptions reward;
  reward.name = "reward";
  reward.mesh = Mesh::data_parallel(options.reward_workers);
  reward.collectives = false;
  reward.trace = options.trace;
  reward.call_deadline = options.call_deadline;
  TROUPE_TRY(reward_,
             WorkerGroup<RewardWorker>::create(system, std::move(reward), [&](WorkerContext&) {
               return std::make_unique<RewardWorker>(tokenizer, rules, options.reward_rule);
             }));
  return {};
}

void LocalWorld::create_roles(const LocalWorldOptions& options) {
  rollout_role_.emplace(*rollout_);
  reward_role_.emplace(*reward_);
  policy_role_.emplace(*policy_,
                       LogProbRequest{.temperature = options.temperature,
                                      .column = std::string(column::kOldLogProbs),
                                      .compare = true},
                       options.policy_update, options.policy.plan);
  weights_role_.emplace(*policy_, *rollout_);
  if (reference_)
    reference_role_.emplace(*reference_,
                            LogProbRequest{.temperature = options.temperature,
                                           .column = std::string(column::kReferenceLogProbs),
                                           .compare = false},
                            options.policy.plan.balance);
  if (critic_) critic_role_.emplace(*critic_, options.value_update, options.critic->plan);
}

// Arguments have names: g++ 12 copies a braced aggregate inside a co_await expression bit by bit.
task<void> LocalWorld::save(runtime::CheckpointWriter& writer) {
  const CheckpointTarget actor{&writer, "actor"};
  co_await policy_->call<&PolicyWorker::save>(actor);
  const CheckpointTarget critic{&writer, "critic"};
  if (critic_) co_await critic_->call<&CriticWorker::save>(critic);
}

task<void> LocalWorld::load(const runtime::Checkpoint& checkpoint) {
  const CheckpointSource actor{checkpoint, "actor"};
  co_await policy_->call<&PolicyWorker::load>(actor);
  const CheckpointSource critic{checkpoint, "critic"};
  if (critic_) co_await critic_->call<&CriticWorker::load>(critic);
}

task<WeightHandle> LocalWorld::policy_weights() {
  std::vector<WeightHandle> handles =
      co_await policy_->call<&PolicyWorker::weights>(weights_role_->version());
  co_return handles.front();
}

}  // namespace troupe::actors

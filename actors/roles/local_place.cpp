#include "actors/roles/world_place.hpp"

#include <utility>

namespace troupe::actors {
namespace {

using runtime::Mesh;
using runtime::WorkerContext;
using runtime::WorkerGroup;

class LocalPlace final : public WorldPlace {
 public:
  LocalPlace(runtime::ActorSystem& system, const WorldOptions& options, const Tokenizer& tokenizer,
             const RewardRegistry& rules)
      : system_(system), options_(options), tokenizer_(tokenizer), rules_(rules) {
    for (int index = 0; index < options.devices; ++index)
      devices_.push_back(std::make_unique<DeviceGate>(DeviceId{index}, options.device_memory));
  }

  result<WorkerGroup<PolicyWorker>> make_policy(const std::string& name,
                                                const TrainedRole& role) override {
    return make_trained<PolicyWorker>(name, role);
  }
  result<WorkerGroup<CriticWorker>> make_critic(const TrainedRole& role) override {
    return make_trained<CriticWorker>("critic", role);
  }
  result<WorkerGroup<RolloutWorker>> make_rollout() override;
  result<WorkerGroup<RewardWorker>> make_reward() override;
  std::optional<runtime::MemoryLedger> ledger(std::size_t index) const override {
    return devices_[index]->memory().snapshot();
  }

 private:
  template <class W>
  result<WorkerGroup<W>> make_trained(const std::string& name, const TrainedRole& role) {
    runtime::GroupOptions group = group_options(name, trained_phases(role.model, role.engine));
    return WorkerGroup<W>::create(system_, std::move(group), [&](WorkerContext& context) {
      return W::create(context, TrainWorkerOptions{.model = role.model,
                                                   .weights = role.weights,
                                                   .engine = role.engine,
                                                   .memory = memory_of(context),
                                                   .losses = &options_.losses});
    });
  }
  runtime::MemoryBook* memory_of(const WorkerContext& context) {
    return &devices_[static_cast<std::size_t>(context.rank().value)]->memory();
  }
  runtime::GroupOptions plain_options(const std::string& name, int ranks) const;
  runtime::GroupOptions group_options(const std::string& name, const PhaseNeeds& needs);

  runtime::ActorSystem& system_;
  const WorldOptions options_;
  const Tokenizer& tokenizer_;
  const RewardRegistry& rules_;
  std::vector<std::unique_ptr<DeviceGate>> devices_;
  std::vector<std::unique_ptr<RoleGate>> role_gates_;
};

runtime::GroupOptions LocalPlace::plain_options(const std::string& name, int ranks) const {
  runtime::GroupOptions group;
  group.name = name;
  group.mesh = Mesh::data_parallel(ranks);
  group.trace = options_.trace;
  group.call_deadline = options_.call_deadline;
  group.create_deadline = options_.create_deadline;
  return group;
}

runtime::GroupOptions LocalPlace::group_options(const std::string& name, const PhaseNeeds& needs) {
  runtime::GroupOptions group = plain_options(name, options_.devices);
  for (const auto& device : devices_) {
    role_gates_.push_back(std::make_unique<RoleGate>(*device, name));
    for (const auto& [phase, need] : needs)
      role_gates_.back()->declare(phase, need.resident, need.scratch);
    group.lanes.push_back(role_gates_.back().get());
  }
  return group;
}

result<WorkerGroup<RolloutWorker>> LocalPlace::make_rollout() {
  return WorkerGroup<RolloutWorker>::create(
      system_, group_options("rollout", rollout_phases()), [&](WorkerContext& context) {
        return RolloutWorker::create(context, {.model = options_.policy.model,
                                               .engine = options_.rollout,
                                               .memory = memory_of(context)});
      });
}

result<WorkerGroup<RewardWorker>> LocalPlace::make_reward() {
  runtime::GroupOptions group = plain_options("reward", options_.reward_workers);
  group.collectives = false;
  return WorkerGroup<RewardWorker>::create(system_, std::move(group), [&](WorkerContext&) {
    return std::make_unique<RewardWorker>(tokenizer_, rules_, options_.reward_rule);
  });
}

}  // namespace

std::unique_ptr<WorldPlace> make_local_place(runtime::ActorSystem& system,
                                             const WorldOptions& options,
                                             const Tokenizer& tokenizer,
                                             const RewardRegistry& rules) {
  return std::make_unique<LocalPlace>(system, options, tokenizer, rules);
}

}  // namespace troupe::actors

#include "actors/roles/role_meshes.hpp"
#include "actors/roles/world_place.hpp"

#include <mutex>
#include <type_traits>
#include <utility>

namespace troupe::actors {
namespace {

using runtime::Mesh;
using runtime::WorkerContext;
using runtime::WorkerGroup;

class LocalPlace final : public WorldPlace {
 public:
  LocalPlace(runtime::ActorSystem& system, const WorldOptions& options, const Tokenizer& tokenizer,
             const RewardRegistry& rules, EnvironmentRegistry environments)
      : system_(system),
        options_(options),
        tokenizer_(tokenizer),
        rules_(rules),
        environments_(std::move(environments)) {
    for (int index = 0; index < world_devices(options); ++index)
      devices_.push_back(std::make_unique<DeviceGate>(DeviceId{index}, options.device_memory));
  }

  result<WorkerGroup<PolicyWorker>> make_policy(const std::string& name,
                                                const TrainedRole& role) override {
    return make_trained(name, role, [this](WorkerContext& context, const auto& options) {
      return PolicyWorker::create(context, options, seat());
    });
  }
  result<WorkerGroup<CriticWorker>> make_critic(const TrainedRole& role) override {
    return make_trained("critic", role, [](WorkerContext& context, const auto& options) {
      return CriticWorker::create(context, options);
    });
  }
  result<WorkerGroup<RolloutWorker>> make_rollout(const GroupMaking& making,
                                                  const RolloutSeat& place) override;
  result<WorkerGroup<RewardWorker>> make_reward(const GroupMaking& making) override;
  result<WorkerGroup<EnvironmentWorker>> make_environment(int index,
                                                          const GroupMaking& making) override;
  std::optional<runtime::MemoryLedger> ledger(std::size_t index) const override {
    return devices_[index]->memory().snapshot();
  }

 private:
  template <class Create>
  auto make_trained(const std::string& name, const TrainedRole& role, Create create)
      -> result<WorkerGroup<typename std::invoke_result_t<
          Create, WorkerContext&, const TrainWorkerOptions&>::value_type::element_type>> {
    using Worker =
        typename std::invoke_result_t<Create, WorkerContext&,
                                      const TrainWorkerOptions&>::value_type::element_type;
    TROUPE_TRY(Mesh mesh, train_mesh(role.engine.parallel, options_.devices));
    runtime::GroupOptions group =
        with_turns(role_group(options_, name, std::move(mesh)),
                   trained_phases(role.model, role.engine), devices_from(0, options_.devices));
    return WorkerGroup<Worker>::create(system_, std::move(group), [&](WorkerContext& context) {
      return create(context, TrainWorkerOptions{.model = role.model,
                                                .weights = role.weights,
                                                .engine = role.engine,
                                                .memory = memory_of(context),
                                                .losses = &options_.losses});
    });
  }
  WeightSeat seat() const { return {.port = port_.get()}; }
  runtime::MemoryBook* memory_of(const WorkerContext& context) {
    return &devices_[static_cast<std::size_t>(context.rank().value)]->memory();
  }
  /// The group with its turns on `devices`, those of each rank.
  runtime::GroupOptions with_turns(runtime::GroupOptions group, const PhaseNeeds& needs,
                                   const std::vector<int>& devices);

  runtime::ActorSystem& system_;
  const WorldOptions options_;
  const Tokenizer& tokenizer_;
  const RewardRegistry& rules_;
  const EnvironmentRegistry environments_;
  std::vector<std::unique_ptr<DeviceGate>> devices_;
  std::mutex gates_mutex_;                             // guards role_gates_
  std::vector<std::unique_ptr<RoleGate>> role_gates_;  // of dead groups too: turns may be left
  std::unique_ptr<reshard::WeightPort> port_ = reshard::WeightPort::local();
};

runtime::GroupOptions LocalPlace::with_turns(runtime::GroupOptions group, const PhaseNeeds& needs,
                                             const std::vector<int>& devices) {
  const std::lock_guard lock(gates_mutex_);
  for (const int device : devices) {
    role_gates_.push_back(
        std::make_unique<RoleGate>(*devices_[static_cast<std::size_t>(device)], group.name));
    for (const auto& [phase, need] : needs)
      role_gates_.back()->declare(phase, need.resident, need.scratch);
    group.lanes.push_back(role_gates_.back().get());
  }
  return group;
}

result<WorkerGroup<RolloutWorker>> LocalPlace::make_rollout(const GroupMaking& making,
                                                            const RolloutSeat& place) {
  const auto ranks = static_cast<int>(place.devices.size());
  TROUPE_TRY(Mesh mesh, rollout_mesh(options_.rollout_tp, ranks));
  runtime::GroupOptions group = with_turns(
      role_group(options_, place.name, std::move(mesh), making), rollout_phases(), place.devices);
  return WorkerGroup<RolloutWorker>::create(
      system_, std::move(group), [this, devices = place.devices](WorkerContext& context) {
        const int device = devices[static_cast<std::size_t>(context.rank().value)];
        return RolloutWorker::create(
            context, {.model = options_.policy.model,
                      .engine = options_.rollout,
                      .memory = &devices_[static_cast<std::size_t>(device)]->memory(),
                      .seat = seat(),
                      .delay = options_.rollout_delay});
      });
}

result<WorkerGroup<RewardWorker>> LocalPlace::make_reward(const GroupMaking& making) {
  runtime::GroupOptions group = judge_group(options_, "reward", options_.reward_workers, making);
  return WorkerGroup<RewardWorker>::create(
      system_, std::move(group), [this](WorkerContext& context) {
        return std::make_unique<RewardWorker>(
            tokenizer_, rules_,
            RewardWorkerOptions{.rule = options_.reward_rule,
                                .report_failed = options_.reward_report_failed,
                                .context = &context});
      });
}

result<WorkerGroup<EnvironmentWorker>> LocalPlace::make_environment(int index,
                                                                    const GroupMaking& making) {
  runtime::GroupOptions group =
      judge_group(options_, "environment-" + std::to_string(index), 1, making);
  return WorkerGroup<EnvironmentWorker>::create(
      system_, std::move(group), [this](WorkerContext& context) {
        return EnvironmentWorker::create(context, tokenizer_, environments_, *options_.environment);
      });
}

}  // namespace

std::unique_ptr<WorldPlace> make_local_place(runtime::ActorSystem& system,
                                             const WorldOptions& options,
                                             const Tokenizer& tokenizer,
                                             const RewardRegistry& rules,
                                             EnvironmentRegistry environments) {
  return std::make_unique<LocalPlace>(system, options, tokenizer, rules, std::move(environments));
}

}  // namespace troupe::actors

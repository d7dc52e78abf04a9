#include "actors/roles/role_meshes.hpp"
#include "actors/roles/world_place.hpp"

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
             const RewardRegistry& rules)
      : system_(system), options_(options), tokenizer_(tokenizer), rules_(rules) {
    for (int index = 0; index < options.devices; ++index)
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
  result<WorkerGroup<RolloutWorker>> make_rollout() override;
  result<WorkerGroup<RewardWorker>> make_reward() override;
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
        group_options(name, std::move(mesh), trained_phases(role.model, role.engine));
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
  runtime::GroupOptions plain_options(const std::string& name, Mesh mesh) const;
  runtime::GroupOptions group_options(const std::string& name, Mesh mesh, const PhaseNeeds& needs);

  runtime::ActorSystem& system_;
  const WorldOptions options_;
  const Tokenizer& tokenizer_;
  const RewardRegistry& rules_;
  std::vector<std::unique_ptr<DeviceGate>> devices_;
  std::vector<std::unique_ptr<RoleGate>> role_gates_;
  std::unique_ptr<reshard::WeightPort> port_ = reshard::WeightPort::local();
};

runtime::GroupOptions LocalPlace::plain_options(const std::string& name, Mesh mesh) const {
  runtime::GroupOptions group;
  group.name = name;
  group.mesh = std::move(mesh);
  group.trace = options_.trace;
  group.call_deadline = options_.call_deadline;
  group.create_deadline = options_.create_deadline;
  return group;
}

runtime::GroupOptions LocalPlace::group_options(const std::string& name, Mesh mesh,
                                                const PhaseNeeds& needs) {
  runtime::GroupOptions group = plain_options(name, std::move(mesh));
  for (const auto& device : devices_) {
    role_gates_.push_back(std::make_unique<RoleGate>(*device, name));
    for (const auto& [phase, need] : needs)
      role_gates_.back()->declare(phase, need.resident, need.scratch);
    group.lanes.push_back(role_gates_.back().get());
  }
  return group;
}

result<WorkerGroup<RolloutWorker>> LocalPlace::make_rollout() {
  TROUPE_TRY(Mesh mesh, rollout_mesh(options_.rollout_tp, options_.devices));
  const std::vector<int> devices =
      rollout_devices(options_.policy.engine.parallel, options_.rollout_tp, options_.devices);
  runtime::GroupOptions group = group_options("rollout", std::move(mesh), rollout_phases());
  const std::vector<runtime::LaneGate*> lanes = std::exchange(group.lanes, {});
  for (const int device : devices) group.lanes.push_back(lanes[static_cast<std::size_t>(device)]);
  return WorkerGroup<RolloutWorker>::create(system_, std::move(group), [&](WorkerContext& context) {
    const int device = devices[static_cast<std::size_t>(context.rank().value)];
    return RolloutWorker::create(context,
                                 {.model = options_.policy.model,
                                  .engine = options_.rollout,
                                  .memory = &devices_[static_cast<std::size_t>(device)]->memory(),
                                  .seat = seat()});
  });
}

result<WorkerGroup<RewardWorker>> LocalPlace::make_reward() {
  runtime::GroupOptions group =
      plain_options("reward", Mesh::data_parallel(options_.reward_workers));
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

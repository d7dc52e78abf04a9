#include "actors/roles/role_meshes.hpp"
#include "actors/roles/world_place.hpp"
#include "runtime/group/cluster_job.hpp"

#include <utility>

namespace troupe::actors {
namespace {

using runtime::Mesh;
using runtime::RemoteProgram;
using runtime::WorkerGroup;

class ClusterPlace final : public WorldPlace {
 public:
  ClusterPlace(ClusterPool pool, const WorldOptions& options)
      : pool_(std::move(pool)), options_(options) {
    if (pool_.bundles.empty()) pool_.bundles = devices_from(0, world_devices(options_));
  }

  result<WorkerGroup<PolicyWorker>> make_policy(const std::string& name,
                                                const TrainedRole& role) override {
    TROUPE_TRY(Mesh mesh, train_mesh(role.engine.parallel, options_.devices));
    return make<PolicyWorker>(name, role_group(options_, name, std::move(mesh)),
                              TrainSpec{role.source, role.engine},
                              devices_from(0, options_.devices));
  }
  result<WorkerGroup<CriticWorker>> make_critic(const TrainedRole& role) override {
    TROUPE_TRY(Mesh mesh, train_mesh(role.engine.parallel, options_.devices));
    return make<CriticWorker>(kCriticProgram, role_group(options_, "critic", std::move(mesh)),
                              TrainSpec{role.source, role.engine},
                              devices_from(0, options_.devices));
  }
  result<WorkerGroup<RolloutWorker>> make_rollout(const GroupMaking& making,
                                                  const RolloutSeat& place) override {
    const auto ranks = static_cast<int>(place.devices.size());
    TROUPE_TRY(Mesh mesh, rollout_mesh(options_.rollout_tp, ranks));
    return make<RolloutWorker>(
        kRolloutProgram, role_group(options_, place.name, std::move(mesh), making),
        RolloutSpec{options_.policy.source, options_.rollout, options_.rollout_delay},
        place.devices);
  }
  result<WorkerGroup<RewardWorker>> make_reward(const GroupMaking& making) override;
  result<WorkerGroup<EnvironmentWorker>> make_environment(int seat,
                                                          const GroupMaking& making) override;
  std::optional<runtime::MemoryLedger> ledger(std::size_t) const override {
    return std::nullopt;  // the agents keep them
  }

 private:
  template <class Spec>
  result<RemoteProgram> program(const std::string& name, const Spec& spec, int ranks) const {
    RemoteProgram out;
    out.name = name;
    TROUPE_TRY(out.spec, runtime::encode_value(spec));
    out.reservation = pool_.reservation;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank)
      out.bundles.push_back(pool_.bundles[rank % pool_.bundles.size()]);
    return out;
  }
  /// `devices`: of each rank.
  template <class W, class Spec>
  result<WorkerGroup<W>> make(const std::string& name, runtime::GroupOptions options,
                              const Spec& spec, const std::vector<int>& devices) {
    TROUPE_TRY(RemoteProgram wanted, program(name, spec, static_cast<int>(devices.size())));
    for (std::size_t rank = 0; rank < devices.size(); ++rank) {
      const auto device = static_cast<std::size_t>(devices[rank]);
      wanted.bundles[rank] = pool_.bundles[device % pool_.bundles.size()];
      if (!pool_.lanes.empty()) options.lanes.push_back(pool_.lanes[device]);
    }
    return WorkerGroup<W>::create(*pool_.job, std::move(options), std::move(wanted));
  }

  ClusterPool pool_;
  const WorldOptions options_;
};

result<WorkerGroup<RewardWorker>> ClusterPlace::make_reward(const GroupMaking& making) {
  const RewardSpec spec{options_.policy.source.tokenizer_folder, options_.reward_rule,
                        options_.reward_commands, options_.reward_report_failed};
  TROUPE_TRY(RemoteProgram wanted, program(kRewardProgram, spec, options_.reward_workers));
  return WorkerGroup<RewardWorker>::create(
      *pool_.job, judge_group(options_, "reward", options_.reward_workers, making),
      std::move(wanted));
}

result<WorkerGroup<EnvironmentWorker>> ClusterPlace::make_environment(int seat,
                                                                      const GroupMaking& making) {
  const EnvironmentSpec spec{options_.policy.source.tokenizer_folder, *options_.environment,
                             options_.environment_commands};
  TROUPE_TRY(RemoteProgram wanted, program(kEnvironmentProgram, spec, 1));
  wanted.bundles = {pool_.bundles[static_cast<std::size_t>(seat) % pool_.bundles.size()]};
  return WorkerGroup<EnvironmentWorker>::create(
      *pool_.job, judge_group(options_, "environment-" + std::to_string(seat), 1, making),
      std::move(wanted));
}

}  // namespace

std::unique_ptr<WorldPlace> make_cluster_place(ClusterPool pool, const WorldOptions& options) {
  return std::make_unique<ClusterPlace>(std::move(pool), options);
}

}  // namespace troupe::actors

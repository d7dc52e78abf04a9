#include "actors/roles/role_programs.hpp"

#include "actors/roles/critic_worker.hpp"
#include "actors/roles/environment_worker.hpp"
#include "actors/roles/policy_worker.hpp"
#include "actors/roles/reward_worker.hpp"
#include "actors/roles/role_specs.hpp"
#include "actors/roles/rollout_worker.hpp"
#include "actors/text/tokenizer.hpp"
#include "runtime/cluster/agent_lanes.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/comm/collective_gloo.hpp"
#include "runtime/group/host_clock.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

namespace troupe::actors {
namespace {

using runtime::WorkerContext;
using SpecBytes = std::span<const std::byte>;

/// What the one worker of this process uses and does not own.
struct RankParts {
  RoleRegistries registries;
  std::shared_ptr<runtime::AgentLanes> lanes;  // null without an agent
  std::string address;                         // of this host towards its controller
  std::optional<Tokenizer> tokenizer;

  /// Hosts differ in the boot of their kernel, or are containers with addresses of their own.
  WeightSeat seat() const {
    return {.port = nullptr, .host = runtime::host_boot_id() + " " + address, .address = address};
  }
  void declare(const PhaseNeeds& needs) const {
    if (!lanes) return;
    for (const auto& [phase, need] : needs) lanes->declare(phase, need.resident, need.scratch);
  }
  result<void> open_tokenizer(const std::string& folder) {
    TROUPE_TRY(tokenizer, Tokenizer::load(folder));
    return {};
  }
};

template <class Create>
auto make_trained(RankParts& parts, SpecBytes spec, Create create)
    -> std::invoke_result_t<Create, const TrainWorkerOptions&> {
  TROUPE_TRY(const TrainSpec wanted, runtime::decode_value<TrainSpec>(spec));
  TROUPE_TRY(const OpenedModel model, open_model(wanted.model));
  parts.declare(trained_phases(model.config, wanted.engine));
  return create(TrainWorkerOptions{.model = model.config,
                                   .weights = model.weights.tensors(),
                                   .engine = wanted.engine,
                                   .memory = parts.lanes.get(),
                                   .losses = &parts.registries.losses});
}

result<std::unique_ptr<RolloutWorker>> make_rollout(RankParts& parts, WorkerContext& context,
                                                    SpecBytes spec) {
  TROUPE_TRY(const RolloutSpec wanted, runtime::decode_value<RolloutSpec>(spec));
  TROUPE_TRY(const ModelConfig model, config_of(wanted.model));
  parts.declare(rollout_phases());
  RolloutWorker::Options options{.model = model,
                                 .engine = wanted.engine,
                                 .memory = parts.lanes.get(),
                                 .seat = parts.seat(),
                                 .delay = wanted.delay};
  if (!wanted.model.tokenizer_folder.empty()) {
    TROUPE_TRY_VOID(parts.open_tokenizer(wanted.model.tokenizer_folder));
    options.engine.token_bytes = [&parts](std::int32_t id) {
      return parts.tokenizer->token_bytes(id);
    };
  }
  return RolloutWorker::create(context, options);
}

result<std::unique_ptr<RewardWorker>> make_reward(RankParts& parts, WorkerContext& context,
                                                  SpecBytes spec) {
  TROUPE_TRY(const RewardSpec wanted, runtime::decode_value<RewardSpec>(spec));
  TROUPE_TRY_VOID(parts.open_tokenizer(wanted.tokenizer_folder));
  TROUPE_TRY_VOID(add_command_rewards(parts.registries.rewards, wanted.commands));
  return std::make_unique<RewardWorker>(
      *parts.tokenizer, parts.registries.rewards,
      RewardWorkerOptions{
          .rule = wanted.rule, .report_failed = wanted.report_failed, .context = &context});
}

result<std::unique_ptr<EnvironmentWorker>> make_environment(RankParts& parts,
                                                            WorkerContext& context,
                                                            SpecBytes spec) {
  TROUPE_TRY(const EnvironmentSpec wanted, runtime::decode_value<EnvironmentSpec>(spec));
  TROUPE_TRY_VOID(parts.open_tokenizer(wanted.tokenizer_folder));
  TROUPE_TRY_VOID(add_command_environments(parts.registries.environments, wanted.commands));
  return EnvironmentWorker::create(context, *parts.tokenizer, parts.registries.environments,
                                   wanted.options);
}

result<std::unique_ptr<runtime::Collective>> make_collective(const runtime::CollectiveSite& site,
                                                             Deadline deadline) {
  if (site.size == 1) return std::move(runtime::make_local_group(1, {.name = site.group}).front());
  const runtime::GlooGroupOptions options{
      .name = site.group, .rank = site.rank, .size = site.size, .host = site.host};
  return runtime::make_gloo_collective(options, site.store, deadline);
}

}  // namespace

void add_role_programs(runtime::RankPrograms& programs, RoleRegistries registries) {
  auto parts = std::make_shared<RankParts>();
  parts->registries = std::move(registries);
  for (const char* name : {kPolicyProgram, kReferenceProgram}) {
    programs.add<PolicyWorker>(name, [parts](WorkerContext& context, SpecBytes spec) {
      return make_trained(*parts, spec, [&](const TrainWorkerOptions& options) {
        return PolicyWorker::create(context, options, parts->seat());
      });
    });
  }
  programs.add<CriticWorker>(kCriticProgram, [parts](WorkerContext& context, SpecBytes spec) {
    return make_trained(*parts, spec, [&](const TrainWorkerOptions& options) {
      return CriticWorker::create(context, options);
    });
  });
  programs.add<RolloutWorker>(kRolloutProgram, [parts](WorkerContext& context, SpecBytes spec) {
    return make_rollout(*parts, context, spec);
  });
  programs.add<RewardWorker>(kRewardProgram, [parts](WorkerContext& context, SpecBytes spec) {
    return make_reward(*parts, context, spec);
  });
  programs.add<EnvironmentWorker>(kEnvironmentProgram,
                                  [parts](WorkerContext& context, SpecBytes spec) {
                                    return make_environment(*parts, context, spec);
                                  });
  programs.set_collectives([parts](const runtime::CollectiveSite& site, Deadline deadline) {
    parts->address = site.host;  // the ranks meet before their workers are made
    return make_collective(site, deadline);
  });
  programs.set_agent_parts(
      [parts](runtime::Ref<runtime::Channel> agent,
              const runtime::RankRecord& record) -> result<runtime::AgentParts> {
        const int device = record.devices.empty() ? 0 : record.devices.front();
        parts->lanes = std::make_shared<runtime::AgentLanes>(
            std::move(agent), runtime::AgentLanes::Options{.job = record.job, .device = device});
        return runtime::AgentParts{.lanes = parts->lanes,
                                   .services = {{"memory.", parts->lanes->service()}}};
      });
}

}  // namespace troupe::actors

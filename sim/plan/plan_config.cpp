#include "sim/plan/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <numeric>
#include <string_view>

namespace troupe::sim {
namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;

class Overrides {
 public:
  template <class T>
  void set(std::string_view key, const T& value) {
    all.push_back(fmt::format("{}={}", key, value));
  }
  std::vector<std::string> all;
};

/// Keys of one trained or frozen role.
void add_layout(Overrides& overrides, PlanRole role, const TrainLayout& layout) {
  const std::string at = role == PlanRole::kCritic      ? "critic"
                         : role == PlanRole::kReference ? "actor_rollout_ref.ref"
                                                        : "actor_rollout_ref.actor";
  const bool fsdp = layout.sharding == TrainSharding::kFsdp;
  overrides.set(at + ".strategy", fsdp ? "fsdp" : "megatron");
  overrides.set(at + ".fsdp_config.fsdp_size", -1);
  overrides.set(at + ".megatron.tensor_model_parallel_size", layout.tp);
  overrides.set(at + ".megatron.pipeline_model_parallel_size", layout.pp);
  overrides.set(at + ".megatron.virtual_pipeline_model_parallel_size", layout.virtual_stages);
  overrides.set(at + ".megatron.pipeline_layers", "null");
  if (role == PlanRole::kReference) {
    overrides.set(at + ".log_prob_max_token_len_per_gpu", layout.micro_batch_tokens);
    return;
  }
  overrides.set(at + ".megatron.use_distributed_optimizer", !fsdp);
  overrides.set(at + ".ppo_max_token_len_per_gpu", layout.micro_batch_tokens);
  overrides.set(role == PlanRole::kCritic ? "critic.model.enable_gradient_checkpointing"
                                          : "actor_rollout_ref.model.enable_gradient_checkpointing",
                layout.recompute == Recompute::kAll);
}

/// Devices that the configuration's own rules can cut for every role.
int run_devices(const PlanRequest& request, const Candidate& candidate) {
  int devices = candidate.set_of(PlanRole::kPolicy).devices;
  if (candidate.is_runnable()) return devices;
  for (const PlanRole role : request.roles()) {
    const TrainLayout& layout = candidate.layouts[static_cast<std::size_t>(role)];
    devices =
        std::lcm(devices, role == PlanRole::kRollout ? candidate.engine.tp : layout.tp * layout.pp);
  }
  return devices;
}

void add_sets(Overrides& overrides, const PlanRequest& request, const Candidate& candidate) {
  std::vector<std::string> sets;
  for (const PlannedSet& set : candidate.sets) {
    std::vector<std::string_view> roles;
    for (const PlanRole role : set.roles) roles.push_back(plan_role_name(role));
    sets.push_back(fmt::format("\"{}:{}:{}\"", fmt::join(roles, "+"), set.devices,
                               request.offers[set.offer].device.name));
  }
  overrides.set("simulation.sets", fmt::format("[{}]", fmt::join(sets, ", ")));
}

}  // namespace

std::vector<std::string> overrides_of(const PlanRequest& request, const Candidate& candidate) {
  Overrides overrides;
  const bool ahead = candidate.mode != SimMode::kSynchronous;
  const PlannedSet& trained = candidate.set_of(PlanRole::kPolicy);
  const PlannedSet& rollout = candidate.set_of(PlanRole::kRollout);
  const DeviceSpec& device = request.offers[trained.offer].device;
  const int devices = run_devices(request, candidate);
  const bool whole = devices >= device.per_node && devices % device.per_node == 0;
  overrides.set("trainer.mode", sim_mode_name(candidate.mode));
  overrides.set("trainer.nnodes", whole ? devices / device.per_node : 1);
  overrides.set("trainer.n_gpus_per_node", whole ? device.per_node : devices);
  overrides.set("cluster.strategy", placement::strategy_name(candidate.strategy));
  if (ahead) {
    overrides.set("async.staleness", candidate.staleness);
    overrides.set("trainer.rollout_devices", rollout.devices);
  }
  for (const PlanRole role : request.roles())
    if (role != PlanRole::kRollout)
      add_layout(overrides, role, candidate.layouts[static_cast<std::size_t>(role)]);
  const std::string engine = "actor_rollout_ref.rollout.";
  overrides.set(engine + "tensor_model_parallel_size", candidate.engine.tp);
  const auto cost =
      DecodeCost::create(request.base.policy.model, request.offers[rollout.offer].device,
                         candidate.engine, request.base.constants);
  if (cost) {
    const double bytes = static_cast<double>(candidate.kv_tokens) * cost->kv_token_bytes();
    overrides.set(engine + "kv_cache_mb", static_cast<std::int64_t>(std::ceil(bytes / kMebibyte)));
  }
  const StepWindow window = window_of(request, candidate);
  overrides.set("simulation.steps", window.steps);
  overrides.set("simulation.warm_up_steps", window.warm_up);
  overrides.set("simulation.device", device.name);
  overrides.set("simulation.kv_tokens", 0);
  overrides.set("simulation.expert_parallel_size", candidate.layouts[0].ep);
  if (candidate.is_runnable()) {
    overrides.set("simulation.sets", "[]");
    if (ahead)
      overrides.set("simulation.rollout_device", request.offers[rollout.offer].device.name);
  } else {
    add_sets(overrides, request, candidate);
    overrides.set("simulation.side_by_side", candidate.sets.size() > 1);
  }
  return overrides.all;
}

}  // namespace troupe::sim

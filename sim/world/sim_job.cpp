#include "sim/world/sim_job.hpp"

#include "runtime/config/suggest.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace troupe::sim {
namespace {

constexpr std::array<std::string_view, 4> kModes{"sync", "one_step_off", "async", "pipelined"};

result<void> check_pool(const SimJob& job, std::size_t pool, int devices, const char* role) {
  if (pool >= job.pools.size())
    return fail(ErrorCode::kInvalidArgument, "simulation: {} sits on pool {}, there are {}", role,
                pool, job.pools.size());
  if (devices > job.pools[pool].devices)
    return fail(ErrorCode::kInvalidArgument,
                "simulation: {} wants {} devices of pool {}, which has {}", role, devices,
                job.pools[pool].name, job.pools[pool].devices);
  return {};
}

/// Calls `visit(name, role, frozen)` for each trained role that there is.
template <class Visit>
void for_each_role(const SimJob& job, Visit visit) {
  visit("policy", job.policy, false);
  if (job.reference) visit("reference", *job.reference, true);
  if (job.critic) visit("critic", *job.critic, false);
  if (job.reward_model) visit("reward_model", *job.reward_model, true);
}

/// The first of `values` that is not finite or below its least value, by name.
struct Bounded {
  const char* name;
  double value;
  double least;
  double most = 1e18;
};

result<void> check_bounds(std::initializer_list<Bounded> all) {
  for (const Bounded& one : all)
    if (!(one.value >= one.least && one.value <= one.most))
      return fail(ErrorCode::kInvalidArgument, "simulation: {} is {}, the nearest possible is {}",
                  one.name, one.value, one.value > one.most ? one.most : one.least);
  return {};
}

/// What the world is told to do beside its cost models.
result<void> check_declared(const SimJob& job) {
  TROUPE_TRY_VOID(check_bounds({
      {"stragglers.replica_share", job.stragglers.replica_share, 0, 1},
      {"stragglers.replica_factor", job.stragglers.replica_factor, 1},
      {"stragglers.step_share", job.stragglers.step_share, 0, 1},
      {"stragglers.step_factor", job.stragglers.step_factor, 1},
      {"failures.rollout_mtbf_s", job.failures.rollout_mtbf_s, 0},
      {"failures.rollout_restart_s", job.failures.rollout_restart_s, 0},
      {"failures.trainer_mtbf_s", job.failures.trainer_mtbf_s, 0},
      {"failures.trainer_restart_s", job.failures.trainer_restart_s, 0},
      {"failures.restarts_max", static_cast<double>(job.failures.restarts_max), 0},
      {"checkpoints.every_steps", static_cast<double>(job.checkpoints.every_steps), 0},
      {"checkpoints.bytes", job.checkpoints.bytes, 0},
      {"checkpoints.rate", job.checkpoints.rate, 1},
      {"controller.row_tokens", static_cast<double>(job.controller.row_tokens), 0},
      {"controller.token_bytes", job.controller.token_bytes, 0},
  }));
  if (!job.environment) return {};
  const SimEnvironment& environment = *job.environment;
  return check_bounds({
      {"environment.turns_min", static_cast<double>(environment.turns_min), 1},
      {"environment.turns_max", static_cast<double>(environment.turns_max),
       static_cast<double>(environment.turns_min)},
      {"environment.turn_s", environment.turn_s, 0},
      {"environment.sigma", environment.sigma, 0},
      {"environment.tokens_a_turn", static_cast<double>(environment.tokens_a_turn), 1},
      {"environment.workers", static_cast<double>(environment.workers), 1},
  });
}

/// What the loop of the mode cannot do.
result<void> check_mode(const SimJob& job) {
  TROUPE_TRY_VOID(check_bounds({{"steps", static_cast<double>(job.steps), 1}}));
  if (job.mode == SimMode::kSynchronous) {
    if (job.environment)
      return fail(ErrorCode::kUnsupported,
                  "simulation: mode sync has no environments; async with staleness 0 has");
    if (job.failures.rollout_mtbf_s > 0)
      return fail(ErrorCode::kUnsupported,
                  "simulation: mode sync does not replace rollout replicas; async with staleness "
                  "0 does");
    return {};
  }
  if (job.reward_model && job.reward_model->pool == job.rollout.pool)
    return fail(ErrorCode::kUnsupported,
                "simulation: mode {} scores while engines generate; the reward model and the "
                "rollout share pool {}, wanted two",
                sim_mode_name(job.mode), job.rollout.pool);
  TROUPE_TRY_VOID(check_bounds({
      {"pacing.ledger.lead_max", static_cast<double>(job.pacing.ledger.lead_max), 0},
      {"pacing.groups_per_part", static_cast<double>(job.pacing.groups_per_part), 1},
      {"pacing.slice_max_s", job.pacing.slice_max_s, 0.02},
  }));
  actors::LedgerOptions ledger = job.pacing.ledger;
  ledger.groups_per_step = job.prompts_per_step;
  return ledger.check();
}

}  // namespace

std::string_view sim_mode_name(SimMode mode) { return kModes[static_cast<std::size_t>(mode)]; }

result<SimMode> sim_mode_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kModes.size(); ++i)
    if (kModes[i] == name) return static_cast<SimMode>(i);
  const auto near = runtime::nearest_name(name, {kModes.begin(), kModes.end()});
  return fail(ErrorCode::kNotFound, "no mode {}{}", name,
              near ? fmt::format(", did you mean {}?", *near)
                   : fmt::format(", there are {}", fmt::join(kModes, ", ")));
}

std::string_view kv_at_update_name(KvAtUpdate kv) {
  return kv == KvAtUpdate::kKeep ? "keep" : "recompute";
}

double PoolMemory::peak() const {
  double kept = 0;
  for (const Entry& entry : entries) kept += entry.kept_bytes;
  double most = 0;
  for (const Entry& entry : entries) most = std::max(most, entry.bytes - entry.kept_bytes);
  return kept + most;
}

std::vector<PoolMemory> memory_of(const SimJob& job) {
  std::vector<PoolMemory> pools;
  for (const DevicePool& pool : job.pools)
    pools.push_back({.pool = pool.name, .device_bytes = pool.device.memory_bytes, .entries = {}});
  for_each_role(job, [&](const char* name, const SimTrainedRole& role, bool frozen) {
    const auto cost =
        TrainCost::create(role.model, job.pools[role.pool].device, role.layout, job.constants);
    if (!cost) return;
    const TrainMemory memory = cost->memory(frozen);
    // Activations and gradients go when others work; weights and moments stay, or go to the host.
    const double kept = role.layout.offload_idle ? 0 : memory.weights + memory.optimizer;
    pools[role.pool].entries.push_back({.role = name, .bytes = memory.total(), .kept_bytes = kept});
  });
  const auto cost = DecodeCost::create(job.policy.model, job.pools[job.rollout.pool].device,
                                       job.rollout.layout, job.constants);
  if (!cost) return pools;
  const double workspace = job.constants[Constant::kEngineWorkspace];
  const double least = cost->weight_bytes() + workspace;
  pools[job.rollout.pool].entries.push_back(
      {.role = "rollout",
       .bytes = least,
       .kept_bytes = job.rollout.layout.sleeps ? 0 : cost->weight_bytes()});
  return pools;
}

result<void> SimJob::check() const {
  if (prompts_per_step < 1 || group_size < 1 || minibatch_prompts < 1 || epochs < 1 ||
      rollout.replicas < 1)
    return fail(ErrorCode::kInvalidArgument,
                "simulation: {} prompts a step, {} samples each, mini-batches of {}, {} epochs, {} "
                "replicas; wanted at least 1 of each",
                prompts_per_step, group_size, minibatch_prompts, epochs, rollout.replicas);
  for (const DevicePool& pool : pools) {
    TROUPE_TRY_VOID(pool.device.validate());
    if (pool.devices < 1)
      return fail(ErrorCode::kInvalidArgument, "simulation: pool {} has {} devices", pool.name,
                  pool.devices);
  }
  result<void> checked;
  for_each_role(*this, [&](const char* name, const SimTrainedRole& role, bool) {
    if (!checked) return;
    checked = check_pool(*this, role.pool, role.layout.devices(), name);
    if (!checked) return;
    const auto cost =
        TrainCost::create(role.model, pools[role.pool].device, role.layout, constants);
    if (!cost) checked = fail(Error(cost.error()).wrap(cost.error().code, name));
  });
  TROUPE_TRY_VOID(checked);
  TROUPE_TRY_VOID(check_pool(*this, rollout.pool, rollout.replicas * rollout.layout.tp, "rollout"));
  TROUPE_TRY(const DecodeCost decode, DecodeCost::create(policy.model, pools[rollout.pool].device,
                                                         rollout.layout, constants));
  if (rollout.engine.kv_tokens == 0) {
    TROUPE_TRY([[maybe_unused]] const std::int64_t tokens, decode.kv_tokens());
  }
  TROUPE_TRY_VOID(check_mode(*this));
  TROUPE_TRY_VOID(check_declared(*this));
  TROUPE_TRY_VOID(prompt_lengths.check());
  TROUPE_TRY_VOID(answer_lengths.check());
  if (!(reward.sample_s >= 0) || !(reward.sigma >= 0) || reward.workers < 1)
    return fail(ErrorCode::kInvalidArgument,
                "simulation: rewards of {} s, sigma {}, {} workers; wanted at least 0, 0 and 1",
                reward.sample_s, reward.sigma, reward.workers);
  for (const PoolMemory& pool : memory_of(*this)) {
    if (pool.peak() <= pool.device_bytes) continue;
    std::string entries;
    for (const PoolMemory::Entry& entry : pool.entries)
      entries += fmt::format("{}{} {:.1f} GB ({:.1f} kept)", entries.empty() ? "" : ", ",
                             entry.role, entry.bytes / 1e9, entry.kept_bytes / 1e9);
    return fail(ErrorCode::kResourceExhausted,
                "simulation: pool {} needs {:.1f} GB on a device of {:.1f} GB: {}", pool.pool,
                pool.peak() / 1e9, pool.device_bytes / 1e9, entries);
  }
  return {};
}

}  // namespace troupe::sim

#include "sim/world/sim_job.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::sim {
namespace {

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
}

}  // namespace

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
    // Activations and gradients go when others work; weights and moments stay.
    pools[role.pool].entries.push_back(
        {.role = name, .bytes = memory.total(), .kept_bytes = memory.weights + memory.optimizer});
  });
  const auto cost = DecodeCost::create(job.policy.model, job.pools[job.rollout.pool].device,
                                       job.rollout.layout, job.constants);
  if (!cost) return pools;
  const double workspace = job.constants[Constant::kEngineWorkspace];
  const double least = cost->weight_bytes() + workspace;
  pools[job.rollout.pool].entries.push_back(
      {.role = "rollout", .bytes = least, .kept_bytes = cost->weight_bytes()});
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

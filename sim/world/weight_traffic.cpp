#include "sim/world/weight_traffic.hpp"

#include "reshard/plan.hpp"
#include "reshard/rosters.hpp"

#include <map>
#include <utility>

namespace troupe::sim {
namespace {

/// Nodes are numbered over all pools, too.
std::int32_t first_node(const SimJob& job, std::size_t pool) {
  std::int32_t nodes = 0;
  for (std::size_t i = 0; i < pool; ++i) {
    const DevicePool& one = job.pools[i];
    nodes += (one.devices + one.device.per_node - 1) / one.device.per_node;
  }
  return nodes;
}

reshard::RankNumbers numbers_of(const SimJob& job, std::size_t pool) {
  return {.first_rank = first_device(job, pool),
          .first_node = first_node(job, pool),
          .ranks_per_node = job.pools[pool].device.per_node};
}

}  // namespace

std::int32_t first_device(const SimJob& job, std::size_t pool) {
  std::int32_t first = 0;
  for (std::size_t i = 0; i < pool; ++i) first += job.pools[i].devices;
  return first;
}

result<WeightTraffic> weight_traffic(const SimJob& job) {
  const TrainLayout& layout = job.policy.layout;
  reshard::TrainMesh train;
  train.tp = layout.tp;
  train.dp = layout.dp;
  train.pp = layout.pp;
  train.ep = layout.ep;
  if (layout.sharding == TrainSharding::kFsdp) train.shard = reshard::ShardStyle::kRows;
  reshard::RolloutMesh rollout;
  rollout.replicas = job.rollout.replicas;
  rollout.tp = job.rollout.layout.tp;
  const reshard::ModelShape& shape = job.policy.model.shape;
  TROUPE_TRY(const reshard::Roster source,
             reshard::train_roster(shape, train, numbers_of(job, job.policy.pool)));
  TROUPE_TRY(const reshard::Roster target,
             reshard::rollout_roster(shape, rollout, numbers_of(job, job.rollout.pool)));
  TROUPE_TRY(const reshard::Plan plan, reshard::plan(source, target));
  std::map<std::pair<std::int32_t, std::int32_t>, TrafficFlow> flows;
  WeightTraffic traffic;
  for (const reshard::Op& op : plan.ops) {
    const auto bytes = static_cast<double>(plan.bytes_of(op));
    if (op.kind == reshard::OpKind::kLocal) {
      traffic.local_bytes += bytes;
      continue;
    }
    (op.crosses_network() ? traffic.network_bytes : traffic.node_bytes) += bytes;
    TrafficFlow& flow = flows[{op.source_rank, op.target_rank}];
    flow.source = op.source_rank;
    flow.target = op.target_rank;
    flow.same_node = !op.crosses_network();
    flow.bytes += bytes;
  }
  for (const auto& [ends, flow] : flows) traffic.flows.push_back(flow);
  return traffic;
}

}  // namespace troupe::sim

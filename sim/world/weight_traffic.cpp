#include "sim/world/weight_traffic.hpp"

#include "reshard/plan.hpp"
#include "reshard/rosters.hpp"

#include <algorithm>
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

/// Parts into which both sides divide, each of whole nodes.
int parts_of(const SimJob& job, const TrafficOptions& options) {
  const TrainLayout& layout = job.policy.layout;
  const int replicas = job.rollout.replicas;
  const int ranks = layout.devices() + replicas * job.rollout.layout.tp;
  const int wanted = (ranks + options.ranks_whole - 1) / std::max(1, options.ranks_whole);
  if (layout.ep > 1) return 1;  // experts are shared out over all copies
  for (int parts = wanted; parts <= layout.dp; ++parts) {
    if (layout.dp % parts != 0 || replicas % parts != 0) continue;
    const int train = layout.dp / parts * layout.tp;
    const int rollout = replicas / parts * job.rollout.layout.tp;
    if (train % job.pools[job.policy.pool].device.per_node == 0 &&
        rollout % job.pools[job.rollout.pool].device.per_node == 0)
      return parts;
  }
  return 1;
}

/// Where ranks of the planned part lie in the whole, and in its other parts.
class Parts {
 public:
  Parts(const SimJob& job, int parts)
      : layout_(job.policy.layout),
        parts_(parts),
        first_source_(first_device(job, job.policy.pool)),
        target_step_(job.rollout.replicas / parts * job.rollout.layout.tp) {}
  /// Trainer ranks are (pp·D + dp)·tp + tp: a part has fewer copies in each stage.
  std::int32_t source(std::int32_t rank, int part) const {
    const int copies = layout_.dp / parts_ * layout_.tp;
    const std::int32_t index = rank - first_source_;
    const std::int32_t stage = index / copies;
    return first_source_ + stage * layout_.dp * layout_.tp + part * copies + index % copies;
  }
  std::int32_t target(std::int32_t rank, int part) const { return rank + part * target_step_; }

 private:
  const TrainLayout layout_;
  const int parts_;
  const std::int32_t first_source_;
  const std::int32_t target_step_;
};

}  // namespace

std::int32_t first_device(const SimJob& job, std::size_t pool) {
  std::int32_t first = 0;
  for (std::size_t i = 0; i < pool; ++i) first += job.pools[i].devices;
  return first;
}

result<WeightTraffic> weight_traffic(const SimJob& job, const TrafficOptions& options) {
  const int parts = parts_of(job, options);
  const TrainLayout& layout = job.policy.layout;
  reshard::TrainMesh train;
  train.tp = layout.tp;
  train.dp = layout.dp / parts;
  train.pp = layout.pp;
  train.ep = layout.ep;
  if (layout.sharding == TrainSharding::kFsdp) train.shard = reshard::ShardStyle::kRows;
  reshard::RolloutMesh rollout;
  rollout.replicas = job.rollout.replicas / parts;
  rollout.tp = job.rollout.layout.tp;
  const reshard::ModelShape& shape = job.policy.model.shape;
  TROUPE_TRY(const reshard::Roster source,
             reshard::train_roster(shape, train, numbers_of(job, job.policy.pool)));
  TROUPE_TRY(const reshard::Roster target,
             reshard::rollout_roster(shape, rollout, numbers_of(job, job.rollout.pool)));
  TROUPE_TRY(const reshard::Plan plan, reshard::plan(source, target));
  std::map<std::pair<std::int32_t, std::int32_t>, TrafficFlow> flows;
  WeightTraffic traffic;
  traffic.parts = parts;
  for (const reshard::Op& op : plan.ops) {
    const double bytes = static_cast<double>(plan.bytes_of(op));
    if (op.kind == reshard::OpKind::kLocal) {
      traffic.local_bytes += bytes * parts;
      continue;
    }
    (op.crosses_network() ? traffic.network_bytes : traffic.node_bytes) += bytes * parts;
    // What is handed on comes from a rank as a target, everything else from one as a source.
    TrafficFlow& flow =
        flows[{op.hands_on() ? -1 - op.source_rank : op.source_rank, op.target_rank}];
    flow.source = op.source_rank;
    flow.target = op.target_rank;
    flow.same_node = !op.crosses_network();
    flow.bytes += bytes;
  }
  const Parts cut(job, parts);
  for (int part = 0; part < parts; ++part) {
    for (const auto& [ends, flow] : flows) {
      TrafficFlow moved = flow;
      moved.source = ends.first < 0 ? cut.target(flow.source, part) : cut.source(flow.source, part);
      moved.target = cut.target(flow.target, part);
      traffic.flows.push_back(moved);
    }
  }
  return traffic;
}

}  // namespace troupe::sim

#include "sim/world/weight_traffic.hpp"

#include "reshard/model_tensors.hpp"
#include "reshard/plan.hpp"
#include "reshard/rosters.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

/// A model of fewer layers and experts, and how often each of its tensors stands for one.
struct ThinModel {
  reshard::ModelShape shape{};
  reshard::StageLayers stages{};
  std::map<std::string, double> times{};  ///< by tensor; what is not here counts once
};

/// Operations of a whole plan, about: what each replica gets of each tensor, in pieces.
double operations_of(const SimJob& job) {
  const ModelSize size = size_of(job.policy.model);
  const auto tensors = static_cast<double>(9 * size.layers + 3 * size.expert_layers * size.experts);
  const TrainLayout& layout = job.policy.layout;
  const int sources = layout.sharding == TrainSharding::kFsdp ? layout.tp * layout.dp : layout.tp;
  return tensors * job.rollout.replicas * std::max(job.rollout.layout.tp, sources);
}

/// How often each tensor of the thin model counts.
void count_tensors(ThinModel& thin, const std::vector<double>& layer_times, double expert_times) {
  const reshard::ModelTensors tensors = reshard::model_tensors(thin.shape);
  for (const reshard::TensorInfo& one : tensors.tensors)
    if (one.layer >= 0 && std::cmp_less(one.layer, layer_times.size()))
      thin.times[one.name] = layer_times[static_cast<std::size_t>(one.layer)];
  const auto more = [&](std::int32_t index) {
    if (index != reshard::kNoTensor) thin.times[tensors.at(index).name] *= expert_times;
  };
  for (const reshard::LayerTensors& layer : tensors.layers) {
    if (layer.experts == reshard::kNoTensor) continue;
    more(layer.router);
    more(layer.router_bias);
    for (std::int32_t i = 0; i < 3 * thin.shape.expert.experts; ++i) more(layer.experts + i);
  }
}

/// Of each stage the first few layers of each kind, and of each expert rank the first few experts.
result<ThinModel> thin_model(const SimJob& job, const TrafficOptions& options) {
  const reshard::ModelShape& whole = job.policy.model.shape;
  const TrainLayout& layout = job.policy.layout;
  TROUPE_TRY(const reshard::StageLayers stages, reshard::even_stages(whole.layers, layout.pp));
  ThinModel thin{.shape = whole, .stages = {}, .times = {}};
  std::vector<double> layer_times;
  thin.shape.expert.dense_layers = 0;
  for (const std::vector<std::int64_t>& stage : stages) {
    std::vector<std::int64_t>& kept = thin.stages.emplace_back();
    for (const bool experts : {false, true}) {
      const auto of_kind = std::count_if(stage.begin(), stage.end(), [&](std::int64_t layer) {
        return whole.is_expert_layer(layer) == experts;
      });
      const auto planned = std::min<std::int64_t>(of_kind, options.layers_planned);
      for (std::int64_t i = 0; i < planned; ++i) {
        kept.push_back(static_cast<std::int64_t>(layer_times.size()));
        layer_times.push_back(static_cast<double>(of_kind) / static_cast<double>(planned));
      }
      if (!experts && whole.expert.experts > 0) thin.shape.expert.dense_layers += planned;
    }
  }
  thin.shape.layers = static_cast<std::int64_t>(layer_times.size());
  double expert_times = 1;
  if (whole.expert.experts > 0) {
    const std::int64_t each = whole.expert.experts / layout.ep;
    const std::int64_t planned = std::min(each, options.experts_planned);
    thin.shape.expert.experts = planned * layout.ep;
    expert_times = static_cast<double>(each) / static_cast<double>(planned);
  }
  count_tensors(thin, layer_times, expert_times);
  return thin;
}

}  // namespace

std::int32_t first_device(const SimJob& job, std::size_t pool) {
  std::int32_t first = 0;
  for (std::size_t i = 0; i < pool; ++i) first += job.pools[i].devices;
  return first;
}

namespace {

/// Each device of the policy gathers every tensor from where it lies; engines elsewhere get them
/// once a node, from the first of those devices, and hand them on inside.
WeightTraffic whole_tensors(const SimJob& job) {
  const auto parameters = static_cast<double>(size_of(job.policy.model).parameters);
  const double bytes = parameters * job.policy.layout.weight_bytes;
  const int sources = job.policy.layout.devices();
  const std::int32_t first = first_device(job, job.policy.pool);
  const int per_node = job.pools[job.policy.pool].device.per_node;
  const int nodes = (sources + per_node - 1) / per_node;
  WeightTraffic traffic;
  const auto add = [&traffic](std::int32_t source, std::int32_t target, bool same, double moved) {
    if (moved <= 0 || source == target) return;
    traffic.flows.push_back({source, target, same, moved});
    (same ? traffic.node_bytes : traffic.network_bytes) += moved;
  };
  for (int i = 0; i < sources; ++i) {
    const int begin = i / per_node * per_node;
    const int inside = std::min(per_node, sources - begin);
    add(first + (i + per_node) % sources, first + i, false, bytes * (nodes - 1) / nodes);
    add(first + begin + (i - begin + 1) % inside, first + i, true, bytes / nodes);
  }
  if (!job.own_rollout()) return traffic;
  const int engines = job.rollout.replicas * job.rollout.layout.tp;
  const std::int32_t target = first_device(job, job.rollout.pool);
  const int their_node = job.pools[job.rollout.pool].device.per_node;
  std::int32_t before = first;
  for (int i = 0; i < engines; ++i) {  // a chain through all of them
    add(before, target + i, i % their_node != 0, bytes);
    before = target + i;
  }
  return traffic;
}

}  // namespace

result<WeightTraffic> weight_traffic(const SimJob& job, const TrafficOptions& options) {
  if (job.whole_tensors) return whole_tensors(job);
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
  ThinModel model{.shape = job.policy.model.shape, .stages = {}, .times = {}};
  const bool thin = operations_of(job) / parts > options.operations_whole;
  if (thin) {
    TROUPE_TRY(model, thin_model(job, options));
    train.stages = model.stages;
  }
  TROUPE_TRY(const reshard::Roster source,
             reshard::train_roster(model.shape, train, numbers_of(job, job.policy.pool)));
  TROUPE_TRY(const reshard::Roster target,
             reshard::rollout_roster(model.shape, rollout, numbers_of(job, job.rollout.pool)));
  TROUPE_TRY(const reshard::Plan plan, reshard::plan(source, target));
  std::map<std::pair<std::int32_t, std::int32_t>, TrafficFlow> flows;
  WeightTraffic traffic;
  traffic.parts = parts;
  traffic.thin = thin;
  for (const reshard::Op& op : plan.ops) {
    const auto times = model.times.find(plan.tensors[static_cast<std::size_t>(op.tensor)].name);
    const double bytes =
        static_cast<double>(plan.bytes_of(op)) * (times == model.times.end() ? 1 : times->second);
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

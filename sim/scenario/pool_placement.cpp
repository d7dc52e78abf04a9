#include "sim/scenario/pool_placement.hpp"

#include "placement/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::sim {
namespace {

using placement::BundlePlacement;

std::int64_t devices_of(const std::vector<DevicePool*>& pools) {
  std::int64_t devices = 0;
  for (const DevicePool* pool : pools) devices += pool->devices;
  return devices;
}

/// Nodes of a kind of device, in as few NVLink domains as its size allows.
std::vector<placement::NodeSpec> nodes_of(const DeviceSpec& device, std::int64_t count) {
  const std::int64_t domain_nodes = std::max(1, device.nvlink_domain / device.per_node);
  std::vector<placement::NodeSpec> nodes;
  for (std::int64_t i = 0; i < count; ++i) {
    placement::NodeSpec node;
    node.name = fmt::format("node-{}", i);
    if (domain_nodes > 1) node.domain = fmt::format("domain-{}", i / domain_nodes);
    node.devices.resize(static_cast<std::size_t>(device.per_node));
    node.cores = device.per_node;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

/// Node of each device, over all `pools`, in their order.
result<std::vector<std::int32_t>> place(const std::vector<DevicePool*>& pools,
                                        const PlacementWish& wish) {
  const DeviceSpec& device = pools.front()->device;
  const std::int64_t devices = devices_of(pools);
  const std::int64_t fewest = (devices + device.per_node - 1) / device.per_node;
  TROUPE_TRY(auto cluster,
             placement::Cluster::create(nodes_of(device, wish.nodes.value_or(fewest))));
  placement::GroupRequest request;
  request.name = device.name;
  placement::Bundle bundle;
  bundle.resources.gpu = placement::Amount::whole(1);
  request.bundles.assign(static_cast<std::size_t>(devices), bundle);
  request.strategy = wish.strategy;
  request.level = wish.level;
  request.per_domain_max = wish.per_domain_max;
  placement::Scheduler scheduler;
  const placement::Decision decision = scheduler.place_one(cluster, request);
  if (decision.kind != placement::DecisionKind::kPlaced) {
    const std::string why = decision.error ? decision.error->message : "no place was found";
    return fail(ErrorCode::kResourceExhausted,
                "simulation: {} devices {} on {} nodes of {}, {} wanted: {}; the least number of "
                "nodes without conditions is {}",
                devices, device.name, cluster.node_count(), device.per_node,
                placement::strategy_name(wish.strategy), why, fewest);
  }
  std::vector<std::int32_t> nodes;
  for (const BundlePlacement& one : decision.bundles)
    nodes.push_back(static_cast<std::int32_t>(cluster.position_of(one.node)));
  return nodes;
}

/// The pool's device as its place leaves it.
void shape_device(DevicePool& pool, const NodeRuns& runs) {
  DeviceSpec& device = pool.device;
  const bool whole = runs.neighbours == device.per_node;
  device.nic_rate /= runs.sharing;
  if (whole) return;
  device.per_node = runs.neighbours;
  // A domain of several nodes still joins them; one of a node ends where the run does.
  device.nvlink_domain = device.nvlink_rate > 0 ? runs.neighbours : 1;
}

}  // namespace

result<NodeRuns> node_runs(const std::string& pool, const std::vector<std::int32_t>& nodes) {
  std::vector<int> lengths;
  std::map<std::int32_t, int> runs_on;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i == 0 || nodes[i] != nodes[i - 1]) {
      lengths.push_back(0);
      ++runs_on[nodes[i]];
    }
    ++lengths.back();
  }
  for (std::size_t i = 1; i < lengths.size(); ++i)
    if (lengths[i] > lengths[0] || (i + 1 < lengths.size() && lengths[i] != lengths[0]))
      return fail(ErrorCode::kUnsupported,
                  "simulation: pool {} has {} devices on one node and {} on the next; nodes are "
                  "simulated alike, so that the nearest possible is {} devices",
                  pool, lengths[i - 1], lengths[i], i * static_cast<std::size_t>(lengths[0]));
  NodeRuns runs{.neighbours = lengths.empty() ? 1 : lengths[0],
                .sharing = 1,
                .nodes = static_cast<std::int64_t>(runs_on.size())};
  for (const auto& [node, count] : runs_on) runs.sharing = std::max(runs.sharing, count);
  return runs;
}

result<std::vector<std::string>> place_pools(std::vector<DevicePool>& pools,
                                             const PlacementWish& wish) {
  std::vector<std::pair<std::string, std::vector<DevicePool*>>> kinds;
  for (DevicePool& pool : pools) {
    const auto same = std::ranges::find_if(
        kinds, [&](const auto& kind) { return kind.first == pool.device.name; });
    if (same == kinds.end())
      kinds.push_back({pool.device.name, {&pool}});
    else
      same->second.push_back(&pool);
  }
  std::vector<std::string> lines;
  for (auto& [name, same] : kinds) {
    TROUPE_TRY(const auto nodes, place(same, wish));
    auto next = nodes.begin();
    for (DevicePool* pool : same) {
      const std::vector<std::int32_t> own(next, next + pool->devices);
      next += pool->devices;
      TROUPE_TRY(const NodeRuns runs, node_runs(pool->name, own));
      std::string line = fmt::format("{}: {} {} on {} nodes, {} neighbours on each", pool->name,
                                     pool->devices, name, runs.nodes, runs.neighbours);
      if (runs.sharing > 1)
        line += fmt::format(", {} devices share an adapter", runs.sharing * runs.neighbours);
      shape_device(*pool, runs);
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace troupe::sim

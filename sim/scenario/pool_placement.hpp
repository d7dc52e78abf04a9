#pragma once

// Where pools of devices lie: the real placement core over nodes of the catalogue's kinds.
//
// All pools of one kind of device are one request, in order, as the devices of a real run are; its
// strategy, level and bound are those of `cluster.*`. What comes back is the pool's device as the
// cost models see it: how many neighbours share a node, an NVLink domain and an adapter.
// **Threads:** pure.
// **Invariants:** a pool whose devices come in runs of n on a node has nodes of n devices; where
// neighbours lie on different nodes that are used by n of the pool, a node has 1 device and 1/n of
// the adapter.

#include "placement/strategy.hpp"
#include "placement/topology.hpp"
#include "runtime/base/result.hpp"
#include "sim/world/sim_job.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::sim {

struct PlacementWish {
  placement::Strategy strategy = placement::Strategy::kPack;
  placement::Level level = placement::Level::kNode;
  std::int32_t per_domain_max = 0;
  std::optional<std::int64_t> nodes{};  ///< of each kind; empty: as few as suffice
};

/// Sets each pool's device to what its place makes of it; returns a line a pool that says where it
/// lies. kResourceExhausted of the placement core; kUnsupported for nodes that differ.
result<std::vector<std::string>> place_pools(std::vector<DevicePool>& pools,
                                             const PlacementWish& wish);

/// Runs of equal numbers in the nodes of a pool's devices, one after the other.
struct NodeRuns {
  int neighbours = 1;  ///< devices of a run, but for the last
  int sharing = 1;  ///< devices of the pool that share a node's adapter beyond a run: runs a node
  std::int64_t nodes = 0;
};
/// kUnsupported, with the numbers of the first nodes that differ.
result<NodeRuns> node_runs(const std::string& pool, const std::vector<std::int32_t>& nodes);

}  // namespace troupe::sim

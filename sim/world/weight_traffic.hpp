#pragma once

// Bytes of a weight move between pools of devices, by the real planner.
//
// A large cluster repeats itself: when both data-parallel copies and replicas divide into equal
// parts of whole nodes, one part is planned and its flows are repeated for the others. So does a
// large model: layers of one kind and stage move alike, and so do the experts of a rank, so a few
// of each are planned and their bytes counted as often as there are such.
// **Threads:** pure.
// **Invariants:** the bytes by class are those of `reshard::plan` for the rosters of both layouts,
// also when only a part was planned; those of a port to a few per cent (tests/sim/world).

#include "sim/world/sim_job.hpp"

#include <cstdint>
#include <vector>

namespace troupe::sim {

/// One sum of operations between two devices.
struct TrafficFlow {
  std::int32_t source = 0;  ///< device, over all pools
  std::int32_t target = 0;
  bool same_node = false;
  double bytes = 0;
};

struct WeightTraffic {
  std::vector<TrafficFlow> flows{};
  double local_bytes = 0;
  double node_bytes = 0;
  double network_bytes = 0;
  int parts = 1;      ///< equal ones, of which one was planned
  bool thin = false;  ///< a few layers and experts of each kind stood for all
};

/// Number of the first device of `pool`, over all pools.
std::int32_t first_device(const SimJob& job, std::size_t pool);

struct TrafficOptions {
  /// Ranks of both sides that are planned as a whole; more are cut into equal parts, if they can
  /// be.
  int ranks_whole = 256;
  /// Operations, by a rough count, up to which every layer and expert is planned.
  double operations_whole = 3e5;
  std::int64_t layers_planned = 2;   ///< of each kind in each stage, else
  std::int64_t experts_planned = 1;  ///< of each expert-parallel rank
};

/// From the policy's layout to the rollout engines'. Errors of the planner.
result<WeightTraffic> weight_traffic(const SimJob& job, const TrafficOptions& options = {});

}  // namespace troupe::sim

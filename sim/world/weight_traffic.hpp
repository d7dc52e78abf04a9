#pragma once

// Bytes of a weight move between pools of devices, by the real planner.
//
// **Threads:** pure.
// **Invariants:** the bytes are those of `reshard::plan` for the rosters of both layouts.

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
};

/// Number of the first device of `pool`, over all pools.
std::int32_t first_device(const SimJob& job, std::size_t pool);

/// From the policy's layout to the rollout engines'. Errors of the planner.
result<WeightTraffic> weight_traffic(const SimJob& job);

}  // namespace troupe::sim

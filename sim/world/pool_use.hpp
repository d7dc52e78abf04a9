#pragma once

// How devices spent a stretch of time: who kept them busy, and what they waited for otherwise.
//
// A device that does nothing waits for what others do meanwhile; of several such things the one
// that stands nearest to it in the loop counts. Names of causes:
//   `failure`     its own replica or role is dead
//   `weights`     weights are on their way
//   `training`    an update or a critic's
//   `evaluation`  forward passes of trained and frozen roles
//   `checkpoint`  the trainer saves
//   `reward`, `environment`
//   `rollout`     samples are generated: for a rollout device, the others still generate
//   `host`        nobody does anything that the models have: software
// **Threads:** pure.
// **Invariants:** busy and idle shares of a pool add up to 1, and so do the causes to the idle
// share, to rounding.
// **Cost:** O(spans · log spans + spans · groups of devices that do the same).

#include "sim/world/phase_log.hpp"
#include "sim/world/sim_job.hpp"

#include <map>
#include <span>
#include <string>
#include <vector>

namespace troupe::sim {

/// How the devices of a pool spent a step.
struct PoolUse {
  std::string pool{};
  int devices = 0;
  double idle_share = 0;                    ///< of device time
  std::map<std::string, double> busy_by{};  ///< share by `role/phase`
  std::map<std::string, double> idle_by{};  ///< share by cause
};

/// Of each pool, between `begin` and `end`. Where spans overlap on a device the first that began
/// counts.
std::vector<PoolUse> pool_use(std::span<const DevicePool> pools, std::span<const PhaseSpan> spans,
                              TimePoint begin, TimePoint end);

}  // namespace troupe::sim

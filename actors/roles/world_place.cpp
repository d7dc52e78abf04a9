#include "actors/roles/world_place.hpp"

namespace troupe::actors {

RolloutPool rollout_pool(const WorldOptions& options) {
  return {.policy = options.policy.engine.parallel,
          .tp = options.rollout_tp,
          .devices = options.devices,
          .own = options.rollout_devices_own,
          .evaluation = options.evaluation_devices,
          .streaming = options.streaming,
          .lend = options.lend_trainer_devices};
}

}  // namespace troupe::actors

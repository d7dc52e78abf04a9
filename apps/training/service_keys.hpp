#pragma once

// From the keys of async_keys.hpp to the options of the rollout service and of the world.
//
// **Threads:** pure functions.

#include "actors/loops/rollout_service.hpp"
#include "actors/roles/world_place.hpp"
#include "runtime/config/config.hpp"

#include <cstdint>

namespace troupe::apps {

/// Options of the rollout service; `steps` of the whole run.
actors::ServiceOptions service_options(const runtime::Config& config, std::int64_t steps,
                                       const actors::SamplingOptions& sampling);
/// Parts in which a pipelined step is trained, in prompts.
std::int64_t groups_per_part(const runtime::Config& config);
/// Pools, streaming, what an update does to samples under way, simulated delays.
void set_world(const runtime::Config& config, actors::WorldOptions& options);

}  // namespace troupe::apps

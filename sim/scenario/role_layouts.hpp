#pragma once

// Models of the roles and how they are cut, from the configuration of a real run.
//
// **Threads:** pure, but for reading config.json and users' catalogues.

#include "runtime/config/config.hpp"
#include "sim/catalogue/catalogue.hpp"
#include "sim/world/sim_job.hpp"

#include <string>

namespace troupe::sim {

/// The built-in catalogue and those of `simulation.catalogue_files`.
result<Catalogue> read_catalogue(const runtime::Config& config);

/// The device that `key` names. kConfig with the nearest name.
result<DeviceSpec> device_of(const runtime::Config& config, const Catalogue& catalogue,
                             const std::string& key);
/// The model that `key` names, or that of config.json in the folder that `path_key` names.
result<ModelSpec> model_of(const runtime::Config& config, const Catalogue& catalogue,
                           const std::string& key, const std::string& path_key);

/// Layout of `section` (`actor_rollout_ref.actor`, `actor_rollout_ref.ref`, `critic`) over
/// `devices`. kConfig naming the key that does not divide.
result<TrainLayout> train_layout(const runtime::Config& config, const std::string& section,
                                 int devices);
/// Whether model and layout go together; the key, and the nearest that does.
result<void> check_layout(const runtime::Config& config, const std::string& section,
                          const SimTrainedRole& role, const SimJob& job);

/// Engines of rollout on `pool`. The KV pool is that of `simulation.kv_tokens`,
/// `rollout.kv_cache_mb` or `kv_cache_blocks` where given, else what the memory leaves.
result<SimRollout> rollout_of(const runtime::Config& config, const SimJob& job, std::size_t pool);

/// Sets what the others on the engines' devices keep while these generate.
void reserve_memory(SimJob& job);

/// kConfig when the job does not fit its devices, with the nearest change that makes it.
result<void> check_fits(const runtime::Config& config, const SimJob& job);

}  // namespace troupe::sim

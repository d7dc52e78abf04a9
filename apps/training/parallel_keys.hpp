#pragma once

// Keys that say how models are cut over the devices and how weights get from the trainer to the
// rollout engine: declaration, rules, reading.
//
// **Threads:** pure functions.
// **Invariants:** a mesh that the devices or the model do not admit is a kConfig error that names
// its key and both numbers, before anything starts.

#include "actors/model/model_config.hpp"
#include "actors/roles/group_world.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/schema.hpp"

#include <string>

namespace troupe::apps {

/// Declares the keys of actor, ref, critic and rollout, and their rules.
void declare_parallel(runtime::Schema& schema);

/// How the models of `section` (`actor_rollout_ref.actor`, `actor_rollout_ref.ref`, `critic`) are
/// cut. kConfig naming the key when `model` cannot be cut so over the devices.
result<actors::ParallelOptions> parallel_options(const runtime::Config& config,
                                                 const std::string& section,
                                                 const actors::ModelConfig& model);
/// `actor_rollout_ref.rollout.tensor_model_parallel_size`, which `model` admits.
result<int> rollout_tp(const runtime::Config& config, const actors::ModelConfig& model);

actors::PublicationOptions publication_options(const runtime::Config& config);

}  // namespace troupe::apps

#pragma once

// From a resolved configuration to the options of engines, roles and loops.
//
// **Threads:** pure functions of the configuration.
// **Invariants:** every key of the schema is read here or in the application that uses it (`sft`
// reads its own section, the model's and the trainer's); a name that does not resolve is a kConfig
// error naming its key.

#include "actors/algorithm/advantage.hpp"
#include "actors/algorithm/policy_loss.hpp"
#include "actors/data/prompt_loader.hpp"
#include "actors/environment/environment.hpp"
#include "actors/loops/advantage_step.hpp"
#include "actors/reward/reward.hpp"
#include "actors/roles/group_world.hpp"
#include "actors/rollout/sampling_options.hpp"
#include "apps/training/model_bundle.hpp"
#include "apps/training/role_keys.hpp"
#include "runtime/config/config.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::apps {

/// What a program may add to before it trains: see apps/examples/custom_advantage.
struct TrainingRegistries {
  actors::AdvantageRegistry advantages = actors::default_advantages();
  actors::PolicyLossRegistry losses = actors::default_policy_losses();
  actors::RewardRegistry rewards = actors::default_rewards();
  actors::EnvironmentRegistry environments = actors::default_environments();
  /// What rank processes of a cluster run. A bare name is looked for beside the agent's program,
  /// then in PATH. A program with registries of its own names itself, and calls `maybe_run_rank`
  /// first in `main` (runtime/cluster/rank_host.hpp).
  std::vector<std::string> rank_command = {"troupe", "rank"};
};

/// The schema, with the names that the registries add.
runtime::Schema schema_for(const TrainingRegistries& registries);

/// How a model folder named in the configuration is opened.
ModelOptions model_options(const runtime::Config& config);

actors::DatasetOptions dataset_options(const runtime::Config& config, std::int64_t rows_wanted);
/// `positions` of the model bound a prompt too: a response must fit behind it.
actors::PromptLoaderOptions loader_options(const runtime::Config& config, std::int64_t batch_size,
                                           bool training, std::int64_t positions);

/// Sampling of training (`rollout.*`) or validation (`rollout.val_kwargs.*`) responses.
actors::SamplingOptions sampling_options(const runtime::Config& config, const ModelBundle& model,
                                         bool validation);
actors::EngineOptions engine_options(const runtime::Config& config, const ModelBundle& model);

/// Options of a train engine; `section` is `actor_rollout_ref.actor`, `critic` or `sft`,
/// `steps_total` the optimizer steps of the whole run.
result<actors::TrainEngineOptions> train_engine_options(const runtime::Config& config,
                                                        const std::string& section,
                                                        std::int64_t steps_total);
result<actors::PolicyUpdateSettings> policy_update_settings(
    const runtime::Config& config, const actors::PolicyLossRegistry& losses);
result<actors::ValueUpdateSettings> value_update_settings(const runtime::Config& config);
result<actors::AdvantageStepOptions> advantage_step_options(
    const runtime::Config& config, const actors::AdvantageRegistry& advantages);

/// Mini-batches of the actor or the critic (`section`).
actors::MinibatchPlan minibatch_plan(const runtime::Config& config, const std::string& section);
/// Optimizer steps of `section` in one training step.
std::int64_t updates_per_step(const runtime::Config& config, const std::string& section);

/// True when the run gets its devices from a cluster: several hosts, or `cluster.address`.
bool wants_cluster(const runtime::Config& config);
/// kConfig naming the key when a command that knows only this host is asked for a cluster.
result<void> refuse_cluster(const runtime::Config& config, std::string_view command);

/// How long one call of a worker group may take: `trainer.call_timeout_s`.
Duration call_timeout(const runtime::Config& config);

/// Seed of the order of rows: `data.seed`, or the run's.
std::uint64_t data_seed(const runtime::Config& config);

/// The run folder: `trainer.default_local_dir`, or runs/PROJECT/EXPERIMENT.
std::string run_folder(const runtime::Config& config);

/// Capacity of one device: the configured one, or an even share of this host's memory.
Bytes device_memory(const runtime::Config& config);

}  // namespace troupe::apps

#pragma once

// What a training run reads before any rank starts, and the options that follow from it.
//
// **Ownership:** `TrainInputs` owns models and data; options made from it borrow the weights.
// **Threads:** the calling thread.
// **Invariants:** everything that configuration, models or data can have wrong is found here.

#include "apps/training/run_state.hpp"
#include "apps/training/train_settings.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace troupe::apps {

struct TrainInputs {
  std::unique_ptr<ModelBundle> policy;
  std::unique_ptr<ModelBundle> reference;  ///< null: the policy's weights
  std::unique_ptr<ModelBundle> critic;     ///< null: the policy's weights
  std::optional<actors::PromptLoader> train;
  std::optional<actors::PromptLoader> validation;
};

/// kConfig when responses leave no room in the model's positions, or sampling options are wrong.
result<void> check_generation(const runtime::Config& config, const ModelBundle& model);

/// The prompts of `data.train_files` or `data.val_files`; with `reward.name` = auto every row must
/// have a reward.
result<actors::PromptLoader> open_prompts(const runtime::Config& config, const ModelBundle& model,
                                          const actors::RewardRegistry& rewards, bool training);

/// Opens models and data. Errors: kConfig naming the key, and those of the files.
result<TrainInputs> open_inputs(const runtime::Config& config,
                                const TrainingRegistries& registries);

/// Steps of the run: `trainer.total_training_steps`, or those of `trainer.total_epochs` epochs.
std::int64_t total_steps(const runtime::Config& config, const actors::PromptLoader& train);

result<actors::WorldOptions> world_options(const runtime::Config& config, const TrainInputs& inputs,
                                           const TrainingRegistries& registries,
                                           std::int64_t steps);

/// The checkpoint to go on from (`trainer.resume_mode`), if there is one. `folder`: the run's.
result<std::optional<runtime::Checkpoint>> checkpoint_to_resume(const runtime::Config& config,
                                                                const std::string& folder);

/// kConflict naming both sides when the checkpoint is another command's, or walks other data.
result<void> check_resumed(const RunState& state, const std::string& command,
                           std::int64_t data_rows, const runtime::Checkpoint& checkpoint);

/// Warns of every key that has another value than in the checkpoint's configuration.
void warn_of_changes(const runtime::Config& config, const runtime::Checkpoint& checkpoint);

}  // namespace troupe::apps

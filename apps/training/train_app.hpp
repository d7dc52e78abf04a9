#pragma once

// `troupe train` as a library: opens models and data, builds the colocated world, runs the
// synchronous loop with validation, checkpoints, metrics, trace and progress.
//
// A program with advantages, losses or rewards of its own adds them to the registries and calls
// `train`; see apps/examples/custom_advantage.
// **Threads:** the calling thread is the controller.
// **Invariants:** nothing is written before configuration, data and models have been checked; a
// run that was killed and resumed ends with the bits of one that was not.

#include "apps/training/train_settings.hpp"
#include "runtime/base/result.hpp"
#include "runtime/config/config.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace troupe::apps {

struct TrainSummary {
  std::int64_t first_step = 0;  ///< first step of this process, 1 unless resumed
  std::int64_t last_step = 0;
  bool stopped = false;       ///< by the stop flag or `troupe stop`, before the last step
  std::int64_t restarts = 0;  ///< after the death of a rank
  std::map<std::string, double> first_validation;
  std::map<std::string, double> last_validation;
  double train_seconds = 0;  ///< of steps alone
  std::filesystem::path run_folder;
  std::filesystem::path checkpoint;  ///< newest of this process; empty when none was written
  std::filesystem::path model;       ///< exported Hugging Face folder; empty when stopped
};

/// Trains as `config` says. `stop`, when given, is looked at after every step: the run then saves a
/// checkpoint and returns. After a rank's death it goes on from
/// the newest checkpoint, up to `trainer.restarts_max` times. Errors: kConfig, and those of files,
/// data, models and ranks.
result<TrainSummary> train(const runtime::Config& config, const TrainingRegistries& registries,
                           const std::atomic<bool>* stop = nullptr);

}  // namespace troupe::apps

#pragma once

// `troupe sft` as a library: supervised fine-tuning on prompt and response rows.
//
// **Threads:** the calling thread is the controller.
// **Invariants:** as `train`: checked before anything is written; a resumed run ends with the bits
// of one that was not stopped.

#include "runtime/base/result.hpp"
#include "runtime/config/config.hpp"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace troupe::apps {

struct SftSummary {
  std::int64_t last_step = 0;
  bool stopped = false;
  std::optional<double> last_loss;        ///< of the last step of this process
  std::optional<double> validation_loss;  ///< of the last validation
  double train_seconds = 0;
  std::filesystem::path run_folder;
  std::filesystem::path model;  ///< exported Hugging Face folder; empty when stopped
};

/// Trains `actor_rollout_ref.model.path` as the `sft` section says.
result<SftSummary> fine_tune(const runtime::Config& config,
                             const std::atomic<bool>* stop = nullptr);

}  // namespace troupe::apps

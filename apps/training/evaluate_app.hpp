#pragma once

// `troupe eval` as a library: samples of held-out prompts, scored: pass@k and avg@k.
//
// **Threads:** the calling thread is the controller.

#include "apps/training/train_settings.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::apps {

struct SourceScores {
  std::int64_t prompts = 0;
  double average = 0;                      ///< avg@n: mean accuracy over all samples
  double reward = 0;                       ///< mean score
  std::map<std::int64_t, double> pass_at;  ///< k → pass@k, for k = 1, 2, 4, … and n
};

struct Evaluation {
  std::int64_t samples_per_prompt = 0;
  std::map<std::string, SourceScores> sources;
  struct Sample {
    std::string data_source, prompt, response, answer, ground_truth;
    double score = 0;
  };
  std::vector<Sample> samples;  ///< every sample when asked for
};

/// Chance that k of n samples, c of them right, hold a right one: 1 − C(n−c, k) / C(n, k), the
/// unbiased estimator of Chen et al. 2021, "Evaluating large language models trained on code".
double pass_at_k(std::int64_t n, std::int64_t c, std::int64_t k);

/// Evaluates `actor_rollout_ref.model.path` on `data.val_files` with `rollout.val_kwargs`.
result<Evaluation> evaluate(const runtime::Config& config, const TrainingRegistries& registries,
                            bool keep_samples = false);

}  // namespace troupe::apps

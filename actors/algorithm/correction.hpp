#pragma once

// Importance weights between the policy that sampled (rollout engine, maybe older weights) and the
// proximal policy recomputed by the trainer: truncated importance sampling and its masked form.
//
// weight = exp(log π_old - log π_rollout), log-ratio clamped to ±20, treated as a constant.
// **Threads:** pure functions. **Cost:** O(T), one [T] vector out.

#include "actors/algorithm/token_batch.hpp"
#include "actors/algorithm/weighted_sums.hpp"
#include "runtime/base/result.hpp"

#include <span>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class RolloutWeightLevel {
  kToken,      ///< exp of the token's log-ratio
  kSequence,   ///< exp of their sum over the sequence, the same for all its tokens
  kGeometric,  ///< exp of their mean over the sequence
};
/// token, sequence, geometric; kConfig otherwise.
result<RolloutWeightLevel> rollout_weight_level_from_name(std::string_view name);

struct RolloutWeightOptions {
  RolloutWeightLevel level = RolloutWeightLevel::kToken;
  double high = 2.0;          ///< cap of the weight (Yao et al. 2025, TIS)
  double low = 0.0;           ///< used with `mask_outside`
  bool mask_outside = false;  ///< weight 0 outside [low, high] (IcePop) where false caps
};

struct RolloutWeights {
  std::vector<float> weights;  ///< [T]; 0 on masked tokens
  WeightedSums metrics;        ///< rollout_corr/{kl,k3_kl,weight_mean,weight_fraction_high,…}
};

/// f32 [T], [T]; feeds PolicyLossInput::rollout_weights.
result<RolloutWeights> rollout_weights(const TokenBatchView& batch,
                                       std::span<const float> old_log_probs,
                                       std::span<const float> rollout_log_probs,
                                       const RolloutWeightOptions& options);

}  // namespace troupe::actors

#pragma once

// The critic's loss and its figure of merit.
//
// **Threads:** pure functions. **Cost:** O(T), one [T] vector out.
// **Invariants:** as for policy losses: masked slots unread, any split adds up.

#include "actors/algorithm/aggregation.hpp"
#include "actors/algorithm/token_batch.hpp"
#include "actors/algorithm/weighted_sums.hpp"
#include "runtime/base/result.hpp"

#include <optional>
#include <span>

namespace troupe::actors {

struct ValueLossInput {
  TokenBatchView tokens;
  std::span<const float> values;      ///< [T] of the critic being trained
  std::span<const float> old_values;  ///< [T] at rollout; may be empty when clip is 0
  std::span<const float> returns;     ///< [T]
  LossNormaliser normaliser;
};

struct ValueLossOptions {
  LossAggregation aggregation = LossAggregation::kTokenMean;
  double clip = 0.5;  ///< bound of |v - v_old|; 0 turns clipping off
};

struct ValueLossOutput {
  TokenLoss loss;        ///< value, and gradient d loss / d value
  WeightedSums metrics;  ///< critic/vf_loss, critic/vf_clipfrac, critic/vpred_mean
};

/// ½ Σ w_t max((v - R)², (clip(v, v_old ± c) - R)²) (Schulman et al., PPO code).
result<ValueLossOutput> value_loss(const ValueLossInput& input, const ValueLossOptions& options);

/// 1 - var(R - V) / var(R) over unmasked tokens; empty when the returns do not vary. f32 [T].
result<std::optional<double>> explained_variance(const TokenBatchView& batch,
                                                 std::span<const float> values,
                                                 std::span<const float> returns);

}  // namespace troupe::actors

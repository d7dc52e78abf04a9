#pragma once

// How per-token terms become one loss. Every mode is a weighted sum over tokens,
// loss = Σ_t w_t ℓ_t, whose weights come from the counts of the *whole* mini-batch. Hence the
// losses and gradients of any split into micro-batches and ranks add up to those of the whole:
// callers SUM over micro-batches and all-reduce gradients with SUM (not mean) over dp.
//
// **Threads:** pure functions.
// **Invariants:** an empty sequence or mini-batch has weights 0, never 0/0. Formulas: verl
// `agg_loss`, restated in reference/verl.md §3.3; ours counts only non-empty sequences in B.

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// m: mask, n_s: unmasked tokens of sequence s, N: of the mini-batch, B: its non-empty sequences.
enum class LossAggregation {
  kTokenMean,            ///< Σ_t m ℓ / N
  kTokenSum,             ///< Σ_t m ℓ
  kSeqMeanTokenSum,      ///< Σ_s Σ_t m ℓ / B
  kSeqMeanTokenSumNorm,  ///< Σ_s Σ_t m ℓ / (B · scale_factor), Dr.GRPO's constant
  kSeqMeanTokenMean,     ///< Σ_s (Σ_t m ℓ / n_s) / B
};

/// `token-mean`, `seq-mean-token-sum-norm`, … as in the configuration.
std::string_view loss_aggregation_name(LossAggregation mode);
/// Inverse; kConfig with the known names otherwise.
result<LossAggregation> loss_aggregation_from_name(std::string_view name);

/// Denominators of the whole mini-batch: the sum of `count_tokens` over all its parts and ranks.
struct LossNormaliser {
  TokenCounts global;       ///< true counts over micro-batches and data-parallel ranks
  double scale_factor = 0;  ///< > 0 for kSeqMeanTokenSumNorm, e.g. the longest response allowed
  /// The mini-batch is not complete yet: nothing is divided by its counts, and `global` is unread.
  /// Losses and gradients times `deferred_scale` are what the true counts would have given.
  bool deferred = false;
};

/// What sums that were made with `LossNormaliser::deferred` are to be multiplied by, once the
/// counts of the whole mini-batch are known. kConfig when scale_factor is missing.
result<double> deferred_scale(LossAggregation mode, const TokenCounts& global, double scale_factor);

/// Weight of each token of `sequence` under `mode`; 0 when it has no unmasked token.
/// Errors: kInvalidArgument when the global counts are below the local ones, kConfig when
/// scale_factor is missing.
class TokenWeights {
 public:
  static result<TokenWeights> make(const TokenBatchView& batch, LossAggregation mode,
                                   const LossNormaliser& normaliser);
  double of_sequence(std::int64_t valid_tokens) const;

 private:
  double per_token_ = 0;
  bool divide_by_length_ = false;
};

/// A scalar loss and its gradient with respect to the per-token input.
struct TokenLoss {
  double value = 0;
  std::vector<float> gradient;  ///< [T]; 0 on masked tokens
};

/// Aggregate of any per-token quantity (entropy, say): value Σ w_t x_t, gradient w_t. f32 [T].
result<TokenLoss> aggregate(const TokenBatchView& batch, std::span<const float> terms,
                            LossAggregation mode, const LossNormaliser& normaliser);

}  // namespace troupe::actors

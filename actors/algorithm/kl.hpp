#pragma once

// Estimators of KL(π ‖ π_ref) from one sample per token (Schulman 2020, "Approximating KL
// divergence"), as a loss term, as a reward penalty, and the controller of its coefficient.
//
// With d = clamp(log π - log π_ref, ±20):
//   k1 = d, abs = |d|, k2 = d²/2, k3 = exp(-d) + d - 1.
// k3 grows without bound where the reference likes a token more: from the point where it reaches
// 10 it goes on along its tangent, so the pull towards the reference neither explodes nor (as
// with a plain clamp) vanishes. Beyond |d| = 20 every gradient is 0.
// Straight-through forms (k1+, k3+, …) have the base's value and the gradient of k2, which is an
// unbiased gradient of the KL.
// **Threads:** pure functions and value types.

#include "actors/algorithm/aggregation.hpp"
#include "actors/algorithm/token_batch.hpp"
#include "actors/algorithm/weighted_sums.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class KlEstimator { kK1, kAbs, kK2, kK3 };

struct KlKind {
  KlEstimator estimator = KlEstimator::kK3;
  bool straight_through = false;  ///< gradient of k2
  bool operator==(const KlKind&) const = default;
};

/// k1 (alias kl), abs, k2 (mse), k3 (low_var_kl), each also with a `+`. kConfig for others;
/// `full` is kUnsupported, as it needs whole distributions.
result<KlKind> kl_kind_from_name(std::string_view name);
std::string kl_kind_name(KlKind kind);

/// Value and slope d value / d log π of one token.
struct KlTerm {
  double value = 0;
  double slope = 0;
};
KlTerm kl_term(double log_prob, double reference_log_prob, KlKind kind);

/// Aggregated KL and its gradient with respect to log_probs. f32 [T], [T].
result<TokenLoss> kl_loss(const TokenBatchView& batch, std::span<const float> log_probs,
                          std::span<const float> reference_log_probs, KlKind kind,
                          LossAggregation mode, const LossNormaliser& normaliser);

struct KlPenalty {
  std::vector<float> rewards;  ///< [T] score - β·kl, 0 on masked tokens
  WeightedSum kl;  ///< mean over non-empty sequences of their token mean; for the controller
};

/// In-reward KL: r_t = score_t - β·kl_t. f32 [T] each.
result<KlPenalty> kl_in_reward(const TokenBatchView& batch, std::span<const float> scores,
                               std::span<const float> log_probs,
                               std::span<const float> reference_log_probs, KlKind kind,
                               double beta);

/// Coefficient of the KL term. Its whole state is here: copy it into a checkpoint and back.
/// Adaptive (Ziegler et al. 2019): β ← β (1 + clip(kl/target - 1, ±0.2)·n/horizon).
struct KlController {
  double beta = 0.001;
  bool adaptive = false;
  double target = 0.1;
  double horizon = 10000;
  bool operator==(const KlController&) const = default;

  /// kConfig unless β ≥ 0, target > 0 and horizon > 0.
  result<void> check() const;
  /// Moves β by `sequences` samples whose mean KL was `kl`; nothing when fixed, or no samples.
  void update(double kl, std::int64_t sequences);
};

}  // namespace troupe::actors

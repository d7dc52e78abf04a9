#pragma once

// Policy losses as functions of per-token log-probs: value, analytic gradient d loss / d log_prob,
// and metrics as mergeable sums. The engine back-propagates the gradient and knows no formula.
//
// **Threads:** pure functions.
// **Invariants:** log-ratios are clamped to ±20 and have gradient 0 beyond; gradients are 0 on
// masked tokens; with the true global counts in `normaliser`, the values and gradients of any
// split of the mini-batch add up to those of the whole. An empty batch gives loss 0 and gradient
// 0, and counts in `actor/empty_batches`.
// **Cost:** O(T), one [T] vector out.
// Formulas and where they differ from verl: docs/algorithms.md.

#include "actors/algorithm/aggregation.hpp"
#include "actors/algorithm/correction.hpp"
#include "actors/algorithm/covariance.hpp"
#include "actors/algorithm/registry.hpp"
#include "actors/algorithm/token_batch.hpp"
#include "actors/algorithm/weighted_sums.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace troupe::actors {

struct PolicyLossInput {
  TokenBatchView tokens;
  std::span<const float> log_probs;             ///< [T] log π of the policy being trained; ≤ 0
  std::span<const float> old_log_probs;         ///< [T] proximal policy; unread by `gpg`
  std::span<const float> advantages;            ///< [T]
  std::span<const float> rollout_weights = {};  ///< [T] importance weights ≥ 0, or empty (all 1)
  LossNormaliser normaliser;                    ///< counts of the whole mini-batch
  const TokenSelection* selection = nullptr;    ///< stage 2 result; required iff the loss selects
  /// [T] of the policy that sampled; required iff the loss `reads_rollout`, unread by others.
  std::span<const float> rollout_log_probs = {};
  /// [T] α of proximal.hpp, or empty; `decoupled` then interpolates and reads no old_log_probs.
  std::span<const float> proximal_alphas = {};
};

/// Importance weights of the losses that compute them from the current policy. Unset: the loss's
/// own, see the table at the end.
struct ImportanceOptions {
  std::optional<RolloutWeightLevel> level = {};
  std::optional<double> low = {};  ///< only where the loss masks
  std::optional<double> high = {};
  bool operator==(const ImportanceOptions&) const = default;
};

struct PolicyLossOptions {
  /// Unset: the loss's own default (PolicyLoss::default_aggregation).
  std::optional<LossAggregation> aggregation = {};
  double clip_low = 0.2;   ///< ε_l
  double clip_high = 0.2;  ///< ε_h
  double clip_dual = 3.0;  ///< c > 1: bound of the loss where A < 0; `vanilla`
  double clip_cov_ratio = 0.0002;
  double clip_cov_low = 1.0;
  double clip_cov_high = 5.0;
  double kl_cov_ratio = 0.0002;
  double kl_cov_coefficient = 1.0;
  double sapo_tau_positive = 1.0;
  double sapo_tau_negative = 1.05;
  double dro_beta = 0.1;
  ImportanceOptions importance = {};
  std::uint64_t seed = 0;  ///< of random picks; mix in the optimiser step
};

struct PolicyLossOutput {
  double loss = 0;
  std::vector<float> gradient;  ///< [T] d loss / d log_prob
  WeightedSums metrics;         ///< actor/pg_loss, pg_clipfrac, pg_clipfrac_lower, ppo_kl, …
};

using PolicyLossFunction =
    std::function<result<PolicyLossOutput>(const PolicyLossInput&, const PolicyLossOptions&)>;

/// One policy loss. Losses that choose tokens across the mini-batch also have `collect` and
/// `select`, the stages that run before `apply`; the others leave them empty.
struct PolicyLoss {
  PolicyLossFunction apply;
  LossAggregation default_aggregation = LossAggregation::kTokenMean;
  bool reads_rollout = false;  ///< needs PolicyLossInput::rollout_log_probs
  std::function<result<CovarianceStatistics>(const PolicyLossInput&, const PolicyLossOptions&)>
      collect = {};
  std::function<result<TokenSelection>(const CovarianceStatistics&, const PolicyLossOptions&)>
      select = {};

  bool selects_tokens() const { return static_cast<bool>(select); }
};

using PolicyLossRegistry = Registry<PolicyLoss>;

/// vanilla, gspo, cispo, geo_mean (alias gmpo), gpg, clip_cov, kl_cov, sapo, dppo_tv, dppo_kl, dro,
/// and those that read rollout log-probs: tis, mis, icepop, aipo, topr, decoupled.
PolicyLossRegistry default_policy_losses();

// Token losses, ℓ of one token; ρ = exp(clamp(log π - log π_old, ±20)).

/// PPO clip with separate bounds (Schulman et al. 2017; DAPO 2025) and dual clip (Ye et al. 2020).
result<PolicyLossOutput> vanilla_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// Sequence-level ratio exp(mean_t log ratio) (Zheng et al. 2025).
result<PolicyLossOutput> gspo_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -sg(clip(ρ)) A log π (MiniMax-M1 2025).
result<PolicyLossOutput> cispo_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// Geometric mean of clipped token ratios (GMPO, Zhao et al. 2025).
result<PolicyLossOutput> geo_mean_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -A log π (Chu et al. 2025).
result<PolicyLossOutput> gpg_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// PPO clip; selected tokens give no gradient (Cui et al. 2025).
result<PolicyLossOutput> clip_cov_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -A ρ, plus coefficient·|log ratio| on selected tokens (Cui et al. 2025).
result<PolicyLossOutput> kl_cov_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -A (4/τ) σ(τ(ρ - 1)) (SAPO, Qwen 2025).
result<PolicyLossOutput> sapo_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -A sg(min(ρ, c)) log π inside a total-variation trust region.
result<PolicyLossOutput> dppo_tv_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// The same with the binary KL as the region.
result<PolicyLossOutput> dppo_kl_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -(A log π - β/2 (log π - log π_old)²).
result<PolicyLossOutput> dro_loss(const PolicyLossInput&, const PolicyLossOptions&);

// Off-policy losses. b sampled the token (rollout_log_probs), ρ = π_θ/π_b; ρ' is ρ of the token, or
// its product or geometric mean over the sequence (ImportanceOptions::level). Weights are
// constants: the gradient is weight × that of log π. Metrics: actor/is_… of ρ and the weights.

/// -sg(min(ρ', C)) A log π (truncated importance sampling, Ionides 2008; Yao et al. 2025). Token,
/// C = 2.
result<PolicyLossOutput> tis_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -sg(ρ' where low ≤ ρ' ≤ high, else 0) A log π (MIS, Liu et al. 2025). Token, [0.5, 2].
result<PolicyLossOutput> mis_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// The same with [0.5, 5] (IcePop, Ling Team 2025).
result<PolicyLossOutput> icepop_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// -sg(min(ρ', C)) A log π, bounded on one side only (AIPO, LlamaRL 2025: C in [2, 10]). Token, C =
/// 5.
result<PolicyLossOutput> aipo_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// A > 0: -A log π; else -sg(min(ρ', C)) A log π (TOPR, Le Roux et al. 2025). Sequence, C = 1.
result<PolicyLossOutput> topr_loss(const PolicyLossInput&, const PolicyLossOptions&);
/// sg(w) · `vanilla` around π_prox, w = min(π_prox/π_b, C) (decoupled PPO, Hilton et al. 2021;
/// AReaL 2025, `behave_imp_weight_cap`). π_prox is old_log_probs, or by `proximal_alphas` on the
/// line between b and θ, a constant too. Token, C = 5; `low` set: 0 outside [low, C].
result<PolicyLossOutput> decoupled_loss(const PolicyLossInput&, const PolicyLossOptions&);

/// Stage 1 of clip_cov and kl_cov for one micro-batch.
result<CovarianceStatistics> collect_covariance(const PolicyLossInput&, const PolicyLossOptions&);

}  // namespace troupe::actors

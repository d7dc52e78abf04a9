#pragma once

// Advantage estimators: from token rewards (and values, or groups) to one advantage per token.
//
// An estimator is a pure function over the whole batch of a step; group statistics and whitening
// see all of it, so it runs once, on the controller. Programs add their own by name.
// **Threads:** pure functions.
// **Invariants:** only unmasked tokens are read; advantages and returns are 0 elsewhere. Statistics
// are f64; scores that are all equal give exactly 0. A group of one sample has no baseline to
// compare with: advantage 0, counted. Rows without an unmasked token belong to no group.
// **Cost:** O(T + S log S); two [T] vectors out, O(S) scratch.
// Formulas and where they differ from verl: docs/algorithms.md.

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

struct AdvantageInput {
  TokenBatchView tokens;
  std::span<const float> rewards;         ///< [T] token rewards, KL penalty included
  std::span<const float> values = {};     ///< [T] critic values; `gae`
  std::span<const float> baselines = {};  ///< [S] reward of the greedy rollout; `remax`
  /// [C][S] separate reward components and their weights (empty: all 1); `gdpo`
  std::vector<std::span<const float>> components = {};
  std::vector<double> component_weights = {};
};

/// An estimator that cannot use an option set away from its default returns kConfig: no key loses
/// silently.
struct AdvantageOptions {
  double gamma = 1;   ///< discount per token; `gae`, `reinforce_plus_plus`
  double lambda = 1;  ///< `gae`
  /// Divide by the group's standard deviation; unset: as the estimator's paper does.
  std::optional<bool> norm_by_std = {};
  /// Bring the batch's advantages to mean 0 and deviation 1; `gae`. Without, a sample's advantages
  /// depend on the sample alone.
  bool whiten = true;
};

/// What a batch could not tell; the numbers behind `critic/zero_variance_groups` and the like.
struct AdvantageReport {
  std::int64_t groups = 0;                ///< groups with at least one non-empty sequence
  std::int64_t singleton_groups = 0;      ///< of one sequence: advantage 0
  std::int64_t zero_variance_groups = 0;  ///< two or more equal scores: advantage 0
  std::int64_t empty_sequences = 0;       ///< without an unmasked token
  std::int64_t unwhitened_tokens = 0;     ///< set to 0 as fewer than two, or all equal
};

struct AdvantageOutput {
  std::vector<float> advantages;  ///< [T]
  std::vector<float> returns;     ///< [T] critic target, or the estimator's own return
  AdvantageReport report;
};

using AdvantageFunction =
    std::function<result<AdvantageOutput>(const AdvantageInput&, const AdvantageOptions&)>;
using AdvantageRegistry = Registry<AdvantageFunction>;

/// gae, grpo, dr_grpo, grpo_passk, gdpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline,
/// remax, opo, gpg.
AdvantageRegistry default_advantages();

// Each estimator; errors are kInvalidArgument for shapes, missing columns and NaN, kConfig for an
// option that it does not use.

/// Generalised advantage estimation (Schulman et al. 2016), skipping masked tokens; whitened
/// unless asked not to. returns = L + V before whitening.
result<AdvantageOutput> gae_advantage(const AdvantageInput&, const AdvantageOptions&);
/// (s - mean) / (std + 1e-6) in the group (DeepSeekMath 2024); without std: Dr.GRPO.
result<AdvantageOutput> grpo_advantage(const AdvantageInput&, const AdvantageOptions&);
/// s - mean in the group (Liu et al. 2025, "Understanding R1-Zero-like training").
result<AdvantageOutput> dr_grpo_advantage(const AdvantageInput&, const AdvantageOptions&);
/// Only the best sample: (best - second best) [/ (std + 1e-6)] (pass@k training).
result<AdvantageOutput> grpo_passk_advantage(const AdvantageInput&, const AdvantageOptions&);
/// GRPO per reward component, weighted sum, whitened over the batch.
result<AdvantageOutput> gdpo_advantage(const AdvantageInput&, const AdvantageOptions&);
/// Leave-one-out baseline: n/(n-1) (s - mean) (Ahmadian et al. 2024).
result<AdvantageOutput> rloo_advantage(const AdvantageInput&, const AdvantageOptions&);
/// Discounted return to go, whitened (Hu 2025).
result<AdvantageOutput> reinforce_plus_plus_advantage(const AdvantageInput&,
                                                      const AdvantageOptions&);
/// s - group mean, whitened over the batch (Hu 2025).
result<AdvantageOutput> reinforce_plus_plus_baseline_advantage(const AdvantageInput&,
                                                               const AdvantageOptions&);
/// Return to go - reward of the greedy rollout (Li et al. 2024).
result<AdvantageOutput> remax_advantage(const AdvantageInput&, const AdvantageOptions&);
/// s - Σ len·s / Σ len in the group (Hao et al. 2025).
result<AdvantageOutput> opo_advantage(const AdvantageInput&, const AdvantageOptions&);
/// B / max(1, #{s ≠ 0}) · (s - mean) (Chu et al. 2025).
result<AdvantageOutput> gpg_advantage(const AdvantageInput&, const AdvantageOptions&);

/// (x - mean) / sqrt(var + 1e-8) over all unmasked tokens, var unbiased; in place, f64 [T].
/// Fewer than two tokens, or all equal: exactly 0. Returns how many tokens that was.
std::int64_t whiten(const TokenBatchView& batch, std::span<double> values);

/// Adds the report's counts as `critic/groups`, `critic/zero_variance_groups`, ….
void add_report(const AdvantageReport& report, WeightedSums& metrics);

}  // namespace troupe::actors

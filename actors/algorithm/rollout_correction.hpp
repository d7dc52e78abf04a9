#pragma once

// Correcting for data that another policy sampled: older weights, or another engine. One weight
// per token, from π_a (proximal, or current) and π_b (what sampled), which multiplies the token's
// loss: importance weight × kept or not.
//
// Call it once over all rows of a train step, where advantages are computed: the result then does
// not depend on micro-batches or ranks. It goes to PolicyUpdate::rollout_weights.
// **Gradient:** weights and masks are constants; nothing is differentiated through them.
// **Threads:** pure functions.
// **Invariants:** π_a = π_b gives weight 1.0F exactly on every unmasked token, whatever the
// options; masked tokens have weight 0 and are not read. Without `second_moment_max` and
// `normalise` rows do not influence each other. **Cost:** O(T), M2PO O(T log T); one [T] vector
// out. The table of corrections, and what a trainer must do: docs/algorithms.md.

#include "actors/algorithm/correction.hpp"
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/proximal.hpp"
#include "actors/algorithm/registry.hpp"
#include "actors/algorithm/rollout_rejection.hpp"
#include "runtime/observe/metrics.hpp"

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::actors {

struct CorrectionOptions {
  ProximalSource proximal = ProximalSource::kRecompute;
  std::optional<RolloutWeightLevel> weight_level = {};  ///< unset: no importance weights
  double weight_low = 0;                                ///< with `mask_outside`
  double weight_high = 2;                               ///< cap, or upper end when masking
  bool mask_outside = false;                            ///< 0 outside [low, high]: MIS, IcePop
  bool normalise = false;                  ///< divide by the batch's mean weight, before rejections
  std::vector<Rejection> rejections = {};  ///< a token must pass all
  std::optional<double> veto_least = {};   ///< see reject_vetoed
  std::optional<double> negative_kl_max = {};    ///< see reject_negative
  std::optional<double> second_moment_max = {};  ///< see reject_second_moment
  bool operator==(const CorrectionOptions&) const = default;

  /// kConfig naming the first value that is out of range or would be ignored.
  result<void> check() const;
  /// Some weight may differ from 1.
  bool changes_weights() const;
  /// Rows influence each other: not for a step that trains on rows as they arrive.
  bool needs_whole_batch() const { return normalise || second_moment_max.has_value(); }

  static constexpr auto fields() {
    using runtime::field;
    using T = CorrectionOptions;
    return std::tuple{field("proximal", &T::proximal),
                      field("weight_level", &T::weight_level),
                      field("weight_low", &T::weight_low),
                      field("weight_high", &T::weight_high),
                      field("mask_outside", &T::mask_outside),
                      field("normalise", &T::normalise),
                      field("rejections", &T::rejections),
                      field("veto_least", &T::veto_least),
                      field("negative_kl_max", &T::negative_kl_max),
                      field("second_moment_max", &T::second_moment_max)};
  }
};

struct CorrectionInput {
  TokenBatchView tokens;
  std::span<const float> log_probs;          ///< [T] π_a: proximal (old_log_probs) or current
  std::span<const float> rollout_log_probs;  ///< [T] π_b, of the same distribution as π_a's
  std::span<const float> advantages = {};    ///< [T]; required by negative_kl_max
};

struct CorrectionOutput {
  std::vector<float> weights;  ///< [T]
  /// Means over tokens: rollout_corr/{kl, k3_kl, weight_mean, weight_squared, masked_fraction,
  /// masked_fraction/<reason>, weight_fraction_high, weight_fraction_low}.
  WeightedSums metrics;
};

/// w_t = level's ratio, capped or masked (Yao et al. 2025, TIS; Liu et al. 2025, MIS; Ling Team
/// 2025, IcePop), times 1 or 0 by the rejections. Errors: kConfig of the options, kInvalidArgument
/// naming column, sequence and token of a NaN.
result<CorrectionOutput> rollout_correction(const CorrectionInput& input,
                                            const CorrectionOptions& options);

/// Everything to log of one batch: ratios before any correction (`add_ratio_metrics`) and what
/// the correction did, under rollout_corr/. Always called, also when nothing is corrected. Then
/// `finish_ratio_metrics("rollout_corr", …)` once.
result<void> add_correction_metrics(const CorrectionInput& input, const CorrectionOutput& output,
                                    runtime::Metrics& metrics);

/// `loss` with weights computed from the *current* log-probs and PolicyLossInput::rollout_log_probs
/// in each call (constants still). For bypass, where stage 1 has π_a = π_b and would see no
/// distance. kConfig where options need the whole batch.
result<PolicyLoss> corrected_loss(PolicyLoss loss, CorrectionOptions options);

/// A correction by its name: options, and the loss it is meant with.
struct CorrectionPreset {
  CorrectionOptions options = {};
  std::string policy_loss = "vanilla";  ///< in default_policy_losses
  ImportanceOptions importance = {};    ///< of that loss
  bool on_current = false;              ///< options apply in the loss: `corrected_loss`
};
using CorrectionRegistry = Registry<CorrectionPreset>;

/// none, naive, tis, tis_seq, mis, mis_seq, mis_geo, icepop, decoupled, decoupled_loglinear, cispo,
/// gspo, aipo, topr, m2po, opsm, veto; and verl's presets by their names: decoupled_token_is,
/// decoupled_seq_is, decoupled_seq_is_rs, decoupled_geo_rs, decoupled_k3_rs, bypass_ppo_clip,
/// bypass_ppo_clip_geo_rs, bypass_pg_is.
CorrectionRegistry default_corrections();

/// verl's algorithm.rollout_correction.* as text; empty where unset.
struct CorrectionKeys {
  std::string rollout_is = "";               ///< token, sequence; ours too: geometric
  std::string rollout_is_threshold = "2.0";  ///< cap, or "low_high" (IcePop)
  bool rollout_is_batch_normalize = false;
  std::string rollout_rs = "";            ///< e.g. "seq_mean_k1,token_k3"
  std::string rollout_rs_threshold = "";  ///< e.g. "0.999_1.001,0.01"
  std::optional<double> rollout_token_veto_threshold = {};
  bool bypass_mode = false;
};
/// kConfig naming the key.
result<CorrectionOptions> correction_from_keys(const CorrectionKeys& keys);

}  // namespace troupe::actors

#include "actors/algorithm/rollout_correction.hpp"

#include "actors/algorithm/ratio_metrics.hpp"
#include "actors/algorithm/token_math.hpp"
#include "runtime/base/check.hpp"

#include <cmath>
#include <limits>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::string_view kPrefix = "rollout_corr";

std::string metric(std::string_view name) { return std::string(kPrefix) + "/" + std::string(name); }

result<void> check_input(const CorrectionInput& input, const CorrectionOptions& options) {
  TROUPE_TRY_VOID(options.check());
  TROUPE_TRY_VOID(input.tokens.check());
  TROUPE_TRY_VOID(check_log_probs(input.tokens, input.log_probs, "log_probs"));
  TROUPE_TRY_VOID(check_log_probs(input.tokens, input.rollout_log_probs, "rollout_log_probs"));
  if (options.negative_kl_max) return check_tokens(input.tokens, input.advantages, "advantages");
  return {};
}

/// Importance weights, or ones; their metrics.
result<RolloutWeights> importance_weights(const CorrectionInput& input,
                                          const CorrectionOptions& options) {
  if (options.weight_level)
    return rollout_weights(input.tokens, input.log_probs, input.rollout_log_probs,
                           {.level = *options.weight_level,
                            .high = options.weight_high,
                            .low = options.weight_low,
                            .mask_outside = options.mask_outside});
  RolloutWeights ones{.weights = std::vector<float>(input.tokens.tokens(), 0.0F), .metrics = {}};
  for_each_token(input.tokens, [&](std::size_t, std::size_t t) { ones.weights[t] = 1.0F; });
  return ones;
}

/// Divides by the mean over tokens, or over sequences where a sequence shares one weight.
void normalise(const TokenBatchView& batch, bool per_sequence, std::vector<float>& weights) {
  double sum = 0;
  double count = 0;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      sum += weights[t];
      ++count;
      if (per_sequence) break;
    }
  }
  if (!(sum > 0)) return;  // every weight is 0
  for (float& weight : weights) weight = static_cast<float>(weight * count / sum);
}

/// Runs every criterion that is set; `told` hears the reason and how many tokens it rejects.
template <class Told>
void run_rejections(const CorrectionInput& input, const CorrectionOptions& options,
                    std::span<std::uint8_t> kept, Told&& told) {
  const TokenBatchView& batch = input.tokens;
  for (const Rejection& rejection : options.rejections)
    told(rejection_criterion_name(rejection.criterion),
         reject(batch, input.log_probs, input.rollout_log_probs, rejection, kept));
  if (options.veto_least)
    told("veto",
         reject_vetoed(batch, input.log_probs, input.rollout_log_probs, *options.veto_least, kept));
  if (options.negative_kl_max)
    told("negative", reject_negative(batch, input.log_probs, input.rollout_log_probs,
                                     input.advantages, *options.negative_kl_max, kept));
  if (options.second_moment_max)
    told("second_moment", reject_second_moment(batch, input.log_probs, input.rollout_log_probs,
                                               *options.second_moment_max, kept));
}

result<void> check_bound(const std::optional<double>& bound, double above, double below,
                         std::string_view name) {
  if (!bound || (*bound > above && *bound < below)) return {};
  return fail(ErrorCode::kConfig, "{}: {}, wanted more than {} and less than {}", name, *bound,
              above, below);
}

}  // namespace

bool CorrectionOptions::changes_weights() const {
  return weight_level.has_value() || !rejections.empty() || veto_least.has_value() ||
         negative_kl_max.has_value() || second_moment_max.has_value();
}

result<void> CorrectionOptions::check() const {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Rejection& rejection : rejections) TROUPE_TRY_VOID(rejection.check());
  TROUPE_TRY_VOID(
      check_bound(veto_least, std::exp(-kLogRatioMax), 1, "rollout_token_veto_threshold"));
  TROUPE_TRY_VOID(check_bound(second_moment_max, 0, infinity, "m2_threshold"));
  if (negative_kl_max && !(*negative_kl_max >= 0 && std::isfinite(*negative_kl_max)))
    return fail(ErrorCode::kConfig, "opsm_delta: {}, wanted 0 or more", *negative_kl_max);
  if (!weight_level && normalise)
    return fail(ErrorCode::kConfig,
                "rollout_is_batch_normalize: set, but rollout_is is not: there are no weights");
  if (!weight_level && mask_outside)
    return fail(ErrorCode::kConfig, "rollout_is_threshold: masks, but rollout_is is not set");
  if (!weight_level) return {};
  if (!(weight_high >= 1 && std::isfinite(weight_high)))
    return fail(ErrorCode::kConfig, "rollout_is_threshold: {}, wanted 1 or more", weight_high);
  if (mask_outside ? !(weight_low >= 0 && weight_low <= 1) : weight_low != 0)
    return fail(ErrorCode::kConfig, "rollout_is_threshold: low bound {}, wanted {}", weight_low,
                mask_outside ? "0 to 1" : "none, as weights are capped on one side");
  return {};
}

result<CorrectionOutput> rollout_correction(const CorrectionInput& input,
                                            const CorrectionOptions& options) {
  TROUPE_TRY_VOID(check_input(input, options));
  const TokenBatchView& batch = input.tokens;
  const auto tokens = static_cast<double>(count_tokens(batch).tokens);
  TROUPE_TRY(RolloutWeights found, importance_weights(input, options));
  CorrectionOutput output{.weights = std::move(found.weights), .metrics = {}};
  for (const char* name : {"weight_fraction_high", "weight_fraction_low"})
    if (options.weight_level)
      output.metrics.add(metric(name), found.metrics.sum(metric(name)), tokens);
  if (options.normalise)
    normalise(batch, *options.weight_level != RolloutWeightLevel::kToken, output.weights);
  std::vector<std::uint8_t> kept(batch.tokens(), 1);
  run_rejections(input, options, kept, [&](std::string_view reason, std::int64_t rejected) {
    output.metrics.add(metric("masked_fraction/") + std::string(reason),
                       static_cast<double>(rejected), tokens);
  });
  double sum = 0;
  double squares = 0;
  double none = 0;
  double kl = 0;
  double k3 = 0;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    if (kept[t] == 0) output.weights[t] = 0;
    const double weight = output.weights[t];
    const double delta = log_ratio(input.log_probs[t], input.rollout_log_probs[t]).value;
    sum += weight;
    squares += weight * weight;
    none += weight == 0 ? 1 : 0;
    kl -= delta;
    k3 += std::expm1(delta) - delta;
  });
  const std::pair<const char*, double> means[] = {{"weight_mean", sum},
                                                  {"weight_squared", squares},
                                                  {"masked_fraction", none},
                                                  {"kl", kl},
                                                  {"k3_kl", k3}};
  for (const auto& [name, total] : means) output.metrics.add(metric(name), total, tokens);
  return output;
}

result<void> add_correction_metrics(const CorrectionInput& input, const CorrectionOutput& output,
                                    runtime::Metrics& metrics) {
  TROUPE_TRY_VOID(
      add_ratio_metrics(input.tokens, input.log_probs, input.rollout_log_probs, kPrefix, metrics));
  for (const auto& [name, entry] : output.metrics.entries()) {
    if (entry.weight == 0 || name == metric("kl") || name == metric("k3_kl")) continue;
    metrics.add(name, entry.sum / entry.weight, runtime::Reduction::kMean, entry.weight);
  }
  return {};
}

result<PolicyLoss> corrected_loss(PolicyLoss loss, CorrectionOptions options) {
  TROUPE_TRY_VOID(options.check());
  if (options.needs_whole_batch())
    return fail(ErrorCode::kConfig,
                "rollout correction: {} needs the whole batch, and cannot run inside the loss",
                options.normalise ? "rollout_is_batch_normalize" : "m2_threshold");
  if (!options.changes_weights()) return loss;
  loss.reads_rollout = true;
  loss.apply = [inner = std::move(loss.apply), options = std::move(options)](
                   const PolicyLossInput& input,
                   const PolicyLossOptions& loss_options) -> result<PolicyLossOutput> {
    TROUPE_TRY(CorrectionOutput correction,
               rollout_correction({.tokens = input.tokens,
                                   .log_probs = input.log_probs,
                                   .rollout_log_probs = input.rollout_log_probs,
                                   .advantages = input.advantages},
                                  options));
    if (!input.rollout_weights.empty()) {
      TROUPE_TRY_VOID(check_tokens(input.tokens, input.rollout_weights, "rollout_weights"));
      for_each_token(input.tokens, [&](std::size_t, std::size_t t) {
        correction.weights[t] *= input.rollout_weights[t];
      });
    }
    PolicyLossInput corrected = input;
    corrected.rollout_weights = correction.weights;
    TROUPE_TRY(PolicyLossOutput output, inner(corrected, loss_options));
    output.metrics.merge(correction.metrics);
    return output;
  };
  return loss;
}

result<CorrectionOptions> correction_from_keys(const CorrectionKeys& keys) {
  CorrectionOptions options;
  options.proximal = keys.bypass_mode ? ProximalSource::kRollout : ProximalSource::kRecompute;
  if (!keys.rollout_is.empty()) {
    TROUPE_TRY(options.weight_level, rollout_weight_level_from_name(keys.rollout_is));
    TROUPE_TRY(const BoundText bound,
               parse_bound(keys.rollout_is_threshold, "rollout_is_threshold"));
    options.weight_low = bound.low;
    options.weight_high = bound.high;
    options.mask_outside = bound.two_sided;
  }
  options.normalise = keys.rollout_is_batch_normalize;
  TROUPE_TRY(options.rejections, parse_rejections(keys.rollout_rs, keys.rollout_rs_threshold));
  options.veto_least = keys.rollout_token_veto_threshold;
  TROUPE_TRY_VOID(options.check());
  return options;
}

}  // namespace troupe::actors

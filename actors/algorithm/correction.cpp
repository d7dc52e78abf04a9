#include "actors/algorithm/correction.hpp"

#include "actors/algorithm/token_math.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

result<void> check_options(const RolloutWeightOptions& options) {
  if (!(std::isfinite(options.high) && options.high > 0))
    return fail(ErrorCode::kConfig, "rollout_is_threshold: {}, wanted more than 0", options.high);
  if (!(options.low >= 0 && options.low <= options.high))
    return fail(ErrorCode::kConfig, "rollout_is_threshold: low bound {}, wanted 0 to {}",
                options.low, options.high);
  if (options.low > 0 && !options.mask_outside)
    return fail(ErrorCode::kConfig,
                "rollout_is_threshold: low bound {} is only used when masking outside",
                options.low);
  return {};
}

/// log-ratio that the whole sequence shares, within ±20.
double sequence_log_ratio(const TokenBatchView& batch, std::size_t sequence,
                          std::span<const float> old_log_probs,
                          std::span<const float> rollout_log_probs, RolloutWeightLevel level) {
  double sum = 0;
  for (std::size_t t = batch.begin(sequence); t < batch.end(sequence); ++t)
    if (batch.mask[t] != 0) sum += log_ratio(old_log_probs[t], rollout_log_probs[t]).value;
  if (level == RolloutWeightLevel::kGeometric)
    sum /= static_cast<double>(std::max<std::int64_t>(1, valid_length(batch, sequence)));
  return std::clamp(sum, -kLogRatioMax, kLogRatioMax);
}

}  // namespace

result<RolloutWeightLevel> rollout_weight_level_from_name(std::string_view name) {
  if (name == "token") return RolloutWeightLevel::kToken;
  if (name == "sequence") return RolloutWeightLevel::kSequence;
  if (name == "geometric") return RolloutWeightLevel::kGeometric;
  return fail(ErrorCode::kConfig, "rollout_is: unknown '{}', wanted token, sequence or geometric",
              name);
}

result<RolloutWeights> rollout_weights(const TokenBatchView& batch,
                                       std::span<const float> old_log_probs,
                                       std::span<const float> rollout_log_probs,
                                       const RolloutWeightOptions& options) {
  TROUPE_TRY_VOID(batch.check());
  TROUPE_TRY_VOID(check_options(options));
  TROUPE_TRY_VOID(check_log_probs(batch, old_log_probs, "old_log_probs"));
  TROUPE_TRY_VOID(check_log_probs(batch, rollout_log_probs, "rollout_log_probs"));
  RolloutWeights output{.weights = std::vector<float>(batch.tokens(), 0.0F), .metrics = {}};
  double kl = 0;
  double k3 = 0;
  double sum = 0;
  double high = 0;
  double low = 0;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const double shared =
        sequence_log_ratio(batch, s, old_log_probs, rollout_log_probs, options.level);
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const double token = log_ratio(old_log_probs[t], rollout_log_probs[t]).value;
      const double weight = std::exp(options.level == RolloutWeightLevel::kToken ? token : shared);
      const bool outside = weight > options.high || weight < options.low;
      double kept = std::min(weight, options.high);
      if (options.mask_outside && outside) kept = 0;
      output.weights[t] = static_cast<float>(kept);
      kl -= token;
      k3 += std::expm1(token) - token;
      sum += kept;
      high += weight > options.high ? 1 : 0;
      low += weight < options.low ? 1 : 0;
    }
  }
  const auto tokens = static_cast<double>(count_tokens(batch).tokens);
  output.metrics.add("rollout_corr/kl", kl, tokens);
  output.metrics.add("rollout_corr/k3_kl", k3, tokens);
  output.metrics.add("rollout_corr/weight_mean", sum, tokens);
  output.metrics.add("rollout_corr/weight_fraction_high", high, tokens);
  output.metrics.add("rollout_corr/weight_fraction_low", low, tokens);
  return output;
}

}  // namespace troupe::actors

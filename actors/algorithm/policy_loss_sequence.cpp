// Losses whose ratio belongs to a whole sequence: GSPO and GMPO.
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/policy_terms.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

constexpr LossAggregation kDefaultMode = LossAggregation::kSeqMeanTokenMean;
constexpr double kSequenceLogRatioMax = 10.0;  ///< GSPO's own upper bound, as in verl

/// Mean log-ratio over the unmasked tokens, each within ±20.
double mean_log_ratio(const PolicyLossInput& input, std::size_t sequence) {
  const TokenBatchView& batch = input.tokens;
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t t = batch.begin(sequence); t < batch.end(sequence); ++t) {
    if (batch.mask[t] == 0) continue;
    sum += log_ratio(input.log_probs[t], input.old_log_probs[t]).value;
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

/// Token log-ratio of GMPO, held back only on the side that the advantage pushes to.
struct HeldRatio {
  double value = 0;
  bool has_slope = false;
  bool clipped = false;
};
HeldRatio held_ratio(const PolicyToken& token, const PolicyLossOptions& options) {
  if (token.advantage == 0) return {};
  const double bound = token.advantage > 0 ? options.clip_high : -options.clip_low;
  const double value =
      token.advantage > 0 ? std::min(token.log_ratio, bound) : std::max(token.log_ratio, bound);
  const bool held = value != token.log_ratio;
  return {.value = value, .has_slope = !held && token.ratio_inside, .clipped = held};
}

/// Geometric-mean ratio, mean advantage and importance weight of one sequence.
struct SequenceTerm {
  double ratio = 0;
  double advantage = 0;
  double rollout_weight = 1;
};
SequenceTerm sequence_term(const PolicyLossInput& input, std::size_t sequence, std::int64_t length,
                           const PolicyLossOptions& options) {
  const TokenBatchView& batch = input.tokens;
  double log_ratios = 0;
  double advantages = 0;
  double log_weights = 0;
  for (std::size_t t = batch.begin(sequence); t < batch.end(sequence); ++t) {
    if (batch.mask[t] == 0) continue;
    const PolicyToken token = policy_token(input, sequence, t);
    log_ratios += held_ratio(token, options).value;
    advantages += token.advantage;
    if (!input.rollout_weights.empty()) log_weights += std::log(double{input.rollout_weights[t]});
  }
  const auto count = static_cast<double>(length);
  return {.ratio = std::exp(log_ratios / count),
          .advantage = advantages / count,
          .rollout_weight = std::exp(log_weights / count)};
}

}  // namespace

result<PolicyLossOutput> gspo_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "gspo"));
  std::vector<double> means(input.tokens.sequences());
  for (std::size_t s = 0; s < means.size(); ++s) means[s] = mean_log_ratio(input, s);
  return sum_terms(input, options, kDefaultMode, [&](const PolicyToken& token, std::size_t s) {
    // Every token carries the sequence's ratio; its own log-prob only receives the gradient.
    const double ratio = std::exp(std::min(means[s], kSequenceLogRatioMax));
    const bool moves = token.ratio_inside && means[s] <= kSequenceLogRatioMax;
    return clipped_term(token.advantage, ratio, moves ? ratio : 0, options);
  });
}

result<PolicyLossOutput> geo_mean_loss(const PolicyLossInput& input,
                                       const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "geo_mean"));
  const TokenBatchView& batch = input.tokens;
  TROUPE_TRY(
      const TokenWeights weights,
      TokenWeights::make(batch, options.aggregation.value_or(kDefaultMode), input.normaliser));
  PolicyLossOutput output;
  output.gradient.assign(batch.tokens(), 0.0F);
  PolicyMetrics metrics;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const std::int64_t length = valid_length(batch, s);
    if (length == 0) continue;
    const SequenceTerm term = sequence_term(input, s, length, options);
    const double value = -term.advantage * term.ratio * term.rollout_weight;
    const double weight = weights.of_sequence(length);  // of each token; all carry the same value
    output.loss += weight * static_cast<double>(length) * value;
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const PolicyToken token = policy_token(input, s, t);
      const HeldRatio held = held_ratio(token, options);
      output.gradient[t] = held.has_slope ? static_cast<float>(weight * value) : 0.0F;
      metrics.add(token, {.clipped = held.clipped && token.advantage > 0,
                          .clipped_lower = held.clipped && token.advantage < 0});
    }
  }
  metrics.write(count_tokens(batch), input.normaliser, output.loss, true, output.metrics);
  return output;
}

}  // namespace troupe::actors

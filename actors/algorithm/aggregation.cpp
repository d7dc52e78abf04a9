#include "actors/algorithm/aggregation.hpp"

#include "actors/algorithm/token_math.hpp"

#include <array>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::array<std::pair<LossAggregation, std::string_view>, 5> kNames = {{
    {LossAggregation::kTokenMean, "token-mean"},
    {LossAggregation::kTokenSum, "token-sum"},
    {LossAggregation::kSeqMeanTokenSum, "seq-mean-token-sum"},
    {LossAggregation::kSeqMeanTokenSumNorm, "seq-mean-token-sum-norm"},
    {LossAggregation::kSeqMeanTokenMean, "seq-mean-token-mean"},
}};

double inverse(double denominator) { return denominator > 0 ? 1.0 / denominator : 0.0; }

}  // namespace

std::string_view loss_aggregation_name(LossAggregation mode) {
  for (const auto& [known, name] : kNames)
    if (known == mode) return name;
  return "unknown";
}

result<LossAggregation> loss_aggregation_from_name(std::string_view name) {
  for (const auto& [mode, known] : kNames)
    if (known == name) return mode;
  return fail(ErrorCode::kConfig,
              "loss_agg_mode: unknown '{}', wanted token-mean, token-sum, seq-mean-token-sum, "
              "seq-mean-token-sum-norm or seq-mean-token-mean",
              name);
}

result<double> deferred_scale(LossAggregation mode, const TokenCounts& global,
                              double scale_factor) {
  const auto sequences = static_cast<double>(global.sequences);
  switch (mode) {
    case LossAggregation::kTokenMean:
      return inverse(static_cast<double>(global.tokens));
    case LossAggregation::kTokenSum:
      return 1.0;
    case LossAggregation::kSeqMeanTokenSum:
    case LossAggregation::kSeqMeanTokenMean:
      return inverse(sequences);
    case LossAggregation::kSeqMeanTokenSumNorm:
      if (scale_factor > 0) return inverse(sequences * scale_factor);
      return fail(ErrorCode::kConfig, "seq-mean-token-sum-norm: scale factor is {}, wanted > 0",
                  scale_factor);
  }
  return fail(ErrorCode::kConfig, "loss_agg_mode: unknown mode {}", static_cast<int>(mode));
}

result<TokenWeights> TokenWeights::make(const TokenBatchView& batch, LossAggregation mode,
                                        const LossNormaliser& normaliser) {
  const TokenCounts& global = normaliser.global;
  TROUPE_TRY(const double scale, deferred_scale(mode, global, normaliser.scale_factor));
  TokenWeights weights;
  weights.per_token_ = normaliser.deferred ? 1.0 : scale;
  weights.divide_by_length_ = mode == LossAggregation::kSeqMeanTokenMean;
  if (normaliser.deferred) return weights;
  const TokenCounts local = count_tokens(batch);
  if (global.tokens < local.tokens || global.sequences < local.sequences)
    return fail(ErrorCode::kInvalidArgument,
                "normaliser: {} tokens in {} sequences globally, but this part has {} in {}",
                global.tokens, global.sequences, local.tokens, local.sequences);
  return weights;
}

double TokenWeights::of_sequence(std::int64_t valid_tokens) const {
  if (valid_tokens == 0) return 0;
  return divide_by_length_ ? per_token_ / static_cast<double>(valid_tokens) : per_token_;
}

result<TokenLoss> aggregate(const TokenBatchView& batch, std::span<const float> terms,
                            LossAggregation mode, const LossNormaliser& normaliser) {
  TROUPE_TRY_VOID(batch.check());
  TROUPE_TRY_VOID(check_tokens(batch, terms, "terms"));
  TROUPE_TRY(const TokenWeights weights, TokenWeights::make(batch, mode, normaliser));
  TokenLoss loss{.value = 0, .gradient = std::vector<float>(batch.tokens(), 0.0F)};
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const double weight = weights.of_sequence(valid_length(batch, s));
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      loss.value += weight * static_cast<double>(terms[t]);
      loss.gradient[t] = static_cast<float>(weight);
    }
  }
  return loss;
}

}  // namespace troupe::actors

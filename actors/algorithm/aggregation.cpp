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

result<TokenWeights> TokenWeights::make(const TokenBatchView& batch, LossAggregation mode,
                                        const LossNormaliser& normaliser) {
  const TokenCounts local = count_tokens(batch);
  const TokenCounts& global = normaliser.global;
  if (global.tokens < local.tokens || global.sequences < local.sequences)
    return fail(ErrorCode::kInvalidArgument,
                "normaliser: {} tokens in {} sequences globally, but this part has {} in {}",
                global.tokens, global.sequences, local.tokens, local.sequences);
  TokenWeights weights;
  const auto sequences = static_cast<double>(global.sequences);
  switch (mode) {
    case LossAggregation::kTokenMean:
      weights.per_token_ = inverse(static_cast<double>(global.tokens));
      break;
    case LossAggregation::kTokenSum:
      weights.per_token_ = 1.0;
      break;
    case LossAggregation::kSeqMeanTokenSum:
      weights.per_token_ = inverse(sequences);
      break;
    case LossAggregation::kSeqMeanTokenSumNorm:
      if (!(normaliser.scale_factor > 0))
        return fail(ErrorCode::kConfig, "seq-mean-token-sum-norm: scale factor is {}, wanted > 0",
                    normaliser.scale_factor);
      weights.per_token_ = inverse(sequences * normaliser.scale_factor);
      break;
    case LossAggregation::kSeqMeanTokenMean:
      weights.per_token_ = inverse(sequences);
      weights.divide_by_length_ = true;
      break;
  }
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

#include "actors/algorithm/value_loss.hpp"

#include "actors/algorithm/policy_terms.hpp"
#include "actors/algorithm/token_math.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

struct ValueTerm {
  double value = 0;
  double slope = 0;
  bool clipped = false;
};

ValueTerm value_term(double value, double target) {
  const double difference = value - target;
  return {.value = difference * difference / 2, .slope = difference};
}

ValueTerm clipped_value_term(double value, double old_value, double target, double clip) {
  const ValueTerm plain = value_term(value, target);
  const double held = std::clamp(value, old_value - clip, old_value + clip);
  ValueTerm clipped = value_term(held, target);
  if (clipped.value <= plain.value) return plain;
  clipped.slope = 0;  // larger only where the clip holds the value back
  clipped.clipped = true;
  return clipped;
}

result<void> check_input(const ValueLossInput& input, const ValueLossOptions& options) {
  TROUPE_TRY_VOID(input.tokens.check());
  TROUPE_TRY_VOID(check_tokens(input.tokens, input.values, "values"));
  TROUPE_TRY_VOID(check_tokens(input.tokens, input.returns, "returns"));
  if (!(std::isfinite(options.clip) && options.clip >= 0))
    return fail(ErrorCode::kConfig, "cliprange_value: {}, wanted 0 or more", options.clip);
  if (options.clip > 0) return check_tokens(input.tokens, input.old_values, "old_values");
  return {};
}

}  // namespace

result<ValueLossOutput> value_loss(const ValueLossInput& input, const ValueLossOptions& options) {
  TROUPE_TRY_VOID(check_input(input, options));
  const TokenBatchView& batch = input.tokens;
  TROUPE_TRY(const TokenWeights weights,
             TokenWeights::make(batch, options.aggregation, input.normaliser));
  ValueLossOutput output;
  output.loss.gradient.assign(batch.tokens(), 0.0F);
  double clipped = 0;
  double predicted = 0;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const double weight = weights.of_sequence(valid_length(batch, s));
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const ValueTerm term = options.clip > 0
                                 ? clipped_value_term(input.values[t], input.old_values[t],
                                                      input.returns[t], options.clip)
                                 : value_term(input.values[t], input.returns[t]);
      output.loss.value += weight * term.value;
      output.loss.gradient[t] = static_cast<float>(weight * term.slope);
      clipped += term.clipped ? 1 : 0;
      predicted += input.values[t];
    }
  }
  const TokenCounts local = count_tokens(batch);
  const auto tokens = static_cast<double>(local.tokens);
  add_aggregate("critic/vf_loss", output.loss.value, local, input.normaliser, output.metrics);
  output.metrics.add("critic/vf_clipfrac", clipped, tokens);
  output.metrics.add("critic/vpred_mean", predicted, tokens);
  return output;
}

result<std::optional<double>> explained_variance(const TokenBatchView& batch,
                                                 std::span<const float> values,
                                                 std::span<const float> returns) {
  TROUPE_TRY_VOID(batch.check());
  TROUPE_TRY_VOID(check_tokens(batch, values, "values"));
  TROUPE_TRY_VOID(check_tokens(batch, returns, "returns"));
  const auto count = static_cast<double>(count_tokens(batch).tokens);
  double return_sum = 0;
  double rest_sum = 0;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    return_sum += returns[t];
    rest_sum += double{returns[t]} - values[t];
  });
  double return_squares = 0;
  double rest_squares = 0;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    const double from_mean = returns[t] - return_sum / count;
    const double rest_from_mean = double{returns[t]} - values[t] - rest_sum / count;
    return_squares += from_mean * from_mean;
    rest_squares += rest_from_mean * rest_from_mean;
  });
  if (return_squares == 0) return std::optional<double>{};
  return std::optional<double>(1 - rest_squares / return_squares);
}

}  // namespace troupe::actors

// Estimators that look along the tokens of a sequence: GAE, REINFORCE++ and ReMax.
#include "actors/algorithm/advantage.hpp"
#include "actors/algorithm/advantage_common.hpp"

#include <cmath>

namespace troupe::actors {
namespace {

std::int64_t count_empty(const TokenBatchView& batch) {
  return static_cast<std::int64_t>(batch.sequences()) - count_tokens(batch).sequences;
}

/// G_t = r_t + γ G_{t+1}, where t+1 is the next unmasked token. f32 [T] → f64 [T].
std::vector<double> returns_to_go(const TokenBatchView& batch, std::span<const float> rewards,
                                  double gamma) {
  std::vector<double> returns(batch.tokens(), 0.0);
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    double running = 0;
    for (std::size_t t = batch.end(s); t-- > batch.begin(s);) {
      if (batch.mask[t] == 0) continue;
      running = rewards[t] + gamma * running;
      returns[t] = running;
    }
  }
  return returns;
}

}  // namespace

result<AdvantageOutput> gae_advantage(const AdvantageInput& input,
                                      const AdvantageOptions& options) {
  TROUPE_TRY_VOID(
      check_advantage(input, options, "gae", {.gamma = true, .lambda = true, .whiten = true}));
  TROUPE_TRY_VOID(check_tokens(input.tokens, input.values, "values"));
  const TokenBatchView& batch = input.tokens;
  std::vector<double> advantages(batch.tokens(), 0.0);
  std::vector<double> returns(batch.tokens(), 0.0);
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    double next_value = 0;
    double running = 0;
    for (std::size_t t = batch.end(s); t-- > batch.begin(s);) {
      if (batch.mask[t] == 0) continue;  // a tool token: value and trace carry over it
      const double value = input.values[t];
      const double surprise = input.rewards[t] + options.gamma * next_value - value;
      running = surprise + options.gamma * options.lambda * running;
      next_value = value;
      advantages[t] = running;
      returns[t] = running + value;
    }
  }
  AdvantageOutput output;
  if (options.whiten) output.report.unwhitened_tokens = whiten(batch, advantages);
  output.report.empty_sequences = count_empty(batch);
  output.advantages = to_floats(advantages);
  output.returns = to_floats(returns);
  return output;
}

result<AdvantageOutput> reinforce_plus_plus_advantage(const AdvantageInput& input,
                                                      const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "reinforce_plus_plus", {.gamma = true}));
  std::vector<double> returns = returns_to_go(input.tokens, input.rewards, options.gamma);
  AdvantageOutput output;
  output.returns = to_floats(returns);
  output.report.unwhitened_tokens = whiten(input.tokens, returns);
  output.report.empty_sequences = count_empty(input.tokens);
  output.advantages = to_floats(returns);
  return output;
}

result<AdvantageOutput> remax_advantage(const AdvantageInput& input,
                                        const AdvantageOptions& options) {
  TROUPE_TRY_VOID(check_advantage(input, options, "remax", {}));
  const TokenBatchView& batch = input.tokens;
  if (input.baselines.size() != batch.sequences())
    return fail(ErrorCode::kInvalidArgument, "baselines: {} entries, wanted {} (one per sequence)",
                input.baselines.size(), batch.sequences());
  std::vector<double> returns = returns_to_go(batch, input.rewards, 1.0);
  AdvantageOutput output;
  output.returns = to_floats(returns);
  output.report.empty_sequences = count_empty(batch);
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      if (!std::isfinite(input.baselines[s]))
        return fail(ErrorCode::kInvalidArgument, "baselines: sequence {} is {}", s,
                    input.baselines[s]);
      returns[t] -= input.baselines[s];
    }
  }
  output.advantages = to_floats(returns);
  return output;
}

}  // namespace troupe::actors

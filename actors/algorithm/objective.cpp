#include "actors/algorithm/objective.hpp"

#include "actors/algorithm/policy_terms.hpp"

#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

result<void> check_coefficient(double coefficient, std::string_view name, bool has_input,
                               std::string_view input) {
  if (!std::isfinite(coefficient))
    return fail(ErrorCode::kConfig, "{}: {}, wanted a number", name, coefficient);
  if (coefficient != 0 && !has_input)
    return fail(ErrorCode::kInvalidArgument, "{}: {} is set, but there is no {}", name, coefficient,
                input);
  return {};
}

}  // namespace

result<PolicyObjectiveOutput> policy_objective(const PolicyLoss& loss,
                                               const PolicyObjectiveInput& input,
                                               const PolicyObjectiveOptions& options) {
  const TokenBatchView& batch = input.loss.tokens;
  TROUPE_TRY_VOID(check_coefficient(options.entropy_coefficient, "entropy_coeff",
                                    input.entropy.size() == batch.tokens(), "entropy"));
  TROUPE_TRY_VOID(check_coefficient(options.kl_coefficient, "kl_loss_coef",
                                    input.reference_log_probs.size() == batch.tokens(),
                                    "reference log-prob"));
  TROUPE_TRY(PolicyLossOutput policy, loss.apply(input.loss, options.loss));
  const LossAggregation mode = options.loss.aggregation.value_or(loss.default_aggregation);
  const LossNormaliser& normaliser = input.loss.normaliser;
  const TokenCounts local = count_tokens(batch);
  PolicyObjectiveOutput output{.loss = policy.loss,
                               .log_prob_gradient = std::move(policy.gradient),
                               .entropy_gradient = {},
                               .metrics = std::move(policy.metrics)};
  if (!input.entropy.empty()) {
    TROUPE_TRY(TokenLoss entropy, aggregate(batch, input.entropy, mode, normaliser));
    add_aggregate("actor/entropy", entropy.value, local, normaliser, output.metrics);
    if (options.entropy_coefficient != 0) {
      output.loss -= options.entropy_coefficient * entropy.value;
      for (float& slope : entropy.gradient)
        slope = static_cast<float>(-options.entropy_coefficient * slope);
      output.entropy_gradient = std::move(entropy.gradient);
    }
  }
  if (!input.reference_log_probs.empty()) {
    TROUPE_TRY(const TokenLoss kl, kl_loss(batch, input.loss.log_probs, input.reference_log_probs,
                                           options.kl, mode, normaliser));
    add_aggregate("actor/kl_loss", kl.value, local, normaliser, output.metrics);
    if (options.kl_coefficient != 0) {
      output.loss += options.kl_coefficient * kl.value;
      for (std::size_t t = 0; t < kl.gradient.size(); ++t)
        output.log_prob_gradient[t] += static_cast<float>(options.kl_coefficient * kl.gradient[t]);
    }
  }
  add_aggregate("actor/loss", output.loss, local, normaliser, output.metrics);
  return output;
}

}  // namespace troupe::actors

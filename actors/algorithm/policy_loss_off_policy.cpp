// Losses whose importance weights compare the policy with the one that sampled.
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/policy_terms.hpp"
#include "actors/algorithm/proximal.hpp"

#include <cmath>
#include <string>

namespace troupe::actors {
namespace {

constexpr std::string_view kStagePrefix = "rollout_corr/";

/// What a loss uses where the options leave it open.
struct ImportanceDefaults {
  RolloutWeightLevel level = RolloutWeightLevel::kToken;
  double low = 0;
  double high = 2;
  bool masks = false;
};

result<RolloutWeightOptions> weight_options(const ImportanceOptions& options,
                                            const ImportanceDefaults& defaults,
                                            std::string_view loss) {
  const bool masks = defaults.masks;
  if (options.low && !masks)
    return fail(ErrorCode::kConfig, "{}: importance low bound {} is set, but this loss only caps",
                loss, *options.low);
  return RolloutWeightOptions{.level = options.level.value_or(defaults.level),
                              .high = options.high.value_or(defaults.high),
                              .low = masks ? options.low.value_or(defaults.low) : 0,
                              .mask_outside = masks};
}

result<void> check_rollout(const PolicyLossInput& input, std::string_view loss) {
  TROUPE_TRY_VOID(input.tokens.check());
  if (input.rollout_log_probs.empty() && input.tokens.tokens() > 0)
    return fail(ErrorCode::kInvalidArgument,
                "{}: no rollout_log_probs; recomputed log-probs in their place would hide the "
                "distance to the policy that sampled",
                loss);
  TROUPE_TRY_VOID(check_log_probs(input.tokens, input.log_probs, "log_probs"));
  return check_log_probs(input.tokens, input.rollout_log_probs, "rollout_log_probs");
}

/// Metrics of weights under actor/is_…, and with them the mean square, from which ESS follows.
void add_weight_metrics(const TokenBatchView& batch, std::span<const float> weights,
                        const WeightedSums& found, WeightedSums& metrics) {
  for (const auto& [name, entry] : found.entries())
    metrics.add("actor/is_" + name.substr(kStagePrefix.size()), entry.sum, entry.weight);
  double squares = 0;
  double none = 0;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    squares += double{weights[t]} * double{weights[t]};
    none += weights[t] == 0 ? 1 : 0;
  });
  const auto tokens = static_cast<double>(count_tokens(batch).tokens);
  metrics.add("actor/is_weight_squared", squares, tokens);
  metrics.add("actor/is_masked_fraction", none, tokens);
}

/// `weights` times the caller's own.
std::vector<float> with_given(const PolicyLossInput& input, std::vector<float> weights) {
  if (!input.rollout_weights.empty())
    for_each_token(input.tokens,
                   [&](std::size_t, std::size_t t) { weights[t] *= input.rollout_weights[t]; });
  return weights;
}

/// -weight·A·log π with weights from π_θ/π_b; `adjust` may change one token's.
template <class Adjust>
result<PolicyLossOutput> importance_loss(const PolicyLossInput& input,
                                         const PolicyLossOptions& options, std::string_view loss,
                                         const ImportanceDefaults& defaults, Adjust&& adjust) {
  TROUPE_TRY_VOID(check_rollout(input, loss));
  TROUPE_TRY(const RolloutWeightOptions chosen, weight_options(options.importance, defaults, loss));
  PolicyLossInput against = input;  // the clip metrics and ppo_kl are of θ against b
  against.old_log_probs = input.rollout_log_probs;
  TROUPE_TRY_VOID(check_policy(against, options, loss));
  TROUPE_TRY(RolloutWeights weights,
             rollout_weights(input.tokens, input.log_probs, input.rollout_log_probs, chosen));
  for_each_token(input.tokens, [&](std::size_t, std::size_t t) {
    weights.weights[t] = adjust(input.advantages[t], weights.weights[t]);
  });
  const std::vector<float> all = with_given(input, weights.weights);
  against.rollout_weights = all;
  TROUPE_TRY(PolicyLossOutput output, gpg_loss(against, options));
  add_weight_metrics(input.tokens, weights.weights, weights.metrics, output.metrics);
  return output;
}

float unchanged(float, float weight) { return weight; }

}  // namespace

result<PolicyLossOutput> tis_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  return importance_loss(input, options, "tis", {.high = 2}, unchanged);
}

result<PolicyLossOutput> mis_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  return importance_loss(input, options, "mis", {.low = 0.5, .high = 2, .masks = true}, unchanged);
}

result<PolicyLossOutput> icepop_loss(const PolicyLossInput& input,
                                     const PolicyLossOptions& options) {
  return importance_loss(input, options, "icepop", {.low = 0.5, .high = 5, .masks = true},
                         unchanged);
}

result<PolicyLossOutput> aipo_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  return importance_loss(input, options, "aipo", {.high = 5}, unchanged);
}

result<PolicyLossOutput> topr_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  return importance_loss(
      input, options, "topr", {.level = RolloutWeightLevel::kSequence, .high = 1},
      [](float advantage, float weight) { return advantage > 0 ? 1.0F : weight; });
}

result<PolicyLossOutput> decoupled_loss(const PolicyLossInput& input,
                                        const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_rollout(input, "decoupled"));
  PolicyLossInput around = input;
  std::vector<float> proximal;
  if (!input.proximal_alphas.empty()) {
    TROUPE_TRY(proximal, interpolated_log_probs(input.tokens, input.log_probs,
                                                input.rollout_log_probs, input.proximal_alphas));
    around.old_log_probs = proximal;
  }
  TROUPE_TRY_VOID(check_policy(around, options, "decoupled"));
  const ImportanceDefaults defaults{.high = 5, .masks = options.importance.low.has_value()};
  TROUPE_TRY(const RolloutWeightOptions chosen,
             weight_options(options.importance, defaults, "decoupled"));
  TROUPE_TRY(const RolloutWeights weights,
             rollout_weights(input.tokens, around.old_log_probs, input.rollout_log_probs, chosen));
  const std::vector<float> all = with_given(input, weights.weights);
  around.rollout_weights = all;
  TROUPE_TRY(PolicyLossOutput output, vanilla_loss(around, options));
  add_weight_metrics(input.tokens, weights.weights, weights.metrics, output.metrics);
  return output;
}

}  // namespace troupe::actors

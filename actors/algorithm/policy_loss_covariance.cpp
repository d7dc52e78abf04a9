// Losses that treat tokens of high covariance apart: clip_cov and kl_cov.
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/policy_terms.hpp"

#include <cmath>

namespace troupe::actors {
namespace {

constexpr LossAggregation kDefaultMode = LossAggregation::kTokenMean;

result<void> check_selecting(const PolicyLossInput& input, const PolicyLossOptions& options,
                             std::string_view loss, bool applies) {
  TROUPE_TRY_VOID(check_policy(input, options, loss));
  if (input.tokens.sequence_ids.size() != input.tokens.sequences())
    return fail(ErrorCode::kInvalidArgument, "{}: sequence_ids: {} entries, wanted {}", loss,
                input.tokens.sequence_ids.size(), input.tokens.sequences());
  if (applies && input.selection == nullptr)
    return fail(ErrorCode::kInvalidArgument,
                "{}: no token selection; collect and select over the mini-batch first", loss);
  return {};
}

/// Adds actor/selected_fraction to the metrics of a part.
void add_selected(const PolicyLossInput& input, double selected, PolicyLossOutput& output) {
  output.metrics.add("actor/selected_fraction", selected,
                     static_cast<double>(count_tokens(input.tokens).tokens));
}

}  // namespace

result<CovarianceStatistics> collect_covariance(const PolicyLossInput& input,
                                                const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_selecting(input, options, "covariance", false));
  CovarianceStatistics statistics;
  for_each_token(input.tokens, [&](std::size_t s, std::size_t t) {
    const PolicyToken token = policy_token(input, s, t);
    const PolicyTerm term = clipped_term(token.advantage, token.ratio, token.ratio_slope, options);
    statistics.add({.key = token.key,
                    .advantage = input.advantages[t],
                    .log_prob = input.log_probs[t],
                    .clipped = term.clipped});
  });
  return statistics;
}

result<PolicyLossOutput> clip_cov_loss(const PolicyLossInput& input,
                                       const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_selecting(input, options, "clip_cov", true));
  double selected = 0;
  const auto term = [&](const PolicyToken& token, std::size_t) {
    if (input.selection->contains(token.key)) {
      ++selected;
      return PolicyTerm{};
    }
    return clipped_term(token.advantage, token.ratio, token.ratio_slope, options);
  };
  TROUPE_TRY(PolicyLossOutput output, sum_terms(input, options, kDefaultMode, term));
  add_selected(input, selected, output);
  return output;
}

result<PolicyLossOutput> kl_cov_loss(const PolicyLossInput& input,
                                     const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_selecting(input, options, "kl_cov", true));
  double selected = 0;
  const auto term = [&](const PolicyToken& token, std::size_t) {
    PolicyTerm plain{.value = -token.advantage * token.ratio,
                     .slope = -token.advantage * token.ratio_slope};
    if (!input.selection->contains(token.key)) return plain;
    ++selected;
    plain.value += options.kl_cov_coefficient * std::abs(token.log_ratio);
    if (token.ratio_inside && token.log_ratio != 0)
      plain.slope += std::copysign(options.kl_cov_coefficient, token.log_ratio);
    return plain;
  };
  TROUPE_TRY(PolicyLossOutput output, sum_terms(input, options, kDefaultMode, term));
  add_selected(input, selected, output);
  return output;
}

}  // namespace troupe::actors

// Losses whose term reads one token only, and the table of all losses.
#include "actors/algorithm/policy_loss.hpp"

#include "actors/algorithm/policy_terms.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

constexpr LossAggregation kDefaultMode = LossAggregation::kTokenMean;

/// -coefficient·A·log π with the coefficient held constant.
PolicyTerm weighted_log_prob(const PolicyToken& token, double coefficient) {
  const Bounded log_prob = bounded_log_prob(token.log_prob);
  const double scale = -coefficient * token.advantage;
  return {.value = scale * log_prob.value, .slope = log_prob.inside ? scale : 0};
}

/// KL between the coin "this token or another" under the old and the new policy.
double binary_kl(double old_log_prob, double log_prob) {
  const double p_old = std::exp(old_log_prob);
  const double p = std::exp(log_prob);
  const double rest = std::log(std::max(1 - p_old, 1e-12)) - std::log(std::max(1 - p, 1e-12));
  return p_old * (old_log_prob - log_prob) + (1 - p_old) * rest;
}

}  // namespace

result<PolicyLossOutput> vanilla_loss(const PolicyLossInput& input,
                                      const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "vanilla"));
  return sum_terms(input, options, kDefaultMode, [&](const PolicyToken& token, std::size_t) {
    PolicyTerm term = clipped_term(token.advantage, token.ratio, token.ratio_slope, options);
    const double bound = -token.advantage * options.clip_dual;
    if (token.advantage < 0 && term.value > bound) {
      term.value = bound;
      term.slope = 0;
      term.clipped_lower = true;
    }
    return term;
  });
}

result<PolicyLossOutput> cispo_loss(const PolicyLossInput& input,
                                    const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "cispo"));
  return sum_terms(input, options, kDefaultMode, [&](const PolicyToken& token, std::size_t) {
    const double clipped = std::clamp(token.ratio, 1 - options.clip_low, 1 + options.clip_high);
    PolicyTerm term = weighted_log_prob(token, clipped);
    term.clipped = clipped != token.ratio;
    return term;
  });
}

result<PolicyLossOutput> gpg_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "gpg", false));
  return sum_terms(input, options, kDefaultMode, [](const PolicyToken& token, std::size_t) {
    return weighted_log_prob(token, 1.0);
  });
}

result<PolicyLossOutput> sapo_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "sapo"));
  return sum_terms(
      input, options, LossAggregation::kSeqMeanTokenMean,
      [&](const PolicyToken& token, std::size_t) {
        const double tau =
            token.advantage > 0 ? options.sapo_tau_positive : options.sapo_tau_negative;
        const double gate = 1 / (1 + std::exp(-tau * (token.ratio - 1)));
        return PolicyTerm{.value = -token.advantage * 4 / tau * gate,
                          .slope = -token.advantage * 4 * gate * (1 - gate) * token.ratio_slope};
      });
}

result<PolicyLossOutput> dppo_tv_loss(const PolicyLossInput& input,
                                      const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "dppo_tv"));
  return sum_terms(input, options, kDefaultMode, [&](const PolicyToken& token, std::size_t) {
    const double moved = std::exp(token.log_prob) - std::exp(token.old_log_prob);
    const bool trusted =
        token.advantage > 0 ? moved <= options.clip_high : moved >= -options.clip_low;
    if (!trusted) return PolicyTerm{.clipped = true};
    return weighted_log_prob(token, std::min(token.ratio, options.clip_dual));
  });
}

result<PolicyLossOutput> dppo_kl_loss(const PolicyLossInput& input,
                                      const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "dppo_kl"));
  return sum_terms(input, options, kDefaultMode, [&](const PolicyToken& token, std::size_t) {
    const double log_prob = bounded_log_prob(token.log_prob).value;
    const double old_log_prob = bounded_log_prob(token.old_log_prob).value;
    const bool moves_away = token.advantage > 0 ? log_prob > old_log_prob : log_prob < old_log_prob;
    const double bound = token.advantage > 0 ? options.clip_high : options.clip_low;
    if (moves_away && binary_kl(old_log_prob, log_prob) > bound) return PolicyTerm{.clipped = true};
    return weighted_log_prob(token, std::min(token.ratio, options.clip_dual));
  });
}

result<PolicyLossOutput> dro_loss(const PolicyLossInput& input, const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_policy(input, options, "dro"));
  return sum_terms(input, options, kDefaultMode, [&](const PolicyToken& token, std::size_t) {
    PolicyTerm term = weighted_log_prob(token, 1.0);
    term.value += options.dro_beta / 2 * token.log_ratio * token.log_ratio;
    term.slope += token.ratio_inside ? options.dro_beta * token.log_ratio : 0;
    return term;
  });
}

PolicyLossRegistry default_policy_losses() {
  constexpr LossAggregation kPerSequence = LossAggregation::kSeqMeanTokenMean;
  PolicyLossRegistry registry("policy_loss");
  const auto select_clip = [](const CovarianceStatistics& statistics,
                              const PolicyLossOptions& options) {
    return statistics.select_random(options.clip_cov_ratio,
                                    {.low = options.clip_cov_low, .high = options.clip_cov_high},
                                    options.seed);
  };
  const auto select_kl = [](const CovarianceStatistics& statistics,
                            const PolicyLossOptions& options) {
    return statistics.select_largest(options.kl_cov_ratio);
  };
  const std::pair<const char*, PolicyLoss> entries[] = {
      {"vanilla", {.apply = vanilla_loss}},
      {"gspo", {.apply = gspo_loss, .default_aggregation = kPerSequence}},
      {"cispo", {.apply = cispo_loss}},
      {"geo_mean", {.apply = geo_mean_loss, .default_aggregation = kPerSequence}},
      {"gmpo", {.apply = geo_mean_loss, .default_aggregation = kPerSequence}},
      {"gpg", {.apply = gpg_loss}},
      {"clip_cov", {.apply = clip_cov_loss, .collect = collect_covariance, .select = select_clip}},
      {"kl_cov", {.apply = kl_cov_loss, .collect = collect_covariance, .select = select_kl}},
      {"sapo", {.apply = sapo_loss, .default_aggregation = kPerSequence}},
      {"dppo_tv", {.apply = dppo_tv_loss}},
      {"dppo_kl", {.apply = dppo_kl_loss}},
      {"dro", {.apply = dro_loss}},
      {"tis", {.apply = tis_loss, .reads_rollout = true}},
      {"mis", {.apply = mis_loss, .reads_rollout = true}},
      {"icepop", {.apply = icepop_loss, .reads_rollout = true}},
      {"aipo", {.apply = aipo_loss, .reads_rollout = true}},
      {"topr", {.apply = topr_loss, .reads_rollout = true}},
      {"decoupled", {.apply = decoupled_loss, .reads_rollout = true}},
  };
  for (const auto& [name, loss] : entries) {
    const result<void> added = registry.add(name, loss);
    TROUPE_CHECK(added.has_value(), "policy_loss: {} is listed twice", name);
  }
  return registry;
}

}  // namespace troupe::actors

#include "actors/algorithm/policy_terms.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

result<void> check_at_least(double value, double least, std::string_view name) {
  if (std::isfinite(value) && value >= least) return {};
  return fail(ErrorCode::kConfig, "{}: {}, wanted {} or more", name, value, least);
}

result<void> check_ratio(double value, std::string_view name) {
  if (value >= 0 && value <= 1) return {};
  return fail(ErrorCode::kConfig, "{}: {}, wanted 0 to 1", name, value);
}

result<void> check_above(double value, double bound, std::string_view name) {
  if (std::isfinite(value) && value > bound) return {};
  return fail(ErrorCode::kConfig, "{}: {}, wanted more than {}", name, value, bound);
}

result<void> check_options(const PolicyLossOptions& options) {
  TROUPE_TRY_VOID(check_at_least(options.clip_low, 0, "clip_ratio_low"));
  TROUPE_TRY_VOID(check_at_least(options.clip_high, 0, "clip_ratio_high"));
  TROUPE_TRY_VOID(check_above(options.clip_dual, 1, "clip_ratio_c"));
  TROUPE_TRY_VOID(check_ratio(options.clip_cov_ratio, "clip_cov_ratio"));
  TROUPE_TRY_VOID(check_ratio(options.kl_cov_ratio, "kl_cov_ratio"));
  TROUPE_TRY_VOID(check_at_least(options.kl_cov_coefficient, 0, "ppo_kl_coef"));
  TROUPE_TRY_VOID(check_above(options.sapo_tau_positive, 0, "tau_pos"));
  TROUPE_TRY_VOID(check_above(options.sapo_tau_negative, 0, "tau_neg"));
  TROUPE_TRY_VOID(check_above(options.dro_beta, 0, "dro_beta"));
  if (!(options.clip_cov_low < options.clip_cov_high))
    return fail(ErrorCode::kConfig, "clip_cov_lb: {}, wanted less than clip_cov_ub {}",
                options.clip_cov_low, options.clip_cov_high);
  return {};
}

}  // namespace

result<void> check_policy(const PolicyLossInput& input, const PolicyLossOptions& options,
                          std::string_view loss, bool needs_old) {
  const TokenBatchView& batch = input.tokens;
  TROUPE_TRY_VOID(batch.check());
  TROUPE_TRY_VOID(check_options(options));
  TROUPE_TRY_VOID(check_log_probs(batch, input.log_probs, "log_probs"));
  if (needs_old || !input.old_log_probs.empty())
    TROUPE_TRY_VOID(check_log_probs(batch, input.old_log_probs, "old_log_probs"));
  TROUPE_TRY_VOID(check_tokens(batch, input.advantages, "advantages"));
  if (input.rollout_weights.empty()) return {};
  TROUPE_TRY_VOID(check_tokens(batch, input.rollout_weights, "rollout_weights"));
  for (std::size_t s = 0; s < batch.sequences(); ++s)
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t)
      if (batch.mask[t] != 0 && input.rollout_weights[t] < 0)
        return fail(ErrorCode::kInvalidArgument,
                    "{}: rollout_weights: sequence {} token {} is {}, wanted 0 or more", loss, s,
                    t - batch.begin(s), input.rollout_weights[t]);
  return {};
}

PolicyToken policy_token(const PolicyLossInput& input, std::size_t sequence, std::size_t token) {
  const TokenBatchView& batch = input.tokens;
  PolicyToken result;
  result.log_prob = input.log_probs[token];
  result.advantage = input.advantages[token];
  result.key.sequence = batch.sequence_ids.empty() ? static_cast<std::int64_t>(sequence)
                                                   : batch.sequence_ids[sequence];
  result.key.position = static_cast<std::int64_t>(token - batch.begin(sequence));
  if (input.old_log_probs.empty()) return result;
  result.old_log_prob = input.old_log_probs[token];
  const Bounded bounded = log_ratio(result.log_prob, result.old_log_prob);
  result.log_ratio = bounded.value;
  result.ratio_inside = bounded.inside;
  result.ratio = std::exp(bounded.value);
  result.ratio_slope = bounded.inside ? result.ratio : 0;
  return result;
}

PolicyTerm clipped_term(double advantage, double ratio, double ratio_slope,
                        const PolicyLossOptions& options) {
  const double clipped_ratio = std::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
  const double plain = -advantage * ratio;
  const double clipped = -advantage * clipped_ratio;
  if (clipped > plain) return {.value = clipped, .slope = 0, .clipped = true};
  return {.value = plain, .slope = -advantage * ratio_slope};
}

void PolicyMetrics::add(const PolicyToken& token, const PolicyTerm& term) {
  clipped_ += term.clipped ? 1 : 0;
  clipped_lower_ += term.clipped_lower ? 1 : 0;
  kl_ -= token.log_ratio;
}

void add_aggregate(std::string_view name, double value, const TokenCounts& local,
                   const LossNormaliser& normaliser, WeightedSums& metrics) {
  const auto tokens = static_cast<double>(local.tokens);
  if (normaliser.deferred)
    metrics.add_deferred(name, value, tokens);
  else
    metrics.add(
        name, value,
        normaliser.global.tokens == 0 ? 0 : tokens / static_cast<double>(normaliser.global.tokens));
}

void PolicyMetrics::write(const TokenCounts& local, const LossNormaliser& normaliser, double loss,
                          bool with_kl, WeightedSums& metrics) const {
  const auto tokens = static_cast<double>(local.tokens);
  add_aggregate("actor/pg_loss", loss, local, normaliser, metrics);
  metrics.add("actor/pg_clipfrac", clipped_, tokens);
  metrics.add("actor/pg_clipfrac_lower", clipped_lower_, tokens);
  if (with_kl) metrics.add("actor/ppo_kl", kl_, tokens);
  metrics.add("actor/empty_batches", local.tokens == 0 ? 1 : 0, 1);
}

}  // namespace troupe::actors

#include "actors/algorithm/processed_distribution.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace troupe::actors {
namespace {

constexpr double kGreedyBelow = 1e-5;  ///< as SamplingOptions::is_greedy

}  // namespace

result<void> SamplingTransform::check() const {
  if (!(std::isfinite(temperature) && temperature >= kGreedyBelow))
    return fail(ErrorCode::kConfig,
                "temperature: {}, wanted {} or more: a greedy token has probability 1, so it has "
                "no importance ratio",
                temperature, kGreedyBelow);
  if (!(top_p > 0 && top_p <= 1))
    return fail(ErrorCode::kConfig, "top_p: {}, wanted above 0 and at most 1", top_p);
  if (!(min_p >= 0 && min_p <= 1))
    return fail(ErrorCode::kConfig, "min_p: {}, wanted 0 to 1", min_p);
  return {};
}

result<LogProbKind> log_prob_kind_from_name(std::string_view name) {
  if (name == "full") return LogProbKind::kFull;
  if (name == "processed") return LogProbKind::kProcessed;
  return fail(ErrorCode::kConfig, "log-prob kind: unknown '{}', wanted full or processed", name);
}

result<LogProbRule> log_prob_rule(const SamplingTransform& transform, LogProbKind wanted) {
  TROUPE_TRY_VOID(transform.check());
  if (transform.has_penalties)
    return fail(ErrorCode::kConfig,
                "importance ratios under repetition, frequency or presence penalties: the trainer "
                "does not penalise its logits; set the penalties to 1, 0 and 0");
  LogProbRule rule{.temperature = transform.temperature};
  if (!transform.has_truncation()) return rule;
  rule.rollout = wanted;
  rule.trainer_filters = wanted == LogProbKind::kProcessed;
  rule.exact = wanted == LogProbKind::kProcessed;
  return rule;
}

double RowProcessor::kept_weight() const {
  double sum = 0;
  for (std::size_t v = 0; v < weights_.size(); ++v) sum += kept_[v] != 0 ? weights_[v] : 0;
  return sum;
}

void RowProcessor::keep_min_p(double min_p) {
  // The best token's weight is 1, so a weight is a probability relative to the best.
  for (std::size_t v = 0; v < weights_.size(); ++v)
    if (weights_[v] < min_p) kept_[v] = 0;
}

void RowProcessor::keep_top_k(std::int32_t k) {
  std::vector<float> left;
  for (std::size_t v = 0; v < logits_.size(); ++v)
    if (kept_[v] != 0) left.push_back(logits_[v]);
  if (left.size() <= static_cast<std::size_t>(k)) return;
  const auto kth = left.begin() + (k - 1);
  std::nth_element(left.begin(), kth, left.end(), std::greater<>());
  for (std::size_t v = 0; v < logits_.size(); ++v)
    if (logits_[v] < *kth) kept_[v] = 0;
}

void RowProcessor::keep_top_p(double p) {
  order_.clear();
  for (std::size_t v = 0; v < logits_.size(); ++v)
    if (kept_[v] != 0) order_.push_back(static_cast<std::int32_t>(v));
  const auto weight = [&](std::int32_t v) { return weights_[static_cast<std::size_t>(v)]; };
  const auto logit = [&](std::int32_t v) { return logits_[static_cast<std::size_t>(v)]; };
  std::ranges::sort(order_, [&](std::int32_t a, std::int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  });
  const double wanted = p * kept_weight();
  double sum = 0;
  std::size_t count = 0;
  while (count < order_.size() && (count == 0 || sum < wanted)) sum += weight(order_[count++]);
  for (; count < order_.size(); ++count) kept_[static_cast<std::size_t>(order_[count])] = 0;
}

result<ProcessedRow> RowProcessor::process(std::span<const float> logits, std::int32_t token,
                                           const SamplingTransform& transform) {
  TROUPE_TRY_VOID(transform.check());
  if (token < 0 || static_cast<std::size_t>(token) >= logits.size())
    return fail(ErrorCode::kInvalidArgument, "token {}, wanted 0 to {}", token,
                static_cast<std::int64_t>(logits.size()) - 1);
  for (std::size_t v = 0; v < logits.size(); ++v)
    if (!std::isfinite(logits[v]))
      return fail(ErrorCode::kInvalidArgument, "logit of token {} is {}", v, logits[v]);
  logits_ = logits;
  token_ = token;
  temperature_ = transform.temperature;
  const double best = *std::max_element(logits.begin(), logits.end());
  weights_.resize(logits.size());
  for (std::size_t v = 0; v < logits.size(); ++v)
    weights_[v] = std::exp((double{logits[v]} - best) / temperature_);
  kept_.assign(logits.size(), 1);
  const double whole = kept_weight();
  if (transform.min_p > 0) keep_min_p(transform.min_p);
  if (transform.top_k > 0) keep_top_k(transform.top_k);
  if (transform.top_p < 1) keep_top_p(transform.top_p);
  const auto sampled = static_cast<std::size_t>(token);
  const bool added = kept_[sampled] == 0;
  kept_[sampled] = 1;
  const double kept = kept_weight();
  const double scaled = (double{logits[sampled]} - best) / temperature_;
  return ProcessedRow{.log_prob = scaled - std::log(kept),
                      .full_log_prob = scaled - std::log(whole),
                      .kept_mass = kept / whole,
                      .kept = std::count(kept_.begin(), kept_.end(), std::uint8_t{1}),
                      .added = added};
}

void RowProcessor::gradient(double upstream, std::span<double> out) const {
  const double total = kept_weight();
  for (std::size_t v = 0; v < weights_.size(); ++v) {
    const double share = kept_[v] != 0 ? weights_[v] / total : 0;
    const double hit = v == static_cast<std::size_t>(token_) ? 1 : 0;
    out[v] = upstream * (hit - share) / temperature_;
  }
}

result<std::vector<float>> kept_masses(const TokenBatchView& batch,
                                       std::span<const float> full_log_probs,
                                       std::span<const float> processed_log_probs) {
  constexpr double kRounding = 1e-3;  ///< of two float log-probs, in nats
  TROUPE_TRY_VOID(batch.check());
  TROUPE_TRY_VOID(check_tokens(batch, full_log_probs, "full_log_probs"));
  TROUPE_TRY_VOID(check_tokens(batch, processed_log_probs, "log_probs"));
  std::vector<float> masses(batch.tokens(), 1.0F);
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const double log_mass = double{full_log_probs[t]} - double{processed_log_probs[t]};
      if (log_mass > kRounding)
        return fail(ErrorCode::kInvalidArgument,
                    "log_probs: sequence {} token {} is {}, below its full log-prob {}: columns "
                    "exchanged, or penalties were on",
                    s, t - batch.begin(s), processed_log_probs[t], full_log_probs[t]);
      masses[t] = static_cast<float>(std::exp(std::min(log_mass, 0.0)));
    }
  }
  return masses;
}

result<std::vector<float>> log_probs_at_kept_mass(const TokenBatchView& batch,
                                                  std::span<const float> full_log_probs,
                                                  std::span<const float> rollout_full_log_probs,
                                                  std::span<const float> rollout_log_probs) {
  TROUPE_TRY_VOID(check_log_probs(batch, full_log_probs, "full_log_probs"));
  TROUPE_TRY(const std::vector<float> masses,
             kept_masses(batch, rollout_full_log_probs, rollout_log_probs));
  std::vector<float> processed(batch.tokens(), 0.0F);
  for (std::size_t t = 0; t < batch.tokens(); ++t) {
    if (batch.mask[t] == 0) continue;
    processed[t] =
        static_cast<float>(double{full_log_probs[t]} +
                           (double{rollout_log_probs[t]} - double{rollout_full_log_probs[t]}));
  }
  return processed;
}

}  // namespace troupe::actors

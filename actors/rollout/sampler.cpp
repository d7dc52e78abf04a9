#include "actors/rollout/sampler.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

/// Greedy decoding reports log-probs at temperature 1.
double effective_temperature(const SamplingOptions& options) {
  return options.is_greedy() ? 1.0 : options.temperature;
}

}  // namespace

Sampler::Sampler(std::int64_t vocab_size, const KernelTable& kernels)
    : vocab_size_(vocab_size),
      kernels_(&kernels),
      penalised_(padded(vocab_size)),
      weights_(padded(vocab_size)),
      counts_(static_cast<std::size_t>(vocab_size), 0) {}

double Sampler::total_weight() const {
  double total = 0.0;
  for (std::int64_t t = 0; t < vocab_size_; ++t) total += static_cast<double>(weights_[t]);
  return total;
}

result<void> Sampler::prepare(std::span<const float> logits, const SamplingOptions& options,
                              std::span<const std::int32_t> tokens, std::int64_t prompt_tokens) {
  TROUPE_CHECK(static_cast<std::int64_t>(logits.size()) == vocab_size_,
               "sampler: {} logits, wanted {}", logits.size(), vocab_size_);
  const auto scale = static_cast<float>(1.0 / effective_temperature(options));
  scores_ = logits.data();
  logit_max_ = kernels_->exp_weights(scores_, vocab_size_, scale, weights_.data());
  if (std::isnan(logit_max_)) {
    const auto bad = std::ranges::find_if(logits, [](float x) { return !std::isfinite(x); });
    return fail(ErrorCode::kInternal, "sampler: logit of token {} is {}, wanted finite",
                bad - logits.begin(), bad == logits.end() ? logit_max_ : *bad);
  }
  full_total_ = total_weight();
  total_ = full_total_;
  score_max_ = logit_max_;
  if (options.has_penalties()) {
    std::ranges::copy(logits, penalised_.data());
    penalise(options, tokens, prompt_tokens);
    scores_ = penalised_.data();
    score_max_ = kernels_->exp_weights(scores_, vocab_size_, scale, weights_.data());
    if (std::isnan(score_max_))
      return fail(ErrorCode::kInternal, "sampler: a penalised logit is not finite");
  }
  if (!options.is_greedy()) {
    if (options.min_p > 0.0) keep_min_p(options.min_p);
    if (options.top_k > 0 && options.top_k < vocab_size_) keep_top_k(options.top_k);
    if (options.top_p < 1.0) keep_top_p(options.top_p);
  }
  if (options.has_penalties() || options.has_truncation()) total_ = total_weight();
  return {};
}

void Sampler::penalise(const SamplingOptions& options, std::span<const std::int32_t> tokens,
                       std::int64_t prompt_tokens) {
  const auto output = tokens.subspan(static_cast<std::size_t>(prompt_tokens));
  const auto repetition = static_cast<float>(options.repetition_penalty);
  if (repetition != 1.0f) {
    for (const std::int32_t token : tokens) {
      const auto t = static_cast<std::size_t>(token);
      if (counts_[t]++ > 0) continue;
      float& logit = penalised_[token];
      logit = logit > 0.0f ? logit / repetition : logit * repetition;
    }
    for (const std::int32_t token : tokens) counts_[static_cast<std::size_t>(token)] = 0;
  }
  if (options.frequency_penalty == 0.0 && options.presence_penalty == 0.0) return;
  for (const std::int32_t token : output) ++counts_[static_cast<std::size_t>(token)];
  for (const std::int32_t token : output) {
    std::int32_t& count = counts_[static_cast<std::size_t>(token)];
    if (count == 0) continue;  // done at its first occurrence
    penalised_[token] -= static_cast<float>(options.frequency_penalty * count);
    penalised_[token] -= static_cast<float>(options.presence_penalty);
    count = 0;
  }
}

void Sampler::keep_min_p(double min_p) {
  // The best token's weight is exp(0) = 1, so a weight is a probability relative to the best.
  for (std::int64_t t = 0; t < vocab_size_; ++t)
    if (static_cast<double>(weights_[t]) < min_p) weights_[t] = 0.0f;
}

void Sampler::keep_top_k(std::int64_t k) {
  selection_.clear();
  for (std::int64_t t = 0; t < vocab_size_; ++t)
    if (weights_[t] > 0.0f) selection_.push_back(scores_[t]);
  if (static_cast<std::int64_t>(selection_.size()) <= k) return;
  const auto kth = selection_.begin() + (k - 1);
  std::nth_element(selection_.begin(), kth, selection_.end(), std::greater<>());
  for (std::int64_t t = 0; t < vocab_size_; ++t)
    if (scores_[t] < *kth) weights_[t] = 0.0f;
}

void Sampler::keep_top_p(double p) {
  const double wanted = p * total_weight();
  // Only the best tokens can stay: gather ever more of them until their sum suffices, then sort.
  for (const float bound : {0.125f, 1e-2f, 1e-4f, 1e-7f, 0.0f}) {
    candidates_.clear();
    double sum = 0.0;
    for (std::int64_t t = 0; t < vocab_size_; ++t) {
      if (weights_[t] <= 0.0f || weights_[t] < bound) continue;
      candidates_.push_back(static_cast<std::int32_t>(t));
      sum += static_cast<double>(weights_[t]);
    }
    // The margin covers the different order of the two sums.
    if (sum >= wanted * (1.0 + 1e-9)) break;
  }
  std::ranges::sort(candidates_, [&](std::int32_t a, std::int32_t b) {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
  });
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || sum < wanted))
    sum += static_cast<double>(weights_[candidates_[kept++]]);
  candidates_.resize(kept);
  std::ranges::sort(candidates_);
  auto next = candidates_.begin();
  for (std::int64_t t = 0; t < vocab_size_; ++t) {
    if (next != candidates_.end() && *next == t)
      ++next;
    else
      weights_[t] = 0.0f;
  }
}

result<SampledToken> Sampler::sample(std::span<const float> logits, const SamplingOptions& options,
                                     std::span<const std::int32_t> tokens,
                                     std::int64_t prompt_tokens, const SampleKey& key) {
  TROUPE_TRY_VOID(prepare(logits, options, tokens, prompt_tokens));
  std::int64_t chosen = 0;
  if (options.is_greedy()) {
    chosen = std::max_element(scores_, scores_ + vocab_size_) - scores_;
  } else {
    const double target = uniform(key) * total_;
    double sum = 0.0;
    for (std::int64_t t = 0; t < vocab_size_; ++t) {
      if (weights_[t] <= 0.0f) continue;
      chosen = t;  // should rounding put the target at the total, the last token stays chosen
      sum += static_cast<double>(weights_[t]);
      if (sum > target) break;
    }
  }
  const double inverse = 1.0 / effective_temperature(options);
  const auto log_prob = [&](const float* row, float max, double sum) {
    const double shifted = static_cast<double>(row[chosen]) - static_cast<double>(max);
    return static_cast<float>(shifted * inverse - std::log(sum));
  };
  return SampledToken{.token = static_cast<std::int32_t>(chosen),
                      .log_prob = log_prob(scores_, score_max_, total_),
                      .full_log_prob = log_prob(logits.data(), logit_max_, full_total_)};
}

result<std::vector<double>> Sampler::distribution(std::span<const float> logits,
                                                  const SamplingOptions& options,
                                                  std::span<const std::int32_t> tokens,
                                                  std::int64_t prompt_tokens) {
  TROUPE_TRY_VOID(prepare(logits, options, tokens, prompt_tokens));
  std::vector<double> probabilities(static_cast<std::size_t>(vocab_size_), 0.0);
  if (options.is_greedy()) {
    const auto best = std::max_element(scores_, scores_ + vocab_size_) - scores_;
    probabilities[static_cast<std::size_t>(best)] = 1.0;
    return probabilities;
  }
  for (std::size_t t = 0; t < probabilities.size(); ++t)
    probabilities[t] = static_cast<double>(weights_[static_cast<std::int64_t>(t)]) / total_;
  return probabilities;
}

}  // namespace troupe::actors

#include "actors/algorithm/kl.hpp"

#include "actors/algorithm/token_math.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

constexpr double kTangentFrom = 10.0;  ///< value of k3 from which it goes on along its tangent

constexpr std::array<std::pair<std::string_view, KlEstimator>, 7> kNames = {{
    {"k1", KlEstimator::kK1},
    {"abs", KlEstimator::kAbs},
    {"k2", KlEstimator::kK2},
    {"k3", KlEstimator::kK3},
    {"kl", KlEstimator::kK1},
    {"mse", KlEstimator::kK2},
    {"low_var_kl", KlEstimator::kK3},
}};

/// The x > 0 where exp(x) - x - 1 = kTangentFrom, by Newton's method.
double tangent_point() {
  double x = std::log(kTangentFrom);
  for (int i = 0; i < 50; ++i) x -= (std::expm1(x) - x - kTangentFrom) / std::expm1(x);
  return x;
}

KlTerm k3_term(double d) {
  static const double kPoint = tangent_point();
  if (-d <= kPoint) return {.value = std::expm1(-d) + d, .slope = -std::expm1(-d)};
  const double slope = std::expm1(kPoint);
  return {.value = kTangentFrom + slope * (-d - kPoint), .slope = -slope};
}

KlTerm base_term(double d, KlEstimator estimator) {
  switch (estimator) {
    case KlEstimator::kK1:
      return {.value = d, .slope = 1};
    case KlEstimator::kAbs:
      return {.value = std::abs(d), .slope = d == 0 ? 0 : std::copysign(1.0, d)};
    case KlEstimator::kK2:
      return {.value = d * d / 2, .slope = d};
    case KlEstimator::kK3:
      return k3_term(d);
  }
  return {};
}

result<void> check_pair(const TokenBatchView& batch, std::span<const float> log_probs,
                        std::span<const float> reference_log_probs) {
  TROUPE_TRY_VOID(batch.check());
  TROUPE_TRY_VOID(check_log_probs(batch, log_probs, "log_probs"));
  return check_log_probs(batch, reference_log_probs, "reference_log_probs");
}

}  // namespace

result<KlKind> kl_kind_from_name(std::string_view name) {
  std::string_view base = name;
  const bool straight_through = base.ends_with('+');
  if (straight_through) base.remove_suffix(1);
  for (const auto& [known, estimator] : kNames)
    if (known == base) return KlKind{.estimator = estimator, .straight_through = straight_through};
  if (base == "full")
    return fail(ErrorCode::kUnsupported,
                "kl: '{}' needs the whole distribution of each token, which is not kept", name);
  return fail(ErrorCode::kConfig,
              "kl: unknown '{}', wanted k1 (kl), abs, k2 (mse) or k3 (low_var_kl), maybe with a +",
              name);
}

std::string kl_kind_name(KlKind kind) {
  for (const auto& [name, estimator] : kNames)
    if (estimator == kind.estimator) return std::string(name) + (kind.straight_through ? "+" : "");
  return "unknown";
}

KlTerm kl_term(double log_prob, double reference_log_prob, KlKind kind) {
  const Bounded d = log_ratio(log_prob, reference_log_prob);
  KlTerm term = base_term(d.value, kind.estimator);
  if (kind.straight_through) term.slope = d.value;
  if (!d.inside) term.slope = 0;
  return term;
}

result<TokenLoss> kl_loss(const TokenBatchView& batch, std::span<const float> log_probs,
                          std::span<const float> reference_log_probs, KlKind kind,
                          LossAggregation mode, const LossNormaliser& normaliser) {
  TROUPE_TRY_VOID(check_pair(batch, log_probs, reference_log_probs));
  TROUPE_TRY(const TokenWeights weights, TokenWeights::make(batch, mode, normaliser));
  TokenLoss loss{.value = 0, .gradient = std::vector<float>(batch.tokens(), 0.0F)};
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const double weight = weights.of_sequence(valid_length(batch, s));
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const KlTerm term = kl_term(log_probs[t], reference_log_probs[t], kind);
      loss.value += weight * term.value;
      loss.gradient[t] = static_cast<float>(weight * term.slope);
    }
  }
  return loss;
}

result<KlPenalty> kl_in_reward(const TokenBatchView& batch, std::span<const float> scores,
                               std::span<const float> log_probs,
                               std::span<const float> reference_log_probs, KlKind kind,
                               double beta) {
  TROUPE_TRY_VOID(check_pair(batch, log_probs, reference_log_probs));
  TROUPE_TRY_VOID(check_tokens(batch, scores, "scores"));
  if (!(std::isfinite(beta) && beta >= 0))
    return fail(ErrorCode::kConfig, "kl_coef: {}, wanted 0 or more", beta);
  KlPenalty penalty{.rewards = std::vector<float>(batch.tokens(), 0.0F), .kl = {}};
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const std::int64_t length = valid_length(batch, s);
    if (length == 0) continue;
    double sum = 0;
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const double kl = kl_term(log_probs[t], reference_log_probs[t], kind).value;
      penalty.rewards[t] = static_cast<float>(scores[t] - beta * kl);
      sum += kl;
    }
    penalty.kl.sum += sum / static_cast<double>(length);
    penalty.kl.weight += 1;
  }
  return penalty;
}

result<void> KlController::check() const {
  if (!(std::isfinite(beta) && beta >= 0))
    return fail(ErrorCode::kConfig, "kl_coef: {}, wanted 0 or more", beta);
  if (!(std::isfinite(target) && target > 0))
    return fail(ErrorCode::kConfig, "target_kl: {}, wanted more than 0", target);
  if (!(std::isfinite(horizon) && horizon > 0))
    return fail(ErrorCode::kConfig, "horizon: {}, wanted more than 0", horizon);
  return {};
}

void KlController::update(double kl, std::int64_t sequences) {
  if (!adaptive || sequences <= 0 || !std::isfinite(kl)) return;
  const double error = std::clamp(kl / target - 1, -0.2, 0.2);
  // A step longer than the horizon could turn β negative: it stops at 0.
  beta = std::max(0.0, beta * (1 + error * static_cast<double>(sequences) / horizon));
}

}  // namespace troupe::actors

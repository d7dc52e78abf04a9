#pragma once

// The slow oracle of the policy losses: value in double over padded matrices, with what the papers
// hold constant (stop-gradient) as a separate argument, so that central differences of it are the
// gradient. **Threads:** one test.

#include "tests/actors/algorithm/matrix_reference.hpp"

#include <set>
#include <string>

namespace troupe::actors::test {

struct LossCase {
  MaskedMatrix log_probs;
  MaskedMatrix old;
  MaskedMatrix advantages;
  MaskedMatrix weights;
  MaskedMatrix rollout;
  MaskedMatrix alphas = {};  ///< empty: the proximal policy is `old`
  bool weighted = false;
  std::set<std::pair<std::size_t, std::size_t>> selected;  ///< (row, column)
};

inline LossCase unpack_loss(const Case& data, bool weighted) {
  return {.log_probs = unpack(data, data.column("log_probs")),
          .old = unpack(data, data.column("old")),
          .advantages = unpack(data, data.column("advantages")),
          .weights = unpack(data, data.column("weights")),
          .rollout = unpack(data, data.column("old")),
          .weighted = weighted,
          .selected = {}};
}

inline double clip(double x, double low, double high) { return std::min(std::max(x, low), high); }

inline double ratio_of(double a, double b) { return std::exp(clip(a - b, -20, 20)); }

/// PPO's pessimistic clip.
inline double ppo(double advantage, double ratio, const PolicyLossOptions& o) {
  return std::max(-advantage * ratio,
                  -advantage * clip(ratio, 1 - o.clip_low, 1 + o.clip_high));
}

/// ℓ of token (b, j) for losses that read one token. `fixed` is the log-prob that is held constant.
inline double token_loss(const std::string& name, double log_prob, double fixed, double old,
                         double advantage, bool selected, const PolicyLossOptions& o) {
  const double ratio = ratio_of(log_prob, old);
  const double fixed_ratio = ratio_of(fixed, old);
  if (name == "vanilla") {
    const double loss = ppo(advantage, ratio, o);
    return advantage < 0 ? std::min(loss, -advantage * o.clip_dual) : loss;
  }
  if (name == "cispo")
    return -clip(fixed_ratio, 1 - o.clip_low, 1 + o.clip_high) * advantage * log_prob;
  if (name == "gpg") return -advantage * log_prob;
  if (name == "clip_cov") return selected ? 0 : ppo(advantage, ratio, o);
  if (name == "kl_cov")
    return -advantage * ratio +
           (selected ? o.kl_cov_coefficient * std::abs(clip(log_prob - old, -20, 20)) : 0);
  if (name == "sapo") {
    const double tau = advantage > 0 ? o.sapo_tau_positive : o.sapo_tau_negative;
    return -advantage * (4 / tau) / (1 + std::exp(-tau * (ratio - 1)));
  }
  if (name == "dro")
    return -(log_prob * advantage - o.dro_beta / 2 * (log_prob - old) * (log_prob - old));
  const double p = std::exp(fixed);
  const double q = std::exp(old);
  bool trusted = true;
  if (name == "dppo_tv") {
    trusted = advantage > 0 ? p - q <= o.clip_high : p - q >= -o.clip_low;
  } else {
    const double kl = q * std::log(q / p) + (1 - q) * std::log((1 - q) / (1 - p));
    if (advantage > 0 && p > q) trusted = kl <= o.clip_high;
    if (advantage <= 0 && p < q) trusted = kl <= o.clip_low;
  }
  return trusted ? -advantage * std::min(fixed_ratio, o.clip_dual) * log_prob : 0;
}

/// ℓ of GMPO for row b, the same for all its tokens.
inline double geometric_loss(const LossCase& data, const Matrix& log_probs, std::size_t b,
                             const PolicyLossOptions& o) {
  const auto& mask = data.log_probs.mask[b];
  const double advantage = row_mean(mask, [&](std::size_t j) { return data.advantages.value[b][j]; });
  const double log_ratio = row_mean(mask, [&](std::size_t j) {
    const double a = data.advantages.value[b][j];
    const double sign = a > 0 ? 1 : (a < 0 ? -1 : 0);
    const double delta = clip(log_probs[b][j] - data.old.value[b][j], -20, 20);
    return sign * std::min(sign * delta, sign * clip(delta, -o.clip_low, o.clip_high));
  });
  const double weight =
      data.weighted
          ? std::exp(row_mean(mask, [&](std::size_t j) { return std::log(data.weights.value[b][j]); }))
          : 1;
  return -advantage * std::exp(log_ratio) * weight;
}

/// ℓ of GSPO: the sequence's ratio is held constant, the token's own log-prob lets the gradient in.
inline double gspo_token(const LossCase& data, const Matrix& log_probs, const Matrix& fixed,
                         std::size_t b, std::size_t j, const PolicyLossOptions& o) {
  const double mean = row_mean(data.log_probs.mask[b], [&](std::size_t i) {
    return clip(fixed[b][i] - data.old.value[b][i], -20, 20);
  });
  const double x = std::min(log_probs[b][j] - fixed[b][j] + mean, 10.0);
  return ppo(data.advantages.value[b][j], std::exp(x), o);
}

/// ρ of θ (held constant) against b at a level, over row b.
inline double level_ratio(RolloutWeightLevel level, const MaskedMatrix& from, const Matrix& fixed,
                          const Matrix& rollout, std::size_t b, std::size_t j) {
  if (level == RolloutWeightLevel::kToken) return ratio_of(fixed[b][j], rollout[b][j]);
  double sum = 0;
  double length = 0;
  for (std::size_t i = 0; i < fixed[b].size(); ++i) {
    if (!from.mask[b][i]) continue;
    sum += clip(fixed[b][i] - rollout[b][i], -20, 20);
    length += 1;
  }
  if (level == RolloutWeightLevel::kGeometric) sum /= length;
  return std::exp(clip(sum, -20, 20));
}

inline bool is_off_policy(const std::string& name) {
  return name == "tis" || name == "mis" || name == "icepop" || name == "aipo" || name == "topr" ||
         name == "decoupled";
}

/// ℓ of the losses that weigh against the policy that sampled.
inline double off_policy_token(const std::string& name, const LossCase& data,
                               const Matrix& log_probs, const Matrix& fixed, std::size_t b,
                               std::size_t j, const PolicyLossOptions& o) {
  const ImportanceOptions& chosen = o.importance;
  const double advantage = data.advantages.value[b][j];
  const Matrix& rollout = data.rollout.value;
  const auto level = [&](RolloutWeightLevel usual) { return chosen.level.value_or(usual); };
  if (name == "decoupled") {
    Matrix proximal = data.old.value;
    if (!data.alphas.value.empty())
      for (std::size_t i = 0; i < proximal[b].size(); ++i)
        proximal[b][i] = rollout[b][i] + data.alphas.value[b][i] * (fixed[b][i] - rollout[b][i]);
    double weight =
        level_ratio(level(RolloutWeightLevel::kToken), data.old, proximal, rollout, b, j);
    if (chosen.low && (weight < *chosen.low || weight > chosen.high.value_or(5))) weight = 0;
    weight = std::min(weight, chosen.high.value_or(5));
    return weight * token_loss("vanilla", log_probs[b][j], fixed[b][j], proximal[b][j], advantage,
                               false, o);
  }
  const bool masks = name == "mis" || name == "icepop";
  const double high = chosen.high.value_or(
      name == "topr" ? 1 : (name == "aipo" || name == "icepop" ? 5 : 2));
  double weight = level_ratio(level(name == "topr" ? RolloutWeightLevel::kSequence
                                                   : RolloutWeightLevel::kToken),
                              data.old, fixed, rollout, b, j);
  if (masks && (weight < chosen.low.value_or(0.5) || weight > high)) weight = 0;
  weight = std::min(weight, high);
  if (name == "topr" && advantage > 0) weight = 1;
  return -weight * advantage * log_probs[b][j];
}

inline double reference_loss(const std::string& name, const LossCase& data, const Matrix& log_probs,
                             const Matrix& fixed, LossAggregation mode,
                             const PolicyLossOptions& o) {
  Matrix loss = zeros_like(data.log_probs);
  for (std::size_t b = 0; b < loss.size(); ++b) {
    for (std::size_t j = 0; j < loss[b].size(); ++j) {
      if (!data.log_probs.mask[b][j]) continue;
      if (name == "geo_mean" || name == "gmpo") {
        loss[b][j] = geometric_loss(data, log_probs, b, o);
        continue;
      }
      if (is_off_policy(name)) {
        loss[b][j] = off_policy_token(name, data, log_probs, fixed, b, j, o) *
                     (data.weighted ? data.weights.value[b][j] : 1);
        continue;
      }
      loss[b][j] = name == "gspo"
                       ? gspo_token(data, log_probs, fixed, b, j, o)
                       : token_loss(name, log_probs[b][j], fixed[b][j], data.old.value[b][j],
                                    data.advantages.value[b][j], data.selected.contains({b, j}), o);
      if (data.weighted) loss[b][j] *= data.weights.value[b][j];
    }
  }
  return aggregate_matrix(loss, data.log_probs.mask, mode);
}

/// Central difference with respect to log-prob (b, j).
inline double reference_slope(const std::string& name, const LossCase& data, std::size_t b,
                              std::size_t j, LossAggregation mode, const PolicyLossOptions& o) {
  constexpr double kStep = 1e-6;
  const Matrix& fixed = data.log_probs.value;
  Matrix up = fixed;
  Matrix down = fixed;
  up[b][j] += kStep;
  down[b][j] -= kStep;
  return (reference_loss(name, data, up, fixed, mode, o) -
          reference_loss(name, data, down, fixed, mode, o)) /
         (2 * kStep);
}

}  // namespace troupe::actors::test

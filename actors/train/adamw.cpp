#include "actors/train/adamw.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {

double gradient_norm(std::span<const float> gradients) {
  constexpr std::size_t kLanes = 8;  // independent sums: the additions of one would wait in line
  double lanes[kLanes] = {};
  const std::size_t whole = gradients.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k) {
      const auto g = static_cast<double>(gradients[i + k]);
      lanes[k] += g * g;
    }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  for (std::size_t i = whole; i < gradients.size(); ++i) {
    const auto g = static_cast<double>(gradients[i]);
    sum += g * g;
  }
  return std::sqrt(sum);
}

double clip_factor(double norm, double norm_max) {
  if (norm_max <= 0) return 1.0;
  return std::min(1.0, norm_max / (norm + 1e-6));
}

void adamw(const OptimizerOptions& options, const AdamwStep& step, std::span<float> weights,
           std::span<const float> gradients, std::span<float> first_moment,
           std::span<float> second_moment) {
  const std::size_t count = weights.size();
  TROUPE_CHECK(
      gradients.size() == count && first_moment.size() == count && second_moment.size() == count,
      "adamw: {} weights, {} gradients, {} and {} moments", count, gradients.size(),
      first_moment.size(), second_moment.size());
  const auto t = static_cast<double>(step.step);
  const auto beta1 = static_cast<float>(options.beta1);
  const auto beta2 = static_cast<float>(options.beta2);
  const auto rest1 = static_cast<float>(1.0 - options.beta1);
  const auto rest2 = static_cast<float>(1.0 - options.beta2);
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto keep = static_cast<float>(step.decay ? 1.0 - step.lr * options.weight_decay : 1.0);
  const auto step_size = static_cast<float>(step.lr / (1.0 - std::pow(options.beta1, t)));
  const auto root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, t)));
  const auto eps = static_cast<float>(options.eps);
  float* w = weights.data();
  const float* g = gradients.data();
  float* m = first_moment.data();
  float* v = second_moment.data();
  for (std::size_t i = 0; i < count; ++i) {
    const float gradient = g[i] * scale;
    m[i] = beta1 * m[i] + rest1 * gradient;
    v[i] = beta2 * v[i] + rest2 * gradient * gradient;
    w[i] = w[i] * keep - step_size * m[i] / (std::sqrt(v[i]) * root_scale + eps);
  }
}

}  // namespace troupe::actors

#include "actors/algorithm/row_cut.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace troupe::actors {

float RowCutter::weight(float logit, float best) const {
  return static_cast<float>(std::exp((double{logit} - double{best}) / transform_.temperature));
}

RowCut RowCutter::cut(std::span<const float> logits) {
  if (std::ranges::any_of(logits, [](float x) { return !std::isfinite(x); })) return {};
  const float best = *std::ranges::max_element(logits);
  float least = -std::numeric_limits<float>::infinity();
  if (transform_.min_p > 0) {
    // Weights fall with logits, so the least kept logit says it all.
    least = best;
    for (const float x : logits)
      if (x < least && double{weight(x, best)} >= transform_.min_p) least = x;
  }
  if (transform_.top_k > 0 && static_cast<std::size_t>(transform_.top_k) < logits.size())
    least = kth_largest(logits, least);
  if (transform_.top_p < 1) return cut_top_p(logits, best, least);
  return {.logit = least};
}

float RowCutter::kth_largest(std::span<const float> logits, float least) {
  left_.clear();
  for (const float x : logits)
    if (x >= least) left_.push_back(x);
  if (left_.size() <= static_cast<std::size_t>(transform_.top_k)) return least;
  const auto kth = left_.begin() + (transform_.top_k - 1);
  std::nth_element(left_.begin(), kth, left_.end(), std::greater<>());
  return *kth;
}

RowCut RowCutter::cut_top_p(std::span<const float> logits, float best, float least) {
  weights_.resize(logits.size());
  double total = 0;
  for (std::size_t v = 0; v < logits.size(); ++v) {
    weights_[v] = logits[v] >= least ? weight(logits[v], best) : 0.0F;
    total += double{weights_[v]};
  }
  const double wanted = transform_.top_p * total;
  // Only the likeliest can stay: take ever more of them until their sum suffices, then sort.
  for (const float bound : {0.125F, 1e-2F, 1e-4F, 1e-7F, 0.0F}) {
    candidates_.clear();
    double sum = 0;
    for (std::size_t v = 0; v < weights_.size(); ++v) {
      if (weights_[v] <= 0 || weights_[v] < bound) continue;
      candidates_.push_back(static_cast<std::int32_t>(v));
      sum += double{weights_[v]};
    }
    if (sum >= wanted * (1.0 + 1e-9)) break;  // the order of the sums differs
  }
  const auto at = [](std::int32_t v) { return static_cast<std::size_t>(v); };
  std::ranges::sort(candidates_, [&](std::int32_t a, std::int32_t b) {
    return logits[at(a)] != logits[at(b)] ? logits[at(a)] > logits[at(b)] : a < b;
  });
  double sum = 0;
  std::size_t kept = 0;
  while (kept < candidates_.size() && (kept == 0 || sum < wanted))
    sum += double{weights_[at(candidates_[kept++])]};
  const std::int32_t last = candidates_[kept - 1];
  return {.logit = logits[at(last)], .id = last};
}

}  // namespace troupe::actors

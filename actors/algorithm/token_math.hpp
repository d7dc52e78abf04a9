#pragma once

// Small inline arithmetic shared by the losses: walks over unmasked tokens, and log-probs kept in
// a finite range together with the fact whether they were inside it (outside, gradients are 0).
//
// **Threads:** pure functions.

#include "actors/algorithm/token_batch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace troupe::actors {

inline constexpr double kLogRatioMax = 20.0;    ///< bound of |log π - log π_other|
inline constexpr double kLogProbMin = -1000.0;  ///< where a log-prob itself is part of a loss

/// Calls visit(sequence, token) for every unmasked token, in order.
template <class Visit>
void for_each_token(const TokenBatchView& batch, Visit&& visit) {
  for (std::size_t s = 0; s < batch.sequences(); ++s)
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t)
      if (batch.mask[t] != 0) visit(s, t);
}

/// A value moved into its range, and whether it was there already.
struct Bounded {
  double value = 0;
  bool inside = true;
};

/// a - b within ±kLogRatioMax; two equal infinities have ratio 0.
inline Bounded log_ratio(double a, double b) {
  if (std::isinf(a) && a == b) return {.value = 0, .inside = false};
  const double difference = a - b;
  const double value = std::clamp(difference, -kLogRatioMax, kLogRatioMax);
  return {.value = value, .inside = value == difference};
}

inline Bounded bounded_log_prob(double log_prob) {
  const double value = std::max(log_prob, kLogProbMin);
  return {.value = value, .inside = value == log_prob};
}

}  // namespace troupe::actors

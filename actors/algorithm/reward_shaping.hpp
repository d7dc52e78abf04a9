#pragma once

// From one score per sequence to token rewards, and what DAPO (Yu et al. 2025) adds to scores:
// the soft penalty on overlong answers, and dropping groups that teach nothing.
//
// **Threads:** pure functions.

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

struct PlacedRewards {
  std::vector<float> rewards;        ///< [T] the score on the last unmasked token, 0 elsewhere
  std::int64_t empty_sequences = 0;  ///< sequences without one: their score has no place
};

/// scores f32 [S] → rewards f32 [T].
result<PlacedRewards> place_rewards(const TokenBatchView& batch, std::span<const float> scores);

struct OverlongOptions {
  std::int64_t response_tokens_max = 0;  ///< longest response that may be generated
  std::int64_t buffer_tokens = 0;        ///< the penalty grows over the last so many
  double factor = 1.0;                   ///< penalty at response_tokens_max
  /// kConfig unless 0 < buffer ≤ max and factor ≥ 0.
  result<void> check() const;
};

/// min(0, -(len - (max - buffer)) / buffer · factor).
double overlong_penalty(std::int64_t response_tokens, const OverlongOptions& options);

/// Rows whose group's scores are not all equal, ascending; groups of one row stay.
/// groups [S] exact ids, scores f32 [S]; a NaN score is kInvalidArgument naming its row.
result<std::vector<std::int64_t>> rows_of_varied_groups(std::span<const std::int64_t> groups,
                                                        std::span<const float> scores);

}  // namespace troupe::actors

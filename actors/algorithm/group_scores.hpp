#pragma once

// Sequences sorted into their groups, and the statistics of one group's scores.
//
// **Threads:** value types, pure functions.
// **Invariants:** groups are compared by exact id; sequences without an unmasked token are in none.
// Sums run over sorted scores, so that a statistic does not depend on the order of the sequences.
// **Cost:** O(S log S).

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

struct GroupStatistics {
  std::int64_t count = 0;
  double mean = 0;
  double deviation = 0;  ///< sample standard deviation (n - 1); 0 for one score
  double largest = 0;
  double second = 0;       ///< second largest; the largest again when it occurs twice
  bool all_equal = false;  ///< exactly; true for one score
};

/// scores f64 [n], n ≥ 1; `scratch` is only there to be reused.
GroupStatistics group_statistics(std::span<const double> scores, std::vector<double>& scratch);

class SequenceGroups {
 public:
  /// kInvalidArgument when the batch names no groups but has sequences.
  static result<SequenceGroups> make(const TokenBatchView& batch);
  std::size_t size() const { return starts_.size() - 1; }
  /// Sequence indices of group g, ascending.
  std::span<const std::size_t> rows(std::size_t group) const {
    return std::span(rows_).subspan(starts_[group], starts_[group + 1] - starts_[group]);
  }

 private:
  std::vector<std::size_t> rows_;
  std::vector<std::size_t> starts_ = {0};
};

/// Sum of the unmasked token rewards of each sequence. rewards f32 [T] → f64 [S].
std::vector<double> sequence_scores(const TokenBatchView& batch, std::span<const float> rewards);

}  // namespace troupe::actors

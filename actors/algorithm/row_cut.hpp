#pragma once

// Where min-p, top-k and top-p cut a row of logits, fast, for a trainer that recomputes log-probs
// of the distribution that tokens were drawn from.
//
// In the order (larger logit, then smaller id) each of the rules keeps a prefix, ties included or
// not, so two numbers say what is kept: the last kept logit and the last kept id of that logit.
// They can be stored for the backward pass, where the kept set is a constant.
// **Ownership:** owns scratch of one row. **Threads:** one thread.
// **Invariants:** keeps what the rollout's sampler keeps of the same logits, and RowProcessor, the
// slow oracle, does; at least one token.
// **Cost:** O(V), top-p a sort of the tokens that can stay.

#include "actors/algorithm/processed_distribution.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace troupe::actors {

/// The end of the kept prefix of a row.
struct RowCut {
  float logit = -std::numeric_limits<float>::infinity();
  std::int32_t id = std::numeric_limits<std::int32_t>::max();

  bool keeps(float other, std::int64_t other_id) const {
    return other > logit || (other == logit && other_id <= id);
  }
  bool operator==(const RowCut&) const = default;
};

class RowCutter {
 public:
  explicit RowCutter(const SamplingTransform& transform) : transform_(transform) {}

  /// logits [V]. A row with a logit that is not finite is kept whole, so that it shows.
  RowCut cut(std::span<const float> logits);

 private:
  float kth_largest(std::span<const float> logits, float least);
  RowCut cut_top_p(std::span<const float> logits, float best, float least);
  float weight(float logit, float best) const;

  SamplingTransform transform_;
  std::vector<float> left_;
  std::vector<float> weights_;
  std::vector<std::int32_t> candidates_;
};

}  // namespace troupe::actors

#pragma once

// Both rosters of a plan, checked, matched by name and indexed by tensor. Internal to the planner.
//
// **Ownership:** views both rosters, which must outlive it.
// **Threads:** a value type; `match_rosters` is pure.
// **Invariants:** ranks are in order (node, id), so whatever is sorted by rank index is grouped by
// node; nothing depends on the order of ranks and tensors in the rosters.

#include "reshard/plan.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::reshard {

/// A rank of either side, or of both.
struct PlanRank {
  std::int32_t rank = 0;
  std::int32_t node = 0;
  const RankLayout* source = nullptr;
  const RankLayout* target = nullptr;
};

/// A segment of one rank: `rank` is an index into PlanInput::ranks.
struct Holding {
  std::int32_t rank = 0;
  std::int32_t segment = 0;
};

/// The segments of one side by tensor.
struct HoldingIndex {
  std::vector<Holding> list = {};
  std::vector<std::int32_t> begin = {};  ///< one more than tensors

  std::span<const Holding> of(std::int32_t tensor) const {
    const auto t = static_cast<std::size_t>(tensor);
    return std::span(list).subspan(static_cast<std::size_t>(begin[t]),
                                   static_cast<std::size_t>(begin[t + 1] - begin[t]));
  }
};

struct PlanInput {
  std::vector<TensorInfo> tensors = {};         ///< of the plan, by (layer, name)
  std::vector<std::int32_t> source_index = {};  ///< each one's place in the source roster
  std::vector<std::int32_t> target_index = {};
  std::vector<PlanRank> ranks = {};
  HoldingIndex source = {};  ///< by index in the source roster
  HoldingIndex target = {};

  const PlanRank& rank(const Holding& holding) const {
    return ranks[static_cast<std::size_t>(holding.rank)];
  }
  const Box& source_box(const Holding& holding) const {
    return rank(holding).source->segments[static_cast<std::size_t>(holding.segment)].box;
  }
  const Box& target_box(const Holding& holding) const {
    return rank(holding).target->segments[static_cast<std::size_t>(holding.segment)].box;
  }
};

/// Errors: those of `plan` but for boxes that nobody holds.
result<PlanInput> match_rosters(const Roster& source, const Roster& target,
                                const PlanOptions& options);

}  // namespace troupe::reshard

#pragma once

// Who sends each cell to whom. Internal to the planner.
//
// **Threads:** pure functions.
// **Invariants:** one draft for each (cell, taker); `after` is a smaller index; ties are broken by
// rank, so the result depends on nothing but the input.

#include "reshard/plan_cells.hpp"

#include <cstdint>
#include <vector>

namespace troupe::reshard {

/// An operation before it has its place in the order. Ranks are indices into PlanInput::ranks.
struct Draft {
  std::int32_t cell = 0;
  std::int32_t source = 0;
  std::int32_t target = 0;
  std::int32_t source_segment = 0;
  std::int32_t target_segment = 0;
  std::int32_t after = -1;  ///< a draft
  std::int32_t depth = 0;   ///< how many operations must come before
  OpKind kind = OpKind::kLocal;
};

struct Assignment {
  std::vector<Draft> drafts = {};
  std::vector<RankTraffic> traffic = {};  ///< by rank index
  bool relays = false;
};

Assignment assign_cells(const PlanInput& input, const CellList& cells, RelayMode relay);

}  // namespace troupe::reshard

#pragma once

// Atomic cells: the boxes of each tensor inside which holders and takers do not change. Internal to
// the planner.
//
// **Threads:** pure functions.
// **Invariants:** the cells of a tensor are disjoint and cover it; each has a holder and a taker;
// both lists are in rank order, and a rank is at most once in each.

#include "reshard/plan_input.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::reshard {

struct Cell {
  std::int32_t tensor = 0;  ///< of the plan
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
  std::int32_t col_begin = 0;
  std::int32_t col_end = 0;
  std::int32_t holders_begin = 0;  ///< into CellList::pool
  std::int32_t holders = 0;
  std::int32_t takers_begin = 0;
  std::int32_t takers = 0;

  std::int64_t elements() const {
    return static_cast<std::int64_t>(row_end - row_begin) * (col_end - col_begin);
  }
};

struct CellList {
  std::vector<Cell> cells = {};
  std::vector<Holding> pool = {};

  std::span<const Holding> holders_of(const Cell& cell) const {
    return std::span(pool).subspan(static_cast<std::size_t>(cell.holders_begin),
                                   static_cast<std::size_t>(cell.holders));
  }
  std::span<const Holding> takers_of(const Cell& cell) const {
    return std::span(pool).subspan(static_cast<std::size_t>(cell.takers_begin),
                                   static_cast<std::size_t>(cell.takers));
  }
};

/// Sweeps every tensor, and splits cells above `cell_bytes_max` of which a byte must travel, by
/// rows, and by columns where one row is larger. Errors: kNotFound, kResourceExhausted.
result<CellList> make_cells(const PlanInput& input, const PlanOptions& options);

}  // namespace troupe::reshard

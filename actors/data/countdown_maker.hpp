#pragma once

// Countdown puzzles that are solvable because they are made from a solution.
//
// **Threads:** pure function of its arguments and the generator's state.
// **Invariants:** every intermediate value is a positive whole number.

#include "runtime/base/rng.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace troupe::actors {

struct Countdown {
  std::int64_t target = 0;
  std::string expression;  ///< uses every number once; few parentheses, no spaces
};

/// Combines all `numbers` (each ≥ 1) by random operations until one value in [1, target_max] is
/// left; empty when a bounded number of tries does not reach the range.
std::optional<Countdown> make_countdown(std::span<const std::int64_t> numbers,
                                        std::int64_t target_max, Rng& rng);

}  // namespace troupe::actors

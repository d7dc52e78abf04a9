#pragma once

// A run of a box's numbers as boxes: what is left of a row, whole rows, and the start of a row.
//
// Whatever cuts flat memory (FSDP shards, buckets, checkpoint pieces) ends inside rows; this is the
// way back to boxes.
// **Threads:** pure functions.

#include "reshard/layout.hpp"

#include <array>
#include <cstdint>

namespace troupe::reshard {

/// Numbers [first, first + count) of `box`, row-major and inside it. The boxes are disjoint and in
/// the order of their numbers; any of the three may be empty.
std::array<Box, 3> run_boxes(const Box& box, std::int64_t first, std::int64_t count);

}  // namespace troupe::reshard

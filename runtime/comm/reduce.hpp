#pragma once

// Elementwise reduction of the same slice of several ranks' buffers, in rank order.
//
// **Threads:** pure; callers give slices that nobody writes meanwhile.
// **Invariants:** element i = ((x₀ op x₁) op x₂) … for any slicing, so bits do not depend on it.
// **Cost:** reads every source once, writes every target once, in blocks that stay in L1.

#include "runtime/comm/collective.hpp"

#include <cstddef>
#include <span>

namespace troupe::runtime {

struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Part `index` of `parts` of `count` elements; borders fall on multiples of 16 elements so that
/// ranks do not write to one cache line. Parts may be empty.
Slice slice_of(std::size_t count, std::size_t parts, std::size_t index);

/// Reduces `slice` over `sources` (one buffer per rank, in rank order) and writes the outcome to
/// `targets`: `targets[j]` points at what element 0 of the buffers would be.
void reduce_slice(ElementType type, ReduceOp op, std::span<const void* const> sources,
                  std::span<void* const> targets, Slice slice);

}  // namespace troupe::runtime

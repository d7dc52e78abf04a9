#pragma once

// Pieces of an operation: where their bytes lie in a buffer, and their checksums.
//
// A piece is a run of elements of a box in row-major order; in a buffer it is up to three
// rectangles: the rest of a row, whole rows, the start of a row.
// **Threads:** pure functions.
// **Invariants:** the spans of a piece are in row-major order and hold its bytes exactly;
// neighbours are joined.

#include "reshard/execution/weight_port.hpp"
#include "reshard/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::reshard {

/// The memory of a piece of the region in `buffer`.
std::vector<std::span<const std::byte>> piece_spans(std::span<const std::byte> buffer,
                                                    const Region& region, std::int64_t element,
                                                    std::int64_t first, std::int64_t count);

/// Copies the bytes of a piece, row-major and dense, into the region of `buffer`.
void scatter_piece(std::span<const std::byte> dense, std::span<std::byte> buffer,
                   const Region& region, std::int64_t element, std::int64_t first,
                   std::int64_t count);

/// Stops the process when the piece does not lie in a region that lies in such a buffer.
void check_region(std::size_t buffer_bytes, const Region& region, std::int64_t element,
                  std::int64_t first, std::int64_t count);

/// Whether a copy of so many bytes, in rows of so many, is better made around the caches.
bool copies_around_caches(std::int64_t row_bytes, std::int64_t bytes);

/// Copies `rows` rows of `row_bytes` between two strided places that do not overlap.
void copy_rows(std::byte* target, std::int64_t target_stride, const std::byte* source,
               std::int64_t source_stride, std::int64_t rows, std::int64_t row_bytes);

}  // namespace troupe::reshard

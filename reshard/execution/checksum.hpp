#pragma once

// The checksum of a canonical tensor that does not depend on how it is cut:
// H = Σ weight(i) · word(i) mod 2^64 over the words of four bytes that its elements make, row-major
// and dense. Bytes of a part of a word stand where they stand in the word, so that sums over parts
// add up at every cut, for elements of any width.
//
// weight(i) = odd 32 bits for i modulo 2048, times an odd 64-bit mix of i / 2048. A change inside
// one word always changes the sum, and so do two words of one block of 2048 that are exchanged;
// anything else is missed by a chance below 2^-32. That nothing is missing is counted apart. It is
// made against accidents, not against adversaries. Both ends of a transfer compare their parts
// without gathering anything.
// **Threads:** pure functions.
// **Cost:** one multiplication per word, in vectors where the processor has them (checksum_paths):
// what reading the memory costs, or, together with a copy, what the copy costs.

#include "reshard/layout.hpp"

#include <cstddef>
#include <cstdint>

namespace troupe::reshard {

struct SumPath;

/// Sum over `count` elements of `element` bytes at `data`, the first of which has flat index
/// `index`; `element` is 1, 2, 4 or 8.
std::uint64_t sum_elements(const std::byte* data, std::int64_t element, std::int64_t index,
                           std::int64_t count);

/// Sum over `box` of a tensor with `tensor_cols` columns; rows lie `row_stride` elements apart.
std::uint64_t sum_box(const Box& box, std::int64_t tensor_cols, const std::byte* data,
                      std::int64_t row_stride, std::int64_t element);

/// Copies, and sums what it read in the same pass; the places do not overlap. `stream`: around the
/// caches, and `end_stream` comes before others read it.
std::uint64_t copy_and_sum(std::byte* to, const std::byte* data, std::int64_t element,
                           std::int64_t index, std::int64_t count, bool stream);

/// The same over bytes [position, position + bytes) of the dense tensor by one path; copies unless
/// `to` is null.
std::uint64_t sum_by_path(const SumPath& path, std::byte* to, const std::byte* data,
                          std::int64_t position, std::int64_t bytes, bool stream);

/// The same one byte after another, straight from the formula; the reference of the tests.
std::uint64_t sum_elements_slowly(const std::byte* data, std::int64_t element, std::int64_t index,
                                  std::int64_t count);

}  // namespace troupe::reshard

#pragma once

// The checksum of a canonical tensor that does not depend on how it is cut:
// H = Σ weight(i) · (bits(i) + 1) mod 2^64 over its elements, i the flat index in the tensor and
// bits(i) the raw bits of the element.
//
// `weight` mixes the index into 32 bits that look random, so that elements which are lost, doubled,
// changed or exchanged change the sum; it is made against accidents, not against adversaries. Sums
// over parts add up, so both ends of a transfer can be compared without gathering anything.
// **Threads:** pure functions.
// **Cost:** a few GB/s with vector instructions, looked for at run time.

#include "reshard/layout.hpp"

#include <cstddef>
#include <cstdint>

namespace troupe::reshard {

/// Sum over `count` elements of `element` bytes at `data`, the first of which has flat index
/// `index`; `element` is 1, 2, 4 or 8.
std::uint64_t sum_elements(const std::byte* data, std::int64_t element, std::int64_t index,
                           std::int64_t count);

/// Sum over `box` of a tensor with `tensor_cols` columns; rows lie `row_stride` elements apart.
std::uint64_t sum_box(const Box& box, std::int64_t tensor_cols, const std::byte* data,
                      std::int64_t row_stride, std::int64_t element);

/// The same one element after another, straight from the formula; the reference of the tests.
std::uint64_t sum_elements_slowly(const std::byte* data, std::int64_t element, std::int64_t index,
                                  std::int64_t count);

}  // namespace troupe::reshard

#pragma once

// The number formats of GGUF tensors, and how each becomes fp32.
//
// A tensor is a row of equal blocks. In the types `Qb_0` and `Qb_1` a block is 32 numbers of b bits
// with one scale, and with an offset in `Qb_1`. In `Qb_K` it is 256 numbers whose sub-blocks of 16
// or 32 have scales of their own, numbers of 4 to 8 bits under one or two half-precision ones.
// **Threads:** pure functions.
// **Invariants:** every product and sum is rounded to fp32 once, in the order that the `gguf`
// package of llama.cpp has, so values are those of its numpy code bit for bit.
// **Cost:** one pass, about a second for 10^9 numbers.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troupe::actors {

/// Values are those of the file.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
};

/// Name in llama.cpp, e.g. `Q4_1`.
std::string_view ggml_type_name(GgmlType type);
/// Numbers of one block.
std::size_t ggml_block_elements(GgmlType type);
/// Bytes of one block.
std::size_t ggml_block_bytes(GgmlType type);
/// The type with this number in a file; none where it is unknown or not read here.
std::optional<GgmlType> ggml_type_of(std::uint32_t number);
/// Name of a type that exists but is not read here, e.g. `IQ4_XS`; empty for other numbers.
std::string_view foreign_ggml_type_name(std::uint32_t number);

/// Whole blocks to fp32. `bytes` need not be aligned.
/// Errors: kInvalidArgument when `bytes` are not the blocks of exactly `target.size()` numbers.
result<void> dequantize(GgmlType type, std::span<const std::byte> bytes, std::span<float> target);

}  // namespace troupe::actors

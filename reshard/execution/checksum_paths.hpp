#pragma once

// The inner loops of the checksum, one set per instruction set, chosen at run time.
//
// Every path gives the same sums to the bit; the portable one is the reference of the others.
// **Threads:** pure functions.
// **Invariants:** reads and writes nothing but the words it is given.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::reshard {

/// Words of four bytes that share one block of weights.
inline constexpr std::int64_t kBlockWords = 2048;
/// Odd and all different; word `i` of a block has weight `i`.
const std::array<std::uint32_t, kBlockWords>& word_weights();

/// Sums are Σ word · weight mod 2^64 over `count` words; copies give the sum of what they read.
struct SumPath {
  std::string_view name;
  std::uint64_t (*sum)(const std::byte* words, const std::uint32_t* weights, std::int64_t count);
  std::uint64_t (*copy)(std::byte* to, const std::byte* words, const std::uint32_t* weights,
                        std::int64_t count);
  /// The same around the caches; `to` is a multiple of 64, `end_stream` comes before others read.
  std::uint64_t (*stream)(std::byte* to, const std::byte* words, const std::uint32_t* weights,
                          std::int64_t count);
};

/// What this processor has, the portable one first and the fastest last.
std::span<const SumPath> sum_paths();
void end_stream();

}  // namespace troupe::reshard

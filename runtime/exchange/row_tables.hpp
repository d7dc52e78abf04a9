#pragma once

// Row lengths and runs of rows as variable-length integers, for exported batches.
//
// Lengths: tokens of `count << 1 | repeated`; after a repeated one comes the one length, else
// `count` lengths. Runs: piece, zigzag of the distance from where the last run of that piece ended,
// count.
// **Threads:** pure functions.
// **Invariants:** decoding takes any bytes; every sum is bounded before it is made.

#include "runtime/base/result.hpp"
#include "runtime/exchange/exchange_codec.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// `offsets` [rows + 1], as a running sum.
std::string encode_lengths(std::span<const std::int64_t> offsets);
/// At most `rows_max` rows, whose lengths sum to at most `elements_max`.
result<std::vector<std::int64_t>> decode_lengths(std::string_view bytes, std::int64_t rows_max,
                                                 std::int64_t elements_max);

std::string encode_runs(std::span<const ExchangeRun> runs);
/// Runs of at least one row each, `rows` together.
result<std::vector<ExchangeRun>> decode_runs(std::string_view bytes, std::int64_t rows);

}  // namespace troupe::runtime

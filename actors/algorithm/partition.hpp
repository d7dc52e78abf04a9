#pragma once

// Sharing sequences out: between ranks evenly by work, and into micro-batches under a token budget
// that is never exceeded.
//
// Both use the largest differencing method of Karmarkar and Karp (1982) for k parts. Results are
// indices into the input, ascending inside a part, and depend on nothing but the arguments.
// **Threads:** pure functions.
// **Cost:** O(n k log(n k)) time, O(n k) memory; 8,192 sequences on 8 ranks in a few ms.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

using Partition = std::vector<std::vector<std::int64_t>>;  ///< [k] parts of indices

/// Work of a sequence of `tokens`, up to a constant: 24576·L + L², the ratio of linear to
/// attention work at a hidden size of 4096 (12h²L + 2hL²).
std::int64_t sequence_work(std::int64_t tokens);

/// sequence_work of each; kInvalidArgument naming a length that is negative or above 10⁹.
result<std::vector<std::int64_t>> sequence_works(std::span<const std::int64_t> lengths);

enum class PartSizes {
  kFree,   ///< any number of items, also none
  kEqual,  ///< ⌈n/k⌉ or ⌊n/k⌋ items
};

/// Parts of nearly equal sum. Weights ≥ 0, parts ≥ 1; kInvalidArgument otherwise.
result<Partition> karmarkar_karp(std::span<const std::int64_t> weights, std::int64_t parts,
                                 PartSizes sizes);

/// Rows for each of `ranks`, balanced by sequence_work; row counts differ by at most one.
result<Partition> balance_ranks(std::span<const std::int64_t> lengths, std::int64_t ranks);

/// How many micro-batches of at most `tokens_max` tokens this rank needs: never below what the
/// sum asks for, and always enough. Ranks take the maximum and hand it to plan_micro_batches.
/// kInvalidArgument naming the sequence that is longer than the budget; 0 for no sequences.
result<std::int64_t> micro_batch_count(std::span<const std::int64_t> lengths,
                                       std::int64_t tokens_max);

/// Exactly `count` micro-batches (≥ micro_batch_count), each with at most `tokens_max` tokens,
/// balanced by work, heaviest first; empty ones come last and only when `count` exceeds the rows.
result<Partition> plan_micro_batches(std::span<const std::int64_t> lengths, std::int64_t tokens_max,
                                     std::int64_t count);

}  // namespace troupe::actors

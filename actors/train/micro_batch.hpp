#pragma once

// Cuts a rank's packed sequences into micro-batches under a hard token budget.
//
// Sequences of equal prompts (the samples of a group) come together and hold their prompt once: a
// prompt of P tokens with G responses of R is P + G·R tokens of work in place of G·(P + R).
// **Threads:** pure functions; values own their data.
// **Invariants:** every sequence is in exactly one micro-batch, whole; none exceeds the budget.
// Without equal prompts, sharing changes nothing.

#include "actors/algorithm/token_batch.hpp"
#include "actors/train/packed_sequences.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// Some sequences of a shard, packed anew. R response tokens are predicted.
struct MicroBatch {
  std::vector<std::int64_t> sequences;         ///< [s] indices in the shard
  std::vector<std::int32_t> tokens;            ///< [T]
  std::vector<std::int64_t> offsets;           ///< [p+1] pieces: prompts, responses, or both
  std::vector<std::int64_t> prefixes;          ///< [p] each response's prompt, or -1; empty: none
  std::vector<std::int64_t> rows;              ///< [R] position that predicts each response token
  std::vector<std::int64_t> targets;           ///< [R] the response token
  std::vector<std::int64_t> response_offsets;  ///< [s+1] in this micro-batch
  std::vector<std::int64_t> origin;            ///< [R] index in the shard's response-packed arrays

  /// This micro-batch's part of a response-packed array; empty stays empty.
  template <class T>
  std::vector<T> part(std::span<const T> shard) const {
    std::vector<T> out;
    if (shard.empty()) return out;
    out.reserve(origin.size());
    for (const std::int64_t index : origin) out.push_back(shard[static_cast<std::size_t>(index)]);
    return out;
  }
  /// Writes this micro-batch's part back.
  void put(std::span<const float> part, std::span<float> shard) const {
    for (std::size_t i = 0; i < origin.size(); ++i)
      shard[static_cast<std::size_t>(origin[i])] = part[i];
  }
};

/// Balanced by work (Karmarkar–Karp). `share_prompts`: as above; else each sequence lies alone.
/// Errors: kInvalidArgument naming a sequence over the budget.
result<std::vector<MicroBatch>> make_micro_batches(const PackedSequences& sequences,
                                                   std::int64_t tokens_max, bool share_prompts);

}  // namespace troupe::actors

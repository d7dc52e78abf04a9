#pragma once

// Between batches and engines: a batch's prompt and response columns as packed sequences, and the
// row order that shares work evenly over ranks.
//
// **Ownership:** `PackedBatch` owns copies of the tokens.
// **Threads:** pure functions.
// **Invariants:** per-token columns have, row by row, the length of `responses` (checked).

#include "actors/train/packed_sequences.hpp"
#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace troupe::actors {

struct PackedBatch {
  SequencePack pack;
  std::vector<std::int64_t> response_lengths;  ///< [B]
};

/// Columns `prompts` and `responses`, resolved. kConflict names the row whose prompt is empty.
result<PackedBatch> pack_batch(const runtime::Batch& batch);

/// A jagged f32 column, flat; kConflict names the row whose length is not that of `responses`.
result<std::vector<float>> token_values(const runtime::Batch& batch, std::string_view name,
                                        const PackedBatch& packed);
/// `response_mask`, or all ones when the batch has none.
result<std::vector<std::uint8_t>> response_mask(const runtime::Batch& batch,
                                                const PackedBatch& packed);

/// A permutation of rows after which `split(ranks)` gives parts of nearly equal work, and its
/// inverse, which puts results back.
struct RowOrder {
  std::vector<std::int64_t> order;
  std::vector<std::int64_t> inverse;
};
/// Balances by prompt + response tokens (verl's `trainer.balance_batch`). Reads lengths, and the
/// `group` column when that is there and at hand: rows of a group, which share their prompt, come
/// to one rank where groups are of one size and share out evenly, as verl's prefix grouper asks.
result<RowOrder> balanced_order(const runtime::Batch& batch, std::int64_t ranks);

}  // namespace troupe::actors

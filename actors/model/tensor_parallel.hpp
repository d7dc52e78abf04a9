#pragma once

// Which box of each canonical tensor one rank of a tensor-parallel group holds.
//
// Queries, keys, values, gate and up are cut by output rows (whole heads; their biases too), o and
// down by input columns, embedding and head by vocabulary rows, which may be uneven. Norms, the
// biases of o and down and a critic's value head are whole on every rank. With more ranks than kv
// heads each kv head is held by tp / K neighbours.
// **Threads:** pure functions.
// **Invariants:** the boxes of all ranks cover every tensor; those of the ranks that own theirs
// cover it once.

#include "actors/model/flat_parameters.hpp"
#include "actors/model/model_config.hpp"

#include <cstdint>

namespace troupe::actors {

/// A rank and its tensor-parallel group; the default is a rank that holds everything.
struct TensorPlace {
  int rank = 0;
  int size = 1;
  bool operator==(const TensorPlace&) const = default;
};

/// Half open.
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const IndexRange&) const = default;
  std::int64_t size() const { return end - begin; }
};

/// Part `place` of [0, count): as even as possible.
IndexRange part_of(std::int64_t count, TensorPlace place);

/// Ranks that hold the same kv head: 1 unless tp > K.
int kv_copies(const ModelConfig& config, TensorPlace place);
/// The kv heads of this rank.
IndexRange kv_heads_of(const ModelConfig& config, TensorPlace place);

/// The box of `tensor` (of `decoder_tensors`) that `place` holds. The model must admit the cut:
/// `check_parallel`.
LocalTensor local_tensor(const ModelConfig& config, const TensorShape& tensor, TensorPlace place);

}  // namespace troupe::actors

#pragma once

// The share of a decoder that one rank of a tensor-parallel group holds and computes.
//
// Query heads and kv heads are cut evenly; where there are fewer kv heads than ranks, size / K
// neighbours hold each. Mlp columns are cut as evenly as they can be. The vocabulary is padded to a
// multiple of 64 and of the ranks, then cut evenly. Norms and row-parallel biases are whole on
// every rank.
// **Threads:** values and pure functions.
// **Invariants:** what a rank's query heads need of kv heads, the rank holds; over all ranks every
// query head, mlp column and vocabulary row occurs once.

#include "actors/model/model_config.hpp"
#include "reshard/model_shape.hpp"
#include "runtime/base/result.hpp"

#include <algorithm>
#include <cstdint>

namespace troupe::actors {

struct ModelShare {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::int64_t q_head_begin = 0;
  std::int64_t kv_head_begin = 0;
  std::int64_t mlp_begin = 0;
  std::int64_t vocab_size = 0;  ///< V of the whole model
  /// The model as this rank computes it: its heads, its mlp columns, and as vocabulary the rows of
  /// its slice, padding included.
  ModelConfig local;

  /// The real vocabulary rows of rank `of`; empty where only padding is left.
  std::int64_t vocab_begin(std::int64_t of) const {
    return std::min(of * local.vocab_size, vocab_size);
  }
  std::int64_t vocab_end(std::int64_t of) const { return vocab_begin(of + 1); }
};

/// What the vocabulary of an engine of `size` ranks is padded to a multiple of.
std::int64_t vocab_multiple(std::int64_t size);

/// kInvalidArgument naming what cannot be cut, with both numbers.
result<ModelShare> share_of(const ModelConfig& config, std::int64_t rank, std::int64_t size);

/// All of the model on one rank.
ModelShare whole_model(const ModelConfig& config);

/// The same model for the layout builders of reshard/.
reshard::ModelShape shape_of(const ModelConfig& config);

}  // namespace troupe::actors

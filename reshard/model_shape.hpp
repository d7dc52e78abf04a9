#pragma once

// The numbers that decide how a model is cut, and the canonical tensors that it has.
//
// Layout builders take all head, vocabulary and expert counts from here; none is ever worked out
// from the shape of a shard, because padded or replicated shards lie about them.
// **Threads:** a value type.
// **Invariants:** names are those of Hugging Face checkpoints, for dense models the same names, in
// the same order, as `actors/model` `expected_tensors`.

#include "reshard/layout.hpp"

#include <cstdint>
#include <vector>

namespace troupe::reshard {

/// Mixture of experts; `experts == 0` means a dense model.
struct ExpertShape {
  std::int64_t experts = 0;
  std::int64_t intermediate = 0;         ///< width of one expert
  std::int64_t shared_intermediate = 0;  ///< width of the always active expert; 0: none
  std::int64_t dense_layers = 0;         ///< the first layers keep a dense MLP
  bool router_bias = false;              ///< f32 `e_score_correction_bias`, whatever the dtype
  bool operator==(const ExpertShape&) const = default;
};

/// Multi-head latent attention; `kv_rank == 0` means plain attention.
struct LatentShape {
  std::int64_t q_rank = 0;  ///< 0: q is one matrix
  std::int64_t kv_rank = 0;
  std::int64_t nope_dim = 0;
  std::int64_t rope_dim = 0;
  std::int64_t v_dim = 0;
  bool operator==(const LatentShape&) const = default;
};

struct ModelShape {
  std::int64_t vocab = 0;         ///< V, unpadded
  std::int64_t hidden = 0;        ///< H
  std::int64_t intermediate = 0;  ///< F of a dense MLP
  std::int64_t layers = 0;        ///< L
  std::int64_t heads = 0;         ///< N
  std::int64_t kv_heads = 0;      ///< K; divides N
  std::int64_t head_dim = 0;      ///< D
  bool tied = false;              ///< the head is the embedding; `lm_head.weight` is absent
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool value_head = false;  ///< a critic: `value_head.weight` [1, H] in place of the head
  ExpertShape expert = {};
  LatentShape latent = {};
  DType dtype = DType::kF32;
  bool operator==(const ModelShape&) const = default;

  std::int64_t q_rows() const { return heads * head_dim; }
  std::int64_t kv_rows() const { return kv_heads * head_dim; }
  bool is_expert_layer(std::int64_t layer) const {
    return expert.experts > 0 && layer >= expert.dense_layers;
  }
  /// Ranges and divisibility. Errors: kInvalidArgument naming the field and both values.
  result<void> validate() const;
};

/// The canonical tensors in execution order: embedding, layers, final norm, head.
std::vector<TensorInfo> canonical_tensors(const ModelShape& shape);

}  // namespace troupe::reshard

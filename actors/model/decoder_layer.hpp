#pragma once

// One decoder layer: attention and gated MLP, each behind an RMSNorm and a residual sum.
//
// **Threads:** pure functions of tensors; see packed_attention for the table.

#include "actors/model/attention.hpp"
#include "actors/model/flat_parameters.hpp"
#include "actors/model/tensor_parallel_ops.hpp"

#include <ATen/core/Tensor.h>

namespace troupe::actors {

/// Leaves of one layer; biases and q/k norms are undefined where the model has none.
struct LayerWeights {
  at::Tensor input_norm;    ///< [H]
  at::Tensor qkv;           ///< [(N+2K)·D, H]
  at::Tensor qkv_bias;      ///< [(N+2K)·D]
  at::Tensor q_norm;        ///< [D]
  at::Tensor k_norm;        ///< [D]
  at::Tensor o;             ///< [H, N·D]
  at::Tensor o_bias;        ///< [H]
  at::Tensor mlp_norm;      ///< [H], Hugging Face's post_attention_layernorm
  at::Tensor gate_up;       ///< [2F, H]
  at::Tensor gate_up_bias;  ///< [2F]
  at::Tensor down;          ///< [H, F]
  at::Tensor down_bias;     ///< [H]
};

/// Which of the leaves that not every model has a unit holds.
struct LayerParts {
  bool qkv_bias = false;
  bool qk_norm = false;
  bool o_bias = false;
  bool mlp_bias = false;
};

/// The leaves of a leased layer, which come in the order of LayerWeights.
LayerWeights layer_weights(const UnitLease& lease, const LayerParts& parts);

/// What all layers and passes of a model share.
struct LayerContext {
  AttentionShape shape;
  LayerParts parts;
  double eps = 1e-6;
  const RotaryTable* rotary = nullptr;
  const TensorGroup* tensor = nullptr;  ///< null: the layer is whole; else N, K and F are local
};

/// The residual stream as two summands: the next norm adds them, in the same pass over memory.
struct Residual {
  at::Tensor x;      ///< [T, H]
  at::Tensor delta;  ///< [T, H], or undefined: 0
};

/// What varies from pass to pass.
struct LayerInput {
  SequenceLayout sequences;
  /// [R] i64 positions to go on with after attention, or undefined: all. The last layer needs its
  /// output only where something is predicted, and skips the rest of its matrix products.
  at::Tensor rows;
};

/// Where a layer's weights come from, anew for each pass.
struct LayerSource {
  FlatParameters* parameters = nullptr;
  std::size_t unit = 0;
  bool keep = false;  ///< the leaves stay until backward: it follows at once
};

/// Residual of T rows → T rows, or R when `input.rows` says so.
Residual decoder_layer(const LayerWeights& weights, const LayerContext& context,
                       const LayerInput& input, const Residual& in);
/// The same with the weights leased from `source` for this pass and its backward.
Residual decoder_layer(const LayerSource& source, const LayerContext& context,
                       const LayerInput& input, const Residual& in);

/// The same with the summands added, x [T, H] → [T or R, H], but it keeps only its input for
/// backward and runs the layer again there; the gradients have the same bits. Weight gradients go
/// straight into the leaves, so this works with `backward()` and not with `torch::autograd::grad`
/// on weights. `source.parameters` and `context` must outlive backward.
at::Tensor decoder_layer_recomputed(const LayerSource& source, const LayerContext& context,
                                    const LayerInput& input, const at::Tensor& x);

}  // namespace troupe::actors

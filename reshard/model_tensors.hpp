#pragma once

// Canonical tensors by their role, so that layout builders need no names.
//
// **Threads:** a value type.
// **Invariants:** an index is −1 when the model has no such tensor; experts are three tensors each
// (gate, up, down), one expert after the other.

#include "reshard/model_shape.hpp"

#include <cstdint>
#include <vector>

namespace troupe::reshard {

inline constexpr std::int32_t kNoTensor = -1;

struct LayerTensors {
  std::int32_t input_norm = kNoTensor;
  std::int32_t q = kNoTensor, q_bias = kNoTensor;
  std::int32_t k = kNoTensor, k_bias = kNoTensor;
  std::int32_t v = kNoTensor, v_bias = kNoTensor;
  std::int32_t q_norm = kNoTensor, k_norm = kNoTensor;
  /// Latent attention: down projections, their norms, up projections by head.
  std::int32_t q_a = kNoTensor, q_a_norm = kNoTensor, q_b = kNoTensor;
  std::int32_t kv_a = kNoTensor, kv_a_norm = kNoTensor, kv_b = kNoTensor;
  std::int32_t o = kNoTensor, o_bias = kNoTensor;
  std::int32_t mlp_norm = kNoTensor;
  /// A dense MLP, or the expert that is always active.
  std::int32_t gate = kNoTensor, gate_bias = kNoTensor;
  std::int32_t up = kNoTensor, up_bias = kNoTensor;
  std::int32_t down = kNoTensor, down_bias = kNoTensor;
  std::int32_t router = kNoTensor, router_bias = kNoTensor;
  std::int32_t experts = kNoTensor;  ///< gate of expert 0

  std::int32_t expert_gate(std::int64_t expert) const {
    return experts + 3 * static_cast<std::int32_t>(expert);
  }
};

struct ModelTensors {
  std::vector<TensorInfo> tensors = {};
  std::vector<LayerTensors> layers = {};
  std::int32_t embedding = kNoTensor;
  std::int32_t final_norm = kNoTensor;
  std::int32_t head = kNoTensor;  ///< −1 when tied
  std::int32_t value_head = kNoTensor;

  const TensorInfo& at(std::int32_t index) const {
    return tensors[static_cast<std::size_t>(index)];
  }
};

/// The tensors of `shape` in execution order, with their roles. `shape` must be valid.
ModelTensors model_tensors(const ModelShape& shape);

}  // namespace troupe::reshard

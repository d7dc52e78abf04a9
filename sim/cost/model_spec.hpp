#pragma once

// A model as the cost formulas see it, and what its sizes follow from.
//
// **Threads:** value types; functions are pure.
// **Invariants:** `ModelSize` agrees with the canonical tensors of `reshard` to the last parameter
// (tests/sim/cost), so that the simulator and the real planner speak of the same bytes.

#include "reshard/model_shape.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>

namespace troupe::sim {

struct ModelSpec {
  std::string name{};
  reshard::ModelShape shape{};
  std::int64_t experts_per_token = 0;  ///< routed; 0 for dense models
  std::string source{};                ///< where the numbers come from

  /// The shape's own checks, and 1 ≤ experts_per_token ≤ experts where there are experts.
  result<void> validate() const;
};

/// Parameter counts. Embedding look-ups cost no FLOPs; a tied head does, and is stored once.
struct ModelSize {
  std::int64_t parameters = 0;  ///< stored
  std::int64_t embedding = 0;   ///< V·H
  std::int64_t head = 0;        ///< V·H that is multiplied by, stored or tied
  std::int64_t attention = 0;   ///< matrices of one layer
  std::int64_t dense_mlp = 0;   ///< of a dense layer
  std::int64_t expert = 0;      ///< one routed expert of one layer
  std::int64_t shared_expert = 0;
  std::int64_t router = 0;
  std::int64_t other = 0;  ///< norms and biases of all layers, and the final norm
  std::int64_t layers = 0;
  std::int64_t expert_layers = 0;  ///< those with routed experts; the rest is dense
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;

  std::int64_t dense_layers() const { return layers - expert_layers; }
  /// Matrix elements that one token is multiplied by, head included.
  std::int64_t active() const;
  /// The same of the layers alone.
  std::int64_t active_layers() const { return active() - head; }
};

ModelSize size_of(const ModelSpec& spec);

/// Elements of KV cache that one token takes in all layers: 2·L·K·D, or L·(rank + rope) for latent
/// attention.
std::int64_t kv_elements_per_token(const ModelSpec& spec);

/// Forward FLOPs of attention scores and values for one causal sequence of s tokens are this times
/// s²: 2·L·N·D with equal widths (Megatron's and verl's counters; reference §2.1).
double attention_flops_per_square(const ModelSpec& spec);

/// Forward FLOPs of `tokens` tokens whose sequences have `square_sum` = Σ s².
double forward_flops(const ModelSpec& spec, double tokens, double square_sum);

}  // namespace troupe::sim

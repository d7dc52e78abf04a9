#pragma once

// Differentiable packed attention: one autograd node over attention_kernel.hpp.
//
// **Threads:** one caller at a time per RotaryTable. **Ownership:** the table is borrowed and must
// live until backward is done; it may grow meanwhile but its existing rows stay as they are.

#include "actors/model/attention_kernel.hpp"

#include <ATen/core/Tensor.h>

#include <span>

namespace troupe::actors {

/// Where packed sequences lie: i64, on the CPU.
struct SequenceLayout {
  at::Tensor offsets;   ///< [S+1]
  at::Tensor prefixes;  ///< [S], see AttentionInputs; undefined: nobody has one
};

/// qkv [T, (N+2K)·D] f32 (queries, keys, values side by side, before RoPE) → [T, N·D]. Causal
/// inside each sequence behind its prefix; positions restart per sequence, or go on from it.
at::Tensor packed_attention(const at::Tensor& qkv, const SequenceLayout& layout,
                            const AttentionShape& shape, const RotaryTable& table);

/// Makes `table` cover `positions` rows for these inverse frequencies [D/2]; keeps what it has.
void extend_rotary(RotaryTable& table, std::span<const double> frequencies, std::int64_t positions);

}  // namespace troupe::actors

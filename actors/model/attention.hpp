#pragma once

// Differentiable packed attention: one autograd node over attention_kernel.hpp.
//
// **Threads:** one caller at a time per RotaryTable. **Ownership:** the table is borrowed and must
// live until backward is done; it may grow meanwhile but its existing rows stay as they are.

#include "actors/model/attention_kernel.hpp"

#include <ATen/core/Tensor.h>

#include <span>

namespace troupe::actors {

/// qkv [T, (N+2K)·D] f32 (queries, keys, values side by side, before RoPE), offsets [S+1] i64 on
/// the CPU → [T, N·D]. Causal inside each sequence, positions restart per sequence.
at::Tensor packed_attention(const at::Tensor& qkv, const at::Tensor& offsets,
                            const AttentionShape& shape, const RotaryTable& table);

/// Makes `table` cover `positions` rows for these inverse frequencies [D/2]; keeps what it has.
void extend_rotary(RotaryTable& table, std::span<const double> frequencies, std::int64_t positions);

}  // namespace troupe::actors

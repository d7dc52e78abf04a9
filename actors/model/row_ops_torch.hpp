#pragma once

// Differentiable row operations of the decoder: each is one autograd node over a fused kernel of
// train_kernels.hpp, so a layer costs eight nodes instead of about forty.
//
// All tensors are f32, dense, on the CPU. Without grad mode nothing is kept.
// **Threads:** pure functions of tensors. **Invariants:** backward writes new tensors only.

#include "actors/model/attention_kernel.hpp"

#include <ATen/core/Tensor.h>

namespace troupe::actors {

/// x [T, in] · weight [out, in]ᵀ + bias [out] (may be undefined) → [T, out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

struct ResidualNorm {
  at::Tensor sum;     ///< [T, H] x + delta
  at::Tensor normed;  ///< [T, H] RMSNorm(sum)
};
/// x [T, H], delta [T, H] or undefined (then sum is x itself), weight [H].
ResidualNorm add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                          double eps);

/// RMSNorm over each query and key head of qkv [T, (N+2K)·D]; weights [D]. Values pass through.
at::Tensor head_norm(const at::Tensor& qkv, const at::Tensor& q_weight, const at::Tensor& k_weight,
                     const AttentionShape& shape, double eps);

/// gate_up [T, 2F] → silu(gate) · up [T, F].
at::Tensor swiglu(const at::Tensor& gate_up);

/// source [V, H], index [R] i64 → [R, H]; backward adds rows up. Embedding, and row selection.
at::Tensor select_rows(const at::Tensor& source, const at::Tensor& index);

}  // namespace troupe::actors

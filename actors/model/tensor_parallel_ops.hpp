#pragma once

// The differentiable operators of tensor parallelism: Megatron's f and g (Shoeybi et al.,
// "Megatron-LM", 2019, §3), fused into the matrix products beside them.
//
// f hands x to a product that is cut by output rows: nothing forward, a sum of dL/dx backward.
// g ends a product that is cut by input columns: a sum forward, nothing backward.
// **Ownership:** autograd nodes point to the `TensorGroup`, which must outlive backward; it borrows
// the collectives. **Threads:** one at a time.
// **Collectives:** all ranks must build the same graph in the same order; backward then meets in
// the same order too, because LibTorch runs it on the calling thread by descending sequence
// number. A failed collective throws `runtime::Failure` through autograd; the train engine turns it
// back into an error.
// **Invariants:** tensors that are whole on every rank, and their gradients, have the same bits on
// all ranks.

#include "actors/model/tensor_parallel.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/comm/collective.hpp"

#include <ATen/core/Tensor.h>

namespace troupe::actors {

/// A rank's tensor-parallel group of two ranks or more.
struct TensorGroup {
  TensorPlace place;
  runtime::Collective* ranks = nullptr;     ///< the group
  runtime::Collective* kv_ranks = nullptr;  ///< those that hold the same kv heads; null: only this
  Duration timeout{};                       ///< of each collective

  /// Sums a dense f32 tensor over the group, in place.
  void sum(const at::Tensor& tensor) const { sum_over(*ranks, tensor); }
  /// The same over the ranks with the same kv heads.
  void sum_kv(const at::Tensor& tensor) const {
    if (kv_ranks != nullptr) sum_over(*kv_ranks, tensor);
  }
  Deadline deadline() const { return Deadline::in(timeout); }

 private:
  void sum_over(runtime::Collective& group, const at::Tensor& tensor) const;
};

/// f, then x [T, in] · weight [out/tp, in]ᵀ + bias [out/tp] (may be undefined) → [T, out/tp].
/// Gradients of the rows from `kv_row_begin` on are summed over the ranks with the same kv heads,
/// which hold copies of those rows; a negative number: no row is a copy.
at::Tensor column_parallel_linear(const TensorGroup& group, const at::Tensor& x,
                                  const at::Tensor& weight, const at::Tensor& bias,
                                  std::int64_t kv_row_begin = -1);

/// x [T, in/tp] · weight [out, in/tp]ᵀ, then g, then + bias [out] once → [T, out].
at::Tensor row_parallel_linear(const TensorGroup& group, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& bias);

/// Rows `index` [T] i64 in [0, V) of an embedding whose rows are cut, shard [V/tp, H] → [T, H].
at::Tensor vocabulary_parallel_rows(const TensorGroup& group, IndexRange rows,
                                    const at::Tensor& shard, const at::Tensor& index);

/// Two weights [D] that are whole, but whose users are cut by heads: the same values, and
/// gradients summed over the group.
struct WeightPair {
  at::Tensor first;
  at::Tensor second;
};
WeightPair shared_over_heads(const TensorGroup& group, const at::Tensor& first,
                             const at::Tensor& second);

}  // namespace troupe::actors

#pragma once

// Log-probs of given tokens under the distribution that sampling draws from: softmax(logits /
// temperature), cut by min-p, top-k and top-p as the rollout's sampler does, and renormalised.
//
// The kept set is that of this policy, with the given token put in; it is a constant of the
// gradient. **Threads:** pure but for the collectives of a cut head.
// **Cost:** as token_log_prob and besides it, plus a walk over each row; with a head that is cut
// over ranks all logits of a chunk are gathered, one collective for each chunk.

#include "actors/algorithm/processed_distribution.hpp"
#include "actors/model/tensor_parallel_ops.hpp"
#include "actors/model/token_log_prob.hpp"

namespace troupe::actors {

/// Where a head's rows lie that is cut over a tensor-parallel group.
struct CutHead {
  const TensorGroup* group = nullptr;  ///< null: the head is whole
  IndexRange rows = {};                ///< of the vocabulary that are here
};

/// hidden [T, H] f32, head [V, H] f32 (or its rows here), targets [T] i64 in [0, V) → [T] f32.
/// `transform`'s temperature must be that of `options`. Differentiable in hidden and head.
at::Tensor processed_log_prob(const at::Tensor& hidden, const at::Tensor& head,
                              const at::Tensor& targets, const TokenLogProbOptions& options,
                              const SamplingTransform& transform, const CutHead& where = {});

}  // namespace troupe::actors

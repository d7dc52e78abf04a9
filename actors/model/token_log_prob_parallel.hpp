#pragma once

// `token_log_prob` over a head whose vocabulary rows are cut over a tensor-parallel group.
//
// No rank ever holds the logits of another: forward exchanges four numbers per token and rank, in
// one all-gather whatever the number of chunks; backward sums dL/d hidden over the group, which is
// the f of the head. **Threads:** pure but for the collectives; see tensor_parallel_ops.hpp.
// **Cost:** chunk_tokens · V/tp floats of memory; two collectives.

#include "actors/model/tensor_parallel_ops.hpp"
#include "actors/model/token_log_prob.hpp"

namespace troupe::actors {

/// hidden [T, H] f32, the same on all ranks; head [V/tp, H], rows `rows` of the vocabulary; targets
/// [T] i64 in [0, V) → the results of token_log_prob, the same bits on all ranks.
TokenLogProb token_log_prob_parallel(const TensorGroup& group, IndexRange rows,
                                     const at::Tensor& hidden, const at::Tensor& head,
                                     const at::Tensor& targets, const TokenLogProbOptions& options);

}  // namespace troupe::actors

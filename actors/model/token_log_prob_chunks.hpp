#pragma once

// What token log-probs over a whole head and over a cut one share: the walk over chunks of logits,
// and the backward pass. Internal to token_log_prob.cpp and token_log_prob_parallel.cpp.
//
// **Threads:** pure functions.
// **Cost:** chunk_tokens · V floats of memory at a time (V/tp for a cut head).

#include "actors/model/token_log_prob.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace troupe::actors {

/// CHECKs shapes and options, naming both values.
void check_log_prob_input(const at::Tensor& hidden, const at::Tensor& head,
                          const at::Tensor& targets, const TokenLogProbOptions& options);

/// Calls `visit(begin, logits)` with the logits [rows, V] of tokens [begin, begin + rows), for
/// hidden [T, H] and head [V, H] f32. The memory is used again for the next chunk.
void for_each_logit_chunk(const at::Tensor& hidden, const at::Tensor& head,
                          std::int64_t chunk_tokens,
                          const std::function<void(std::int64_t, at::Tensor&)>& visit);

/// What forward keeps: hidden [T, H], head [V, H], targets [T] i64 (negative: none of this head's
/// rows), log_sum_exp and entropy [T] f32.
struct LogProbState {
  at::Tensor hidden;
  at::Tensor head;
  at::Tensor targets;
  at::Tensor log_sum_exp;
  at::Tensor entropy;
};

struct LogProbGradients {
  at::Tensor hidden;  ///< [T, H] f32; of a cut head this rank's part of the sum
  at::Tensor head;    ///< [V, H] f32
};

/// `log_prob` and `entropy` are d loss / d result, [T] f32; undefined means 0.
LogProbGradients log_prob_backward(const LogProbState& state, const TokenLogProbOptions& options,
                                   const at::Tensor& log_prob, const at::Tensor& entropy);

}  // namespace troupe::actors

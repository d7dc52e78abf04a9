#pragma once

// Log-probabilities of given tokens, and the entropy of their distributions, from hidden states.
//
// The logits of all T tokens never exist together: forward and backward go over chunks of
// `chunk_tokens` rows, and backward multiplies the chunk's logits again instead of keeping them
// (4,096 tokens × 151,936 f32 logits would be 2.5 GB).
// **Threads:** pure. **Cost:** chunk_tokens · V floats of memory; forward T·H·V multiply-adds,
// backward three times that.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::actors {

struct TokenLogProbOptions {
  double temperature = 1.0;  ///< > 0; logits are divided by it
  std::int64_t chunk_tokens = 1024;
};

struct TokenLogProb {
  at::Tensor log_prob;  ///< [T] f32, log softmax(logits / temperature) at the target
  at::Tensor entropy;   ///< [T] f32, H = log Σ e^z − Σ p·z over the whole vocabulary, exact
};

/// hidden [T, H] f32, head [V, H] f32, targets [T] i64 in [0, V). Differentiable in hidden and
/// head, through both results.
TokenLogProb token_log_prob(const at::Tensor& hidden, const at::Tensor& head,
                            const at::Tensor& targets, const TokenLogProbOptions& options);

}  // namespace troupe::actors

#pragma once

// Draws one token from one row of logits.
//
// The draw is the inverse of the cumulative distribution in token-id order at one uniform number,
// which depends on the sample's key alone; sums run in double in token-id order. So a token depends
// on (logits, options, earlier tokens, key) and on nothing else.
// **Ownership:** owns scratch rows; a sampler serves any number of sequences, one at a time.
// **Threads:** one thread.
// **Cost:** O(V); top-k adds a selection, top-p a sort of the tokens that can stay.

#include "actors/kernel/aligned_buffer.hpp"
#include "actors/kernel/kernel_table.hpp"
#include "actors/rollout/sampling_options.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/rng.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

struct SampledToken {
  std::int32_t token = 0;
  float log_prob = 0.0f;       ///< under the distribution drawn from; see GeneratedSequence
  float full_log_prob = 0.0f;  ///< of log-softmax(logits / temperature)
};

class Sampler {
 public:
  Sampler(std::int64_t vocab_size, const KernelTable& kernels);

  /// logits [V]; `tokens` are prompt and output so far, the first `prompt_tokens` the prompt.
  /// kInternal when a logit is not finite.
  result<SampledToken> sample(std::span<const float> logits, const SamplingOptions& options,
                              std::span<const std::int32_t> tokens, std::int64_t prompt_tokens,
                              const SampleKey& key);

  /// The distribution that `sample` draws from, [V] probabilities; for tests and analysis.
  result<std::vector<double>> distribution(std::span<const float> logits,
                                           const SamplingOptions& options,
                                           std::span<const std::int32_t> tokens,
                                           std::int64_t prompt_tokens);

 private:
  result<void> prepare(std::span<const float> logits, const SamplingOptions& options,
                       std::span<const std::int32_t> tokens, std::int64_t prompt_tokens);
  void penalise(const SamplingOptions& options, std::span<const std::int32_t> tokens,
                std::int64_t prompt_tokens);
  void keep_min_p(double min_p);
  void keep_top_k(std::int64_t k);
  void keep_top_p(double p);
  double total_weight() const;

  std::int64_t vocab_size_;
  const KernelTable* kernels_;
  AlignedBuffer penalised_;
  AlignedBuffer weights_;          // exp(score − max) of tokens still in, 0 of dropped ones
  const float* scores_ = nullptr;  // the logits, or their penalised copy
  float score_max_ = 0.0f;
  float logit_max_ = 0.0f;
  double full_total_ = 0.0;           // Σ exp((logit − max) / T)
  double total_ = 0.0;                // Σ weights_
  std::vector<std::int32_t> counts_;  // per token: occurrences, zero between calls
  std::vector<std::int32_t> candidates_;
  std::vector<float> selection_;
};

}  // namespace troupe::actors

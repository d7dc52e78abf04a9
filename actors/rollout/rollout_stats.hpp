#pragma once

// Counters of a rollout engine since its start or since `RolloutEngine::reset_stats`.
//
// **Threads:** a value type.

#include <array>
#include <cstdint>

namespace troupe::actors {

struct RolloutStats {
  std::int64_t steps = 0;
  std::int64_t tokens_generated = 0;
  std::int64_t prefill_tokens = 0;        ///< prompt and recomputed tokens run through the model
  std::int64_t decode_tokens = 0;         ///< tokens run through the model one at a time
  std::int64_t prefix_tokens_shared = 0;  ///< prompt tokens that forks did not have to prefill
  std::int64_t forks = 0;
  std::int64_t preemptions = 0;
  std::int64_t finished = 0;
  std::int64_t failed = 0;
  std::int64_t aborted = 0;
  /// Steps by rows run: bucket i counts 2^i ≤ rows < 2^(i+1); the last also all larger.
  std::array<std::int64_t, 16> rows_histogram{};
  double gemm_s = 0;        ///< seconds in packed GEMMs
  double attention_s = 0;   ///< seconds in paged attention
  double collective_s = 0;  ///< seconds in collectives of a step, waiting for slower ranks included
  double sample_s = 0;      ///< seconds in the sampler
  double step_s = 0;        ///< seconds in `step` altogether
};

}  // namespace troupe::actors

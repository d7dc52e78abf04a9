#pragma once

// What the rollout engine is asked, and what it answers.
//
// **Threads:** value types.
// **Invariants:** in a `GeneratedSequence`, `tokens`, `log_probs`, `full_log_probs` and `versions`
// have one entry per generated token, a resumed prefix included.

#include "actors/rollout/sampling_options.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// Output that a sample already has, so that it goes on where it was interrupted.
struct SamplePrefix {
  std::vector<std::int32_t> tokens = {};
  std::vector<float> log_probs = {};
  std::vector<float> full_log_probs = {};
  std::vector<WeightVersion> versions = {};
};

/// One prompt and the samples wanted of it. The samples share one prefill of the prompt.
struct GenerateRequest {
  std::uint64_t prompt_id = 0;                      ///< row in the data set; keys the draws
  std::vector<std::uint32_t> sample_indices = {0};  ///< index of each sample in its group of G
  std::vector<std::int32_t> prompt = {};            ///< token ids, at least one
  SamplingOptions sampling = {};
  std::vector<SamplePrefix> prefixes = {};  ///< empty, or one per sample
};

enum class StopReason {
  kLength,      ///< max_new_tokens reached
  kStopId,      ///< a stop id was generated; it is the last token
  kStopString,  ///< a stop string appeared; `text` ends before it, `tokens` keep it
  kAborted,     ///< `abort` was called
  kFailed,      ///< see `error`; the tokens before the failure are valid
};

/// `length`, `stop_id`, `stop_string`, `aborted`, `failed`.
std::string_view stop_reason_name(StopReason reason);

struct GeneratedSequence {
  SequenceId id;
  std::uint64_t prompt_id = 0;
  std::uint32_t sample_index = 0;
  std::vector<std::int32_t> tokens;  ///< generated tokens only, without the prompt
  /// Natural logs under the distribution that was drawn from (after penalties and truncation);
  /// greedy: of softmax(penalised logits).
  std::vector<float> log_probs = {};
  /// log-softmax(logits / temperature) without penalties and truncation: what a trainer
  /// recomputes. Greedy: temperature 1. Importance ratios under truncation need `log_probs`.
  std::vector<float> full_log_probs = {};
  std::vector<WeightVersion> versions;  ///< of the weights that produced each token
  StopReason reason = StopReason::kLength;
  std::string text;  ///< decoded bytes, only when stop strings are set
  std::optional<Error> error;
};

}  // namespace troupe::actors

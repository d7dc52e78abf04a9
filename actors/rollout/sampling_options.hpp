#pragma once

// How the next token of a sequence is chosen, and when the sequence ends.
//
// The distribution is processed in this order (vLLM's): repetition, frequency and presence
// penalty → [greedy when temperature < 1e-5] → temperature → min-p → top-k → top-p → one draw.
// Defaults change nothing: plain sampling from softmax(logits).
// **Threads:** a value type.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::actors {

struct SamplingOptions {
  double temperature = 1.0;  ///< divides the logits; below 1e-5 means greedy (lowest id on ties)
  double top_p = 1.0;        ///< keep the best tokens until their sum reaches this; (0, 1]
  std::int32_t top_k = 0;    ///< keep logits ≥ the k-th largest, ties stay; ≤ 0 keeps all
  double min_p = 0.0;        ///< keep p ≥ min_p · p_max; [0, 1]
  double repetition_penalty = 1.0;  ///< > 0; once per distinct token of prompt and output
  double frequency_penalty = 0.0;   ///< per occurrence in the output; [-2, 2]
  double presence_penalty = 0.0;    ///< once per distinct token of the output; [-2, 2]

  std::int32_t max_new_tokens = 16;            ///< ≥ 1
  std::vector<std::int32_t> stop_ids = {};     ///< end of sequence; the id stays in the output
  std::vector<std::string> stop_strings = {};  ///< matched on bytes across token borders
  bool ignore_eos = false;                     ///< do not stop at `stop_ids`
  std::uint64_t seed = 0;                      ///< run seed of the counter-based draw

  bool operator==(const SamplingOptions&) const = default;

  bool is_greedy() const { return temperature < 1e-5; }
  bool has_penalties() const {
    return repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0;
  }
  bool has_truncation() const { return top_p < 1.0 || top_k > 0 || min_p > 0.0; }
  /// kInvalidArgument naming the first field out of its range, with the value found.
  result<void> check() const;
};

}  // namespace troupe::actors

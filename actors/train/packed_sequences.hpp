#pragma once

// Token sequences laid end to end, as the train engine takes them: no padding anywhere.
//
// A sequence is prompt then response. Per-token quantities of the engine (log-probs, entropy,
// values, advantages, masks) are *response-packed*: one number per response token, sequence
// after sequence, `response_tokens()` in all. The number of response token t belongs to the
// prediction of t, so it is read at the position before t: the prompt's last token gives the
// first one. **Ownership:** `PackedSequences` borrows; `SequencePack` owns.
// **Threads:** value types.
// **Invariants** (see `check_sequences`): offsets start at 0, never fall, end at tokens.size();
// 1 ≤ prompt_lengths[s] ≤ length of s. A sequence without a response is legal, and so is S = 0.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// tokens [T], offsets [S+1], prompt_lengths [S]; positions restart at 0 in each sequence.
struct PackedSequences {
  std::span<const std::int32_t> tokens;
  std::span<const std::int64_t> offsets;
  std::span<const std::int64_t> prompt_lengths;

  std::int64_t count() const { return static_cast<std::int64_t>(prompt_lengths.size()); }
  std::int64_t length(std::int64_t s) const {
    const auto i = static_cast<std::size_t>(s);
    return offsets[i + 1] - offsets[i];
  }
  std::int64_t response_length(std::int64_t s) const {
    return length(s) - prompt_lengths[static_cast<std::size_t>(s)];
  }
  /// Σ response_length: the size of every response-packed array.
  std::int64_t response_tokens() const;
  /// [S+1], where each sequence begins in a response-packed array.
  std::vector<std::int64_t> response_offsets() const;
};

/// Errors (kInvalidArgument) name the sequence: broken offsets, empty prompt, a token outside
/// [0, vocabulary), a sequence longer than `tokens_max` (≤ 0: no limit).
result<void> check_sequences(const PackedSequences& sequences, std::int64_t vocabulary,
                             std::int64_t tokens_max = 0);

/// Builds packed sequences row by row.
class SequencePack {
 public:
  void add(std::span<const std::int32_t> prompt, std::span<const std::int32_t> response);
  /// Borrows from this object; invalid after the next `add`.
  PackedSequences view() const;
  std::int64_t count() const { return static_cast<std::int64_t>(prompt_lengths_.size()); }

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> offsets_ = {0};
  std::vector<std::int64_t> prompt_lengths_;
};

}  // namespace troupe::actors

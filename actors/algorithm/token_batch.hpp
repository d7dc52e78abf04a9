#pragma once

// The packed layout that every algorithm here reads: S sequences laid end to end in flat arrays of
// T response tokens, without padding, and a mask of the tokens that the policy itself produced.
//
// A view owns nothing: the caller keeps the arrays alive for the length of the call.
// **Threads:** a value type over constant data; functions are pure.
// **Invariants:** after `check`: offsets start at 0, never fall and end at T; mask has T entries.
// A slot whose mask is 0 (tool or observation token, padding, rejected row) is never read, so what
// it holds, NaN included, cannot reach a result. A sequence without an unmasked token is *empty*:
// it counts in no denominator and in no group.
// **Cost:** O(S + T), no allocation.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// S sequences over T packed response tokens.
struct TokenBatchView {
  std::span<const std::int64_t> offsets;  ///< [S+1]; sequence i: tokens offsets[i] to offsets[i+1]
  std::span<const std::uint8_t> mask;     ///< [T]; 1 where the policy produced the token
  /// [S] group of each sequence (samples of one prompt), compared exactly; empty where no group
  /// statistic is asked for. Textual ids go through `number_groups` first.
  std::span<const std::int64_t> groups = {};
  /// [S] identity of each sequence in the whole mini-batch, equal on every split of it; only
  /// losses that choose tokens across the mini-batch (clip_cov, kl_cov) read it.
  std::span<const std::int64_t> sequence_ids = {};

  std::size_t sequences() const { return offsets.empty() ? 0 : offsets.size() - 1; }
  std::size_t tokens() const { return mask.size(); }
  std::size_t begin(std::size_t sequence) const {
    return static_cast<std::size_t>(offsets[sequence]);
  }
  std::size_t end(std::size_t sequence) const {
    return static_cast<std::size_t>(offsets[sequence + 1]);
  }

  /// Shape errors (kInvalidArgument) naming the array and both sizes.
  result<void> check() const;
};

/// Numbers of unmasked tokens and of non-empty sequences; adds up over splits and ranks.
struct TokenCounts {
  std::int64_t tokens = 0;     ///< unmasked tokens
  std::int64_t sequences = 0;  ///< sequences with at least one of them
  bool operator==(const TokenCounts&) const = default;
  TokenCounts& operator+=(const TokenCounts& other);
};

TokenCounts count_tokens(const TokenBatchView& batch);

/// Unmasked tokens of one sequence.
std::int64_t valid_length(const TokenBatchView& batch, std::size_t sequence);

/// Dense numbers for textual group ids, by first appearance: "7" and "007" are two groups.
std::vector<std::int64_t> number_groups(std::span<const std::string> ids);

/// kInvalidArgument unless `values` has one entry per token (T) and every unmasked one is finite.
/// The message names `name`, the sequence and the position.
result<void> check_tokens(const TokenBatchView& batch, std::span<const float> values,
                          std::string_view name);

/// The same for log-probs, where -inf is legal too.
result<void> check_log_probs(const TokenBatchView& batch, std::span<const float> values,
                             std::string_view name);

}  // namespace troupe::actors

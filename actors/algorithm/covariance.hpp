#pragma once

// Choosing tokens across a whole mini-batch by the covariance of advantage and log-prob: what
// clip_cov and kl_cov need (Cui et al. 2025, "The entropy mechanism of reinforcement learning").
//
// Three stages, so that the choice does not depend on how the mini-batch is split:
//   1. every micro-batch on every rank `collect`s its tokens; parts are `merge`d in any order,
//      between ranks as `to_words` / `from_words` (3 words of 8 bytes a token);
//   2. each rank computes the same TokenSelection from the same merged statistics;
//   3. the loss reads the selection.
// Stage 1 wants log-probs under the weights of the update: one more forward pass, or, in the first
// update after a recompute, the old log-probs, which are then equal.
// **Threads:** value types, pure functions.
// **Invariants:** ties and random picks depend only on (seed, sequence id, position). Tokens whose
// log-prob is not finite take no part. **Cost:** 24 bytes a token; selection O(N log N).

#include "actors/algorithm/token_batch.hpp"
#include "runtime/base/result.hpp"

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// Identity of a token in the mini-batch.
struct TokenKey {
  std::int64_t sequence = 0;  ///< TokenBatchView::sequence_ids
  std::int64_t position = 0;  ///< from the first response token of the sequence
  auto operator<=>(const TokenKey&) const = default;
};

struct CovarianceToken {
  TokenKey key;
  float advantage = 0;
  float log_prob = 0;
  bool clipped = false;  ///< the PPO clip holds it already
};

/// Chosen tokens of the whole mini-batch, sorted.
struct TokenSelection {
  std::vector<TokenKey> keys;
  bool contains(const TokenKey& key) const;
};

class CovarianceStatistics {
 public:
  void add(const CovarianceToken& token);
  void merge(const CovarianceStatistics& other);
  std::size_t size() const { return tokens_.size(); }

  /// For an all-gather of int64; concatenated words of several ranks decode as their merge.
  std::vector<std::int64_t> to_words() const;
  /// kCorrupt unless a multiple of three words with sensible positions.
  static result<CovarianceStatistics> from_words(std::span<const std::int64_t> words);

  /// max(1, ⌊ratio·N⌋) tokens of largest covariance. kInvalidArgument when a token occurs twice.
  result<TokenSelection> select_largest(double ratio) const;
  /// At most max(1, ⌊ratio·N⌋) random ones of the unclipped tokens with covariance in (low, high).
  struct Range {
    double low = 1;
    double high = 5;
  };
  result<TokenSelection> select_random(double ratio, Range range, std::uint64_t seed) const;

 private:
  struct Scored {
    CovarianceToken token;
    double covariance = 0;
  };
  /// Sorted by key, with (A - mean A)(logp - mean logp).
  result<std::vector<Scored>> score() const;

  std::vector<CovarianceToken> tokens_;
};

}  // namespace troupe::actors

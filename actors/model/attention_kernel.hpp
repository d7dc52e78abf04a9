#pragma once

// Block-diagonal causal attention over packed sequences, forward and backward, on the CPU.
//
// Rotary embedding happens inside, while a head is gathered into cache, so no rotated copy of q
// or k exists in memory. kv heads are never expanded: the query heads of a group share one
// gathered copy. Scores live in blocks of a few query rows; backward computes them again from the
// saved log-sum-exp (Dao et al., "FlashAttention", NeurIPS'22, algorithm 4, without tiling keys).
// A sequence may go on from an earlier one, its prefix: then the prefix's keys and values come
// before its own, and the samples of a group hold their prompt once.
// Torch-free. **Threads:** pure functions; scratch is a parameter.
// **Invariants:** the sums of a token run over its prefix and its own sequence in key order, so a
// token's result has the same bits wherever and beside whatever its sequence is packed, and
// whether the prefix is shared or its own.
// **Cost:** 2·T²·N·D multiply-adds per sequence of T tokens forward (with a prefix of P: T² + 2·P·T
// in place of T²), 2.5 times that backward; scratch O((P + T + 16)·D + 16·(P + T)) floats for the
// longest sequence.

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

struct AttentionShape {
  std::int64_t heads = 0;     ///< N
  std::int64_t kv_heads = 0;  ///< K
  std::int64_t head_dim = 0;  ///< D, even
  bool operator==(const AttentionShape&) const = default;
};

/// Cosine and sine of position · frequency, each [positions, D/2].
struct RotaryTable {
  std::int64_t positions = 0;
  std::vector<float> cosine;
  std::vector<float> sine;
};

/// Rows of N·D (q, out) or K·D (k, v) floats; `*_row` is the distance between tokens in floats.
struct AttentionInputs {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t row = 0;                   ///< of q, k and v alike: they are parts of one [T, row]
  std::span<const std::int64_t> offsets;  ///< [S+1]
  /// [S], or empty: nobody has one. The sequence that this one goes on from, or -1; it comes before
  /// this one and has no prefix itself.
  std::span<const std::int64_t> prefixes = {};
};

/// Tokens of the longest sequence, its prefix included; 0 for none.
std::int64_t longest_sequence(std::span<const std::int64_t> offsets,
                              std::span<const std::int64_t> prefixes);

using AttentionScratch = std::vector<float>;

/// out [T, N·D] and log_sum_exp [N, T] (of scaled scores), both dense. The table must cover the
/// longest sequence with its prefix.
void attention_forward(const AttentionShape& shape, const RotaryTable& table,
                       const AttentionInputs& in, float* out, float* log_sum_exp,
                       AttentionScratch& scratch);

struct AttentionGradients {
  const float* out = nullptr;           ///< [T, N·D], of forward
  const float* log_sum_exp = nullptr;   ///< [N, T], of forward
  const float* out_gradient = nullptr;  ///< [T, N·D] dense
  float* q = nullptr;                   ///< gradients, written whole; same row distance as inputs
  float* k = nullptr;
  float* v = nullptr;
};

void attention_backward(const AttentionShape& shape, const RotaryTable& table,
                        const AttentionInputs& in, const AttentionGradients& gradients,
                        AttentionScratch& scratch);

}  // namespace troupe::actors

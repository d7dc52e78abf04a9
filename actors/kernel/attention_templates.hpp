#pragma once

// Paged attention over a type `L` of 16 float lanes: reads the block table directly, never expands
// kv heads.
//
// For each (query, head): scores over keys in ascending order, one fma chain over D each; maximum;
// exp; sum in 16 fixed lanes; then the values weighted in ascending key order, one chain per output
// element (two or four fixed ones for short heads). Nothing depends on which other queries run in
// the call.
// **Threads:** pure; scratch belongs to the caller.

#include "actors/kernel/row_templates.hpp"
#include "actors/kernel/tile_templates.hpp"

#include <limits>

namespace troupe::actors {

/// Scores of R rows against `count` blocks: score[r][16 b + lane].
template <class L, int R, int P>
void score_blocks(const AttentionCall& call, const float* rows, std::ptrdiff_t row_stride,
                  std::int64_t first_block, float* scores, std::ptrdiff_t score_stride) {
  const float* panels[P];
  unroll<P>([&](auto p) __attribute__((always_inline)) {
    panels[p] = call.cache + call.blocks[first_block + p] * call.block_stride;
  });
  L acc[R][P];
  unroll<R>([&](auto r) __attribute__((always_inline)) {
    unroll<P>([&](auto p) __attribute__((always_inline)) { acc[r][p] = L::zero(); });
  });
  run_chains<L, R, P>(rows, row_stride, panels, call.head_dim, acc);
  unroll<R>([&](auto r) __attribute__((always_inline)) {
    unroll<P>([&](auto p) __attribute__((always_inline)) {
      L::store(scores + r * score_stride + (first_block + p) * kLanes, acc[r][p]);
    });
  });
}

template <class L, int R = L::kTileRows>
void score_rows(const AttentionCall& call, std::int64_t row_count, const float* rows,
                std::ptrdiff_t row_stride, std::int64_t block_count, float* scores,
                std::ptrdiff_t score_stride) {
  if constexpr (R > 0) {
    if (row_count != R)
      return score_rows<L, R - 1>(call, row_count, rows, row_stride, block_count, scores,
                                  score_stride);
    constexpr int kGroup = panels_for_rows<L, R>() < 4 ? panels_for_rows<L, R>() : 4;
    std::int64_t block = 0;
    for (; block + kGroup <= block_count; block += kGroup)
      score_blocks<L, R, kGroup>(call, rows, row_stride, block, scores, score_stride);
    for (; block < block_count; ++block)
      score_blocks<L, R, 1>(call, rows, row_stride, block, scores, score_stride);
  }
}

/// Chains per output element: short heads have too few elements to hide the latency of one chain,
/// so key j goes to chain j mod C, and the chains are folded at the end. Depends on D alone.
constexpr std::int64_t chains_for_width(std::int64_t width) {
  return width == kLanes ? 4 : width == 2 * kLanes ? 2 : 1;
}

/// sums[r][chain][16 P dims] over keys [0, end), end a multiple of C; weights at w + r·w_stride.
template <class L, int C, int R, int P>
void weigh_values(const AttentionCall& call, const float* w, std::ptrdiff_t w_stride,
                  std::int64_t end, std::int64_t first_dim, float* sums) {
  const std::int64_t width = padded(call.head_dim);
  L acc[R][C * P];
  unroll<R>([&](auto r) __attribute__((always_inline)) {
    unroll<C * P>([&](auto i) __attribute__((always_inline)) { acc[r][i] = L::zero(); });
  });
  for (std::int64_t key = 0; key < end;) {
    const std::int64_t block_end = std::min(key + kLanes, end);
    const float* values =
        call.cache + call.blocks[key / kLanes] * call.block_stride + call.values_offset + first_dim;
    for (; key < block_end; key += C, values += C * width) {
      unroll<C>([&](auto c) __attribute__((always_inline)) {
        L v[P];
        unroll<P>([&](auto p) __attribute__((always_inline)) {
          v[p] = L::load(values + c * width + p * kLanes);
        });
        unroll<R>([&](auto r) __attribute__((always_inline)) {
          const L weight = L::broadcast(w[r * w_stride + key + c]);
          unroll<P>([&](auto p) __attribute__((always_inline)) {
            acc[r][c * P + p] = L::fma(weight, v[p], acc[r][c * P + p]);
          });
        });
      });
    }
  }
  unroll<R>([&](auto r) __attribute__((always_inline)) {
    unroll<C>([&](auto c) __attribute__((always_inline)) {
      unroll<P>([&](auto p) __attribute__((always_inline)) {
        L::store(sums + (r * C + c) * width + first_dim + p * kLanes, acc[r][c * P + p]);
      });
    });
  });
}

template <class L, int C, int R = 4>
void weigh_rows(const AttentionCall& call, std::int64_t row_count, const float* w,
                std::ptrdiff_t w_stride, std::int64_t end, float* sums) {
  if constexpr (R > 0) {
    const std::int64_t width = padded(call.head_dim);
    for (; row_count >= R; row_count -= R, w += R * w_stride, sums += R * C * width) {
      constexpr int kFit = panels_for_rows<L, R * C>();
      constexpr int kGroup = kFit < 4 ? kFit : 4;
      std::int64_t dim = 0;
      for (; dim + kGroup * kLanes <= width; dim += kGroup * kLanes)
        weigh_values<L, C, R, kGroup>(call, w, w_stride, end, dim, sums);
      for (; dim < width; dim += kLanes)
        weigh_values<L, C, R, 1>(call, w, w_stride, end, dim, sums);
    }
    weigh_rows<L, C, R - 1>(call, row_count, w, w_stride, end, sums);
  }
}

/// One row goes on over keys [begin, end): the few that its tile does not share.
template <class L>
void weigh_rest(const AttentionCall& call, const float* w, std::int64_t begin, std::int64_t end,
                std::int64_t chains, float* sums) {
  const std::int64_t width = padded(call.head_dim);
  for (std::int64_t key = begin; key < end; ++key) {
    const float* values = call.cache + call.blocks[key / kLanes] * call.block_stride +
                          call.values_offset + key % kLanes * width;
    float* sum = sums + key % chains * width;
    const L weight = L::broadcast(w[key]);
    for (std::int64_t dim = 0; dim < width; dim += kLanes)
      L::store(sum + dim, L::fma(weight, L::load(values + dim), L::load(sum + dim)));
  }
}

/// Folds the chains of one row as (0 + 2) + (1 + 3) or 0 + 1, divides, and writes D floats.
template <class L>
void finish_row(const AttentionCall& call, float* sums, std::int64_t chains, float total,
                float* target) {
  const std::int64_t width = padded(call.head_dim);
  const L divisor = L::broadcast(total);
  for (std::int64_t dim = 0; dim < width; dim += kLanes) {
    L sum = L::load(sums + dim);
    if (chains == 2) sum = L::add(sum, L::load(sums + width + dim));
    if (chains == 4)
      sum = L::add(L::add(sum, L::load(sums + 2 * width + dim)),
                   L::add(L::load(sums + width + dim), L::load(sums + 3 * width + dim)));
    L::store(sums + dim, L::div(sum, divisor));
  }
  std::copy_n(sums, call.head_dim, target);
}

/// scores[0, keys) → exp(score − max), in place; returns their sum.
template <class L>
float softmax_weights(float* scores, std::int64_t keys) {
  // Lanes past the last key hold what other tokens of the block left there: −inf hides them.
  for (std::int64_t i = keys; i < padded(keys); ++i)
    scores[i] = -std::numeric_limits<float>::infinity();
  L top = L::load(scores);
  for (std::int64_t i = kLanes; i < padded(keys); i += kLanes)
    top = L::max(top, L::load(scores + i));
  const L shift = L::broadcast(L::fold_max(top));
  L sum = L::zero();
  for (std::int64_t i = 0; i < padded(keys); i += kLanes) {
    const L weight = exp_lanes<L>(L::sub(L::load(scores + i), shift));
    L::store(scores + i, weight);
    sum = L::add(sum, weight);
  }
  return L::fold_sum(sum);
}

/// One tile: up to kAttentionQueries queries × heads.
template <class L>
void attention_tile(const AttentionCall& call, std::int64_t first, std::int64_t queries) {
  const std::int64_t rows = queries * call.heads;
  const std::int64_t width = padded(call.head_dim);
  const std::int64_t shortest = call.first_keys + first;
  const std::int64_t longest = shortest + queries - 1;
  const std::int64_t score_stride = padded(longest);
  float* scores = call.scratch;
  float* sums = scores + rows * score_stride;
  float* out = sums + padded(rows);
  const std::int64_t chains = chains_for_width(width);

  for (std::int64_t i = 0; i < queries; ++i) {
    // Heads of one query are contiguous; queries are query_stride apart.
    const float* query = call.query + (first + i) * call.query_stride;
    const std::int64_t blocks = (shortest + i + kLanes - 1) / kLanes;
    for (std::int64_t head = 0; head < call.heads; head += L::kTileRows) {
      const std::int64_t count = std::min<std::int64_t>(L::kTileRows, call.heads - head);
      score_rows<L>(call, count, query + head * call.head_dim, call.head_dim, blocks,
                    scores + (i * call.heads + head) * score_stride, score_stride);
    }
  }
  for (std::int64_t row = 0; row < rows; ++row)
    sums[row] = softmax_weights<L>(scores + row * score_stride, shortest + row / call.heads);

  const std::int64_t common = shortest / chains * chains;
  if (chains == 4)
    weigh_rows<L, 4>(call, rows, scores, score_stride, common, out);
  else if (chains == 2)
    weigh_rows<L, 2>(call, rows, scores, score_stride, common, out);
  else
    weigh_rows<L, 1>(call, rows, scores, score_stride, common, out);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t query = row / call.heads;
    float* row_sums = out + row * chains * width;
    weigh_rest<L>(call, scores + row * score_stride, common, shortest + query, chains, row_sums);
    finish_row<L>(
        call, row_sums, chains, sums[row],
        call.output + (first + query) * call.output_stride + row % call.heads * call.head_dim);
  }
}

template <class L>
void attention(const AttentionCall& call) {
  for (std::int64_t first = 0; first < call.queries; first += kAttentionQueries)
    attention_tile<L>(call, first, std::min(kAttentionQueries, call.queries - first));
}

}  // namespace troupe::actors

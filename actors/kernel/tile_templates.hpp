#pragma once

// The matrix kernels, written once over a type `L` of 16 float lanes (see kernels_portable.cpp for
// the operations it must have). Each kernels_*.cpp instantiates them with its own L, which lives in
// an unnamed namespace, so that no code of one instruction set can be linked into another.
//
// **Threads:** pure.
// **Invariants:** tile shapes (R rows × P panels) decide speed only; each output element is the
// same chain of fused multiply-adds in ascending k.

#include "actors/kernel/kernel_table.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

/// Calls f(0), …, f(N − 1) with compile-time indices, fully unrolled.
template <int N, class F>
[[gnu::always_inline]] inline void unroll(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

/// acc[r][p] ← fma chain over k < depth of row r (at a + r·stride) with panel p.
template <class L, int R, int P>
[[gnu::always_inline]] inline void run_chains(const float* a, std::ptrdiff_t stride,
                                              const float* const (&panels)[P], std::int64_t depth,
                                              L (&acc)[R][P]) {
  const float* rows[R];
  unroll<R>([&](auto r) __attribute__((always_inline)) { rows[r] = a + r * stride; });
  for (std::int64_t k = 0; k < depth; ++k) {
    L b[P];
    unroll<P>([&](auto p)
                  __attribute__((always_inline)) { b[p] = L::load(panels[p] + k * kLanes); });
    unroll<R>([&](auto r) __attribute__((always_inline)) {
      const L x = L::broadcast(rows[r][k]);
      unroll<P>([&](auto p)
                    __attribute__((always_inline)) { acc[r][p] = L::fma(x, b[p], acc[r][p]); });
    });
  }
}

template <class L, int R, int P>
void gemm_tile(const GemmCall& call, std::int64_t first_row, std::int64_t first_panel) {
  const float* panels[P];
  unroll<P>([&](auto p) __attribute__((always_inline)) {
    panels[p] = call.panels + (first_panel + p) * call.depth * kLanes;
  });
  L acc[R][P];
  unroll<R>([&](auto r) __attribute__((always_inline)) {
    unroll<P>([&](auto p) __attribute__((always_inline)) { acc[r][p] = L::zero(); });
  });
  run_chains<L, R, P>(call.input + first_row * call.input_stride, call.input_stride, panels,
                      call.depth, acc);
  unroll<R>([&](auto r) __attribute__((always_inline)) {
    float* out = call.output + (first_row + r) * call.output_stride + first_panel * kLanes;
    unroll<P>([&](auto p) __attribute__((always_inline)) {
      L value = acc[r][p];
      if (call.bias != nullptr)
        value = L::add(value, L::load(call.bias + (first_panel + p) * kLanes));
      if (call.accumulate) value = L::add(value, L::load(out + p * kLanes));
      L::store(out + p * kLanes, value);
    });
  });
}

/// The panels of `rows` < R + 1 rows, P panels at a time, then singly.
template <class L, int R, int P>
void gemm_rows(const GemmCall& call, std::int64_t first_row, std::int64_t begin, std::int64_t end) {
  std::int64_t panel = begin;
  for (; panel + P <= end; panel += P) gemm_tile<L, R, P>(call, first_row, panel);
  for (; panel < end; ++panel) gemm_tile<L, R, 1>(call, first_row, panel);
}

/// Panels side by side for R rows: enough chains to hide latency, few enough for the registers.
template <class L, int R>
constexpr int panels_for_rows() {
  constexpr int kFit = L::kTileRegisters / R;
  return kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
}

template <class L, int R = L::kTileRows>
void gemm_row_rest(const GemmCall& call, std::int64_t rows, std::int64_t first_row,
                   std::int64_t begin, std::int64_t end) {
  if constexpr (R > 0) {
    if (rows == R) return gemm_rows<L, R, panels_for_rows<L, R>()>(call, first_row, begin, end);
    gemm_row_rest<L, R - 1>(call, rows, first_row, begin, end);
  }
}

/// Row blocks (kept in the second-level cache) × panel groups × row tiles.
template <class L>
void gemm(const GemmCall& call) {
  constexpr std::int64_t kRowBlock = 192;
  constexpr std::int64_t kTile = L::kTileRows;
  for (std::int64_t block = 0; block < call.rows; block += kRowBlock) {
    const std::int64_t block_end = std::min(block + kRowBlock, call.rows);
    if (block_end - block <= kTile) {
      gemm_row_rest<L>(call, block_end - block, block, 0, call.panel_count);
      continue;
    }
    constexpr std::int64_t kGroup = panels_for_rows<L, L::kTileRows>();
    for (std::int64_t panel = 0; panel < call.panel_count; panel += kGroup) {
      const std::int64_t panel_end = std::min(panel + kGroup, call.panel_count);
      std::int64_t row = block;
      for (; row + kTile <= block_end; row += kTile)
        gemm_rows<L, L::kTileRows, kGroup>(call, row, panel, panel_end);
      gemm_row_rest<L>(call, block_end - row, row, panel, panel_end);
    }
  }
}

}  // namespace troupe::actors

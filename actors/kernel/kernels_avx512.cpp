// AVX-512 lanes: one register of 16 floats. Everything below the pragma is compiled for AVX-512,
// and nothing else is: standard headers come before it.

#include "actors/kernel/kernel_sets.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx2,fma")
// g++ 12 calls the undefined operands of its own intrinsics uninitialised.
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "actors/kernel/attention_templates.hpp"
#include "actors/kernel/row_templates.hpp"
#include "actors/kernel/tile_templates.hpp"

#define TROUPE_LANE_OP [[gnu::always_inline]] static inline

namespace troupe::actors {
namespace {

struct Lanes {
  static constexpr int kTileRows = 8;
  static constexpr int kTileRegisters = 16;
  __m512 v;

  TROUPE_LANE_OP Lanes zero() { return {_mm512_setzero_ps()}; }
  TROUPE_LANE_OP Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
  TROUPE_LANE_OP Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  TROUPE_LANE_OP void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
  TROUPE_LANE_OP Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  TROUPE_LANE_OP Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
  TROUPE_LANE_OP Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
  TROUPE_LANE_OP Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
  TROUPE_LANE_OP Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
  TROUPE_LANE_OP Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
  TROUPE_LANE_OP Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
  TROUPE_LANE_OP Lanes round(Lanes a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  TROUPE_LANE_OP Lanes power_of_two(Lanes n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvttps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
  }
  TROUPE_LANE_OP Lanes keep_where_at_least(Lanes x, Lanes bound, Lanes value) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, bound.v, _CMP_GE_OQ), value.v)};
  }
  TROUPE_LANE_OP float fold_sum(Lanes a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  TROUPE_LANE_OP float fold_max(Lanes a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace

const KernelTable& avx512_kernels() {
  static constexpr KernelTable kTable{KernelPath::kAvx512, &gemm<Lanes>,        &attention<Lanes>,
                                      &rms_norm<Lanes>,    &head_norm<Lanes>,   &rope<Lanes>,
                                      &silu_mul<Lanes>,    &exp_weights<Lanes>, &exp_row<Lanes>};
  return kTable;
}

}  // namespace troupe::actors

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

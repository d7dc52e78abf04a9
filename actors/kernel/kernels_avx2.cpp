// AVX2 + FMA lanes: two registers of 8 floats. Everything below the pragma is compiled for AVX2,
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
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#include "actors/kernel/attention_templates.hpp"
#include "actors/kernel/row_templates.hpp"
#include "actors/kernel/tile_templates.hpp"

#define TROUPE_LANE_OP [[gnu::always_inline]] static inline

namespace troupe::actors {
namespace {

struct Lanes {
  static constexpr int kTileRows = 6;
  static constexpr int kTileRegisters = 6;
  __m256 lo;
  __m256 hi;

  TROUPE_LANE_OP Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  TROUPE_LANE_OP Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  TROUPE_LANE_OP Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  TROUPE_LANE_OP void store(float* p, Lanes a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  TROUPE_LANE_OP Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  TROUPE_LANE_OP Lanes add(Lanes a, Lanes b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  TROUPE_LANE_OP Lanes sub(Lanes a, Lanes b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  TROUPE_LANE_OP Lanes mul(Lanes a, Lanes b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  TROUPE_LANE_OP Lanes div(Lanes a, Lanes b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  TROUPE_LANE_OP Lanes max(Lanes a, Lanes b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  TROUPE_LANE_OP Lanes min(Lanes a, Lanes b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  TROUPE_LANE_OP __m256 round_half(__m256 a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  TROUPE_LANE_OP Lanes round(Lanes a) { return {round_half(a.lo), round_half(a.hi)}; }
  TROUPE_LANE_OP __m256 power_half(__m256 n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  TROUPE_LANE_OP Lanes power_of_two(Lanes n) { return {power_half(n.lo), power_half(n.hi)}; }
  TROUPE_LANE_OP __m256 keep_half(__m256 x, __m256 bound, __m256 value) {
    return _mm256_and_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ), value);
  }
  TROUPE_LANE_OP Lanes keep_where_at_least(Lanes x, Lanes bound, Lanes value) {
    return {keep_half(x.lo, bound.lo, value.lo), keep_half(x.hi, bound.hi, value.hi)};
  }
  TROUPE_LANE_OP float fold_sum(Lanes a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  TROUPE_LANE_OP float fold_max(Lanes a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
};

}  // namespace

const KernelTable& avx2_kernels() {
  static constexpr KernelTable kTable{KernelPath::kAvx2, &gemm<Lanes>,        &attention<Lanes>,
                                      &rms_norm<Lanes>,  &head_norm<Lanes>,   &rope<Lanes>,
                                      &silu_mul<Lanes>,  &exp_weights<Lanes>, &exp_row<Lanes>};
  return kTable;
}

}  // namespace troupe::actors

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

#pragma once

// What the training kernels share: function versions per instruction set, an exponential that
// vectorises, and a small matrix product that stays in cache.
//
// Only for the kernel sources of this folder, which are compiled with -O3 and fused
// multiply-add allowed. **Threads:** pure functions.
// **Invariants:** one fixed order of summation, so equal inputs give equal bits on one machine.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// One version for AVX2 + FMA beside the portable one, chosen when the program starts. Sanitizers
// do not survive the indirect-function resolver, so they get the portable version only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TROUPE_SIMD_VERSIONS __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TROUPE_SIMD_VERSIONS
#endif
#define TROUPE_INLINE inline __attribute__((always_inline))

namespace troupe::actors::simd {

inline constexpr std::int64_t kLanes = 8;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// e^x for x in [-87, 88], clamped outside; NaN stays NaN. Relative error below 2e-7: Cody–Waite
/// reduction by ln 2 in two parts, then the degree-6 polynomial of Cephes' expf.
TROUPE_INLINE float exp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5·2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504088896341F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3F800000U;
  return p * std::bit_cast<float>(exponent);
}

typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));

TROUPE_INLINE Lanes splat(float x) { return Lanes{x, x, x, x, x, x, x, x}; }

/// A matrix read element by element: a(i, k) = data[i·row + k·column].
struct Left {
  const float* data;
  std::int64_t row;
  std::int64_t column;
};
/// A matrix read in rows of lanes; columns must be readable up to a multiple of 8.
struct Right {
  const float* data;
  std::int64_t row;
};
struct Target {
  float* data;
  std::int64_t row;
};

template <int kRows, int kVectors>
TROUPE_INLINE void multiply_tile(std::int64_t depth, Left a, Right b, Target c, bool accumulate) {
  Lanes sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j)
      sum[i][j] = accumulate ? *reinterpret_cast<const Lanes*>(c.data + i * c.row + j * kLanes)
                             : splat(0.0F);
  for (std::int64_t k = 0; k < depth; ++k) {
    Lanes right[kVectors];
    for (int j = 0; j < kVectors; ++j)
      right[j] = *reinterpret_cast<const Lanes*>(b.data + k * b.row + j * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const Lanes left = splat(a.data[i * a.row + k * a.column]);
      for (int j = 0; j < kVectors; ++j) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j)
      *reinterpret_cast<Lanes*>(c.data + i * c.row + j * kLanes) = sum[i][j];
}

template <int kVectors>
TROUPE_INLINE void multiply_columns(std::int64_t rows, std::int64_t depth, Left a, Right b,
                                    Target c, bool accumulate) {
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4)
    multiply_tile<4, kVectors>(depth, {a.data + i * a.row, a.row, a.column}, b,
                               {c.data + i * c.row, c.row}, accumulate);
  for (; i < rows; ++i)
    multiply_tile<1, kVectors>(depth, {a.data + i * a.row, a.row, a.column}, b,
                               {c.data + i * c.row, c.row}, accumulate);
}

/// c [rows, columns] = (accumulate ? c : 0) + a [rows, depth] · b [depth, columns]. `columns` is
/// rounded up to a multiple of 8, so rows of b and c must reach that far.
TROUPE_INLINE void multiply(std::int64_t rows, std::int64_t columns, std::int64_t depth, Left a,
                            Right b, Target c, bool accumulate) {
  std::int64_t j = 0;
  for (; j + kLanes < columns; j += 2 * kLanes)
    multiply_columns<2>(rows, depth, a, {b.data + j, b.row}, {c.data + j, c.row}, accumulate);
  for (; j < columns; j += kLanes)
    multiply_columns<1>(rows, depth, a, {b.data + j, b.row}, {c.data + j, c.row}, accumulate);
}

}  // namespace troupe::actors::simd

#include "reshard/execution/checksum_paths.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>
#include <vector>

namespace troupe::reshard {
namespace {

enum class Kind : std::uint8_t { kSum, kCopy, kStream };

std::array<std::uint32_t, kBlockWords> make_weights() {
  std::array<std::uint32_t, kBlockWords> weights{};
  for (std::uint32_t i = 0; i < weights.size(); ++i) {
    // Twenty mixed bits above 2 i + 1: odd, and all differ.
    std::uint32_t x = (i + 1) * 0x9E3779B1U;
    x ^= x >> 15;
    x *= 0x85EBCA77U;
    x ^= x >> 13;
    x &= 0xFFFFF000U;
    weights[i] = x | (i << 1 & 0xFFFU) | 1U;
  }
  return weights;
}

template <Kind kind>
std::uint64_t portable(std::byte* to, const std::byte* words, const std::uint32_t* weights,
                       std::int64_t count) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, words + 4 * i, sizeof(word));
    if constexpr (kind != Kind::kSum) std::memcpy(to + 4 * i, &word, sizeof(word));
    sum += std::uint64_t{word} * weights[i];
  }
  return sum;
}

#if defined(__x86_64__)

/// Bytes that are asked for ahead: one core alone waits for memory, not for arithmetic.
template <Kind kind>
constexpr std::int64_t kAhead = kind == Kind::kSum ? 1024 : 3072;

template <Kind kind>
__attribute__((target("avx2"))) std::uint64_t avx2(std::byte* to, const std::byte* words,
                                                   const std::uint32_t* weights,
                                                   std::int64_t count) {
  __m256i even = _mm256_setzero_si256();
  __m256i odd = _mm256_setzero_si256();
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    if (i % 16 == 0)
      _mm_prefetch(reinterpret_cast<const char*>(words + 4 * i) + kAhead<kind>, _MM_HINT_T0);
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + 4 * i));
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + i));
    if constexpr (kind == Kind::kCopy)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 4 * i), x);
    if constexpr (kind == Kind::kStream)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 4 * i), x);
    even = _mm256_add_epi64(even, _mm256_mul_epu32(x, w));
    odd =
        _mm256_add_epi64(odd, _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(w, 32)));
  }
  alignas(32) std::array<std::uint64_t, 4> lanes{};
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), _mm256_add_epi64(even, odd));
  std::byte* rest = kind == Kind::kSum ? nullptr : to + 4 * i;
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] +
         portable<kind>(rest, words + 4 * i, weights + i, count - i);
}

template <Kind kind>
__attribute__((target("avx512f"))) std::uint64_t avx512(std::byte* to, const std::byte* words,
                                                        const std::uint32_t* weights,
                                                        std::int64_t count) {
  __m512i even = _mm512_setzero_si512();
  __m512i odd = _mm512_setzero_si512();
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    _mm_prefetch(reinterpret_cast<const char*>(words + 4 * i) + kAhead<kind>, _MM_HINT_T0);
    const __m512i x = _mm512_loadu_si512(words + 4 * i);
    const __m512i w = _mm512_loadu_si512(weights + i);
    if constexpr (kind == Kind::kCopy) _mm512_storeu_si512(to + 4 * i, x);
    if constexpr (kind == Kind::kStream)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 4 * i), x);
    even = _mm512_add_epi64(even, _mm512_mul_epu32(x, w));
    odd =
        _mm512_add_epi64(odd, _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(w, 32)));
  }
  alignas(64) std::array<std::uint64_t, 8> lanes{};
  _mm512_store_si512(lanes.data(), _mm512_add_epi64(even, odd));
  std::byte* rest = kind == Kind::kSum ? nullptr : to + 4 * i;
  std::uint64_t sum = portable<kind>(rest, words + 4 * i, weights + i, count - i);
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

#endif

using Loop = std::uint64_t (*)(std::byte*, const std::byte*, const std::uint32_t*, std::int64_t);

template <Loop loop>
std::uint64_t only_sum(const std::byte* words, const std::uint32_t* weights, std::int64_t count) {
  return loop(nullptr, words, weights, count);
}

std::vector<SumPath> find_paths() {
  std::vector<SumPath> paths{
      {"portable", only_sum<portable<Kind::kSum>>, portable<Kind::kCopy>, portable<Kind::kStream>}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2"))
    paths.push_back({"avx2", only_sum<avx2<Kind::kSum>>, avx2<Kind::kCopy>, avx2<Kind::kStream>});
  if (__builtin_cpu_supports("avx512f"))
    paths.push_back(
        {"avx512", only_sum<avx512<Kind::kSum>>, avx512<Kind::kCopy>, avx512<Kind::kStream>});
#endif
  return paths;
}

}  // namespace

const std::array<std::uint32_t, kBlockWords>& word_weights() {
  alignas(64) static const std::array<std::uint32_t, kBlockWords> weights = make_weights();
  return weights;
}

std::span<const SumPath> sum_paths() {
  static const std::vector<SumPath> paths = find_paths();
  return paths;
}

void end_stream() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace troupe::reshard

#include "reshard/execution/checksum.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::reshard {
namespace {

constexpr std::uint32_t kWeyl = 0x9E3779B1U;
constexpr std::uint32_t kMix = 0x85EBCA77U;

/// 32 bits for a flat index: a Weyl sequence through one multiply and xor-shift round, keyed by the
/// upper half of the index. All in 32 bits, so that eight fit a vector.
std::uint32_t weight_of(std::uint32_t low, std::uint32_t key) {
  std::uint32_t x = (low + key) * kWeyl;
  x ^= x >> 15;
  x *= kMix;
  return x ^ (x >> 13);
}

std::uint32_t key_of(std::int64_t index) {
  const auto high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(index) >> 32);
  return high * 0xC2B2AE3DU;
}

template <class Bits>
Bits load(const std::byte* data, std::int64_t i) {
  Bits bits{};
  std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
  return bits;
}

// The loop of all variants; the compiler makes vectors of it where the target has them.
template <class Bits>
inline __attribute__((always_inline)) std::uint64_t sum_run(const std::byte* data,
                                                            std::uint32_t low, std::uint32_t key,
                                                            std::int64_t count) {
  std::uint64_t sum = 0;
  std::uint32_t weyl = (low + key) * kWeyl;
  for (std::int64_t i = 0; i < count; ++i, weyl += kWeyl) {
    std::uint32_t x = weyl ^ (weyl >> 15);
    x *= kMix;
    x ^= x >> 13;
    const Bits bits = load<Bits>(data, i);
    if constexpr (sizeof(Bits) == 8)
      sum += (static_cast<std::uint64_t>(bits) + 1) * (x | 1U);
    else
      sum += static_cast<std::uint64_t>(x) * static_cast<std::uint32_t>(bits) + x;
  }
  return sum;
}

#if defined(__x86_64__)
template <class Bits>
__attribute__((target("avx2"), optimize("O3"))) std::uint64_t sum_run_avx2(const std::byte* data,
                                                                           std::uint32_t low,
                                                                           std::uint32_t key,
                                                                           std::int64_t count) {
  return sum_run<Bits>(data, low, key, count);
}
template <class Bits>
__attribute__((target("avx512f,avx512dq,avx512bw,prefer-vector-width=512"), optimize("O3")))
std::uint64_t
sum_run_avx512(const std::byte* data, std::uint32_t low, std::uint32_t key, std::int64_t count) {
  return sum_run<Bits>(data, low, key, count);
}
#endif

template <class Bits>
std::uint64_t sum_by_width(const std::byte* data, std::int64_t index, std::int64_t count) {
  std::uint64_t sum = 0;
  while (count > 0) {  // a run stays below one multiple of 2^32, so that its key is constant
    const auto low = static_cast<std::uint32_t>(index);
    const std::int64_t take =
        std::min<std::int64_t>(count, (std::int64_t{1} << 32) - static_cast<std::int64_t>(low));
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
      sum += sum_run_avx512<Bits>(data, low, key_of(index), take);
    else if (__builtin_cpu_supports("avx2"))
      sum += sum_run_avx2<Bits>(data, low, key_of(index), take);
    else
#endif
      sum += sum_run<Bits>(data, low, key_of(index), take);
    data += take * static_cast<std::int64_t>(sizeof(Bits));
    index += take;
    count -= take;
  }
  return sum;
}

}  // namespace

std::uint64_t sum_elements(const std::byte* data, std::int64_t element, std::int64_t index,
                           std::int64_t count) {
  switch (element) {
    case 1:
      return sum_by_width<std::uint8_t>(data, index, count);
    case 2:
      return sum_by_width<std::uint16_t>(data, index, count);
    case 4:
      return sum_by_width<std::uint32_t>(data, index, count);
    default:
      TROUPE_CHECK(element == 8, "checksum: elements of {} bytes", element);
      return sum_by_width<std::uint64_t>(data, index, count);
  }
}

std::uint64_t sum_box(const Box& box, std::int64_t tensor_cols, const std::byte* data,
                      std::int64_t row_stride, std::int64_t element) {
  if (box.empty()) return 0;
  if (box.cols() == tensor_cols && row_stride == tensor_cols)
    return sum_elements(data, element, box.row_begin * tensor_cols, box.elements());
  std::uint64_t sum = 0;
  for (std::int64_t row = box.row_begin; row < box.row_end; ++row) {
    sum += sum_elements(data, element, row * tensor_cols + box.col_begin, box.cols());
    data += row_stride * element;
  }
  return sum;
}

std::uint64_t sum_elements_slowly(const std::byte* data, std::int64_t element, std::int64_t index,
                                  std::int64_t count) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, data + i * element, static_cast<std::size_t>(element));
    std::uint64_t weight = weight_of(static_cast<std::uint32_t>(index + i), key_of(index + i));
    if (element == 8) weight |= 1;
    sum += weight * (bits + 1);
  }
  return sum;
}

}  // namespace troupe::reshard

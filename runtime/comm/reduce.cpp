#include "runtime/comm/reduce.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

// -O2 alone does not vectorise loops of unknown length; results do not change, as no operation
// here is reassociated.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace troupe::runtime {
namespace {

constexpr std::size_t kBlock = 2048;  // elements; 8–16 KiB of accumulator, stays in L1

template <class T>
T add(T a, T b) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class T>
T multiply(T a, T b) {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

// The comparisons with itself are true for NaN only.
template <class T>
T smaller(T a, T b) {
  return (b < a || b != b) ? b : a;
}
template <class T>
T larger(T a, T b) {
  return (b > a || b != b) ? b : a;
}

template <class T, T (*Combine)(T, T)>
void combine_into(T* __restrict accumulator, const T* __restrict next, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) accumulator[i] = Combine(accumulator[i], next[i]);
}

template <class T, T (*Combine)(T, T)>
void reduce_typed(std::span<const void* const> sources, std::span<void* const> targets,
                  Slice slice) {
  std::array<T, kBlock> accumulator;
  for (std::size_t begin = slice.begin; begin < slice.end; begin += kBlock) {
    const std::size_t count = std::min(kBlock, slice.end - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    std::copy(first, first + count, accumulator.data());
    for (std::size_t j = 1; j < sources.size(); ++j) {
      combine_into<T, Combine>(accumulator.data(), static_cast<const T*>(sources[j]) + begin,
                               count);
    }
    for (void* target : targets) {
      std::copy(accumulator.data(), accumulator.data() + count, static_cast<T*>(target) + begin);
    }
  }
}

template <class T>
void reduce_by(ReduceOp op, std::span<const void* const> sources, std::span<void* const> targets,
               Slice slice) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_typed<T, add<T>>(sources, targets, slice);
    case ReduceOp::kMin:
      return reduce_typed<T, smaller<T>>(sources, targets, slice);
    case ReduceOp::kMax:
      return reduce_typed<T, larger<T>>(sources, targets, slice);
    case ReduceOp::kProduct:
      return reduce_typed<T, multiply<T>>(sources, targets, slice);
  }
}

}  // namespace

Slice slice_of(std::size_t count, std::size_t parts, std::size_t index) {
  constexpr std::size_t kGrain = 16;
  const std::size_t grains = (count + kGrain - 1) / kGrain;
  const auto border = [&](std::size_t i) {
    // i-th border of `grains` spread evenly, without overflow for huge counts
    const std::size_t at = (grains / parts) * i + (grains % parts) * i / parts;
    return std::min(count, at * kGrain);
  };
  return {border(index), border(index + 1)};
}

void reduce_slice(ElementType type, ReduceOp op, std::span<const void* const> sources,
                  std::span<void* const> targets, Slice slice) {
  switch (type) {
    case ElementType::kF32:
      return reduce_by<float>(op, sources, targets, slice);
    case ElementType::kF64:
      return reduce_by<double>(op, sources, targets, slice);
    case ElementType::kI64:
      return reduce_by<std::int64_t>(op, sources, targets, slice);
    case ElementType::kByte:
      TROUPE_CHECK(false, "bytes cannot be reduced");
  }
}

}  // namespace troupe::runtime

#include "actors/kernel/aligned_buffer.hpp"

#include "runtime/base/check.hpp"

#include <cstdlib>
#include <new>

namespace troupe::actors {

AlignedBuffer::AlignedBuffer(std::int64_t count) : count_(count) {
  TROUPE_CHECK(count >= 0, "aligned buffer: count {}, wanted ≥ 0", count);
  if (count == 0) return;
  constexpr std::size_t kAlignment = 64;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float) + kAlignment;
  raw_ = std::calloc(bytes, 1);
  if (raw_ == nullptr) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(raw_);
  const std::uintptr_t aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  aligned_ = reinterpret_cast<float*>(aligned);
}

AlignedBuffer::~AlignedBuffer() { std::free(raw_); }

}  // namespace troupe::actors

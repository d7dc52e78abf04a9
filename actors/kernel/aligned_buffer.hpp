#pragma once

// A zeroed, 64-byte aligned array of floats whose pages are only touched when used.
//
// **Ownership:** owns its memory; move-only.
// **Threads:** like a vector.
// **Cost:** allocation is O(1): the operating system hands out zero pages lazily.

#include <cstddef>
#include <cstdint>
#include <utility>

namespace troupe::actors {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// `count` zeros. Throws std::bad_alloc.
  explicit AlignedBuffer(std::int64_t count);
  AlignedBuffer(AlignedBuffer&& other) noexcept { swap(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    AlignedBuffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer();

  float* data() { return aligned_; }
  const float* data() const { return aligned_; }
  std::int64_t size() const { return count_; }
  float& operator[](std::int64_t i) { return aligned_[i]; }
  float operator[](std::int64_t i) const { return aligned_[i]; }

 private:
  void swap(AlignedBuffer& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(aligned_, other.aligned_);
    std::swap(count_, other.count_);
  }
  void* raw_ = nullptr;
  float* aligned_ = nullptr;
  std::int64_t count_ = 0;
};

}  // namespace troupe::actors

#include "runtime/exchange/receive_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>
#include <vector>

namespace troupe::runtime {
namespace {

constexpr std::size_t kKeptFrom = std::size_t{16} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 64;

std::align_val_t alignment_of(std::size_t size) {
  return std::align_val_t{size >= kHugePage ? kHugePage : kAlignment};
}

/// Sizes in steps of an eighth of their power of two, so that columns of about one size share.
std::size_t size_class(std::size_t bytes) {
  if (bytes < kKeptFrom) return std::max(bytes, kAlignment);
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

}  // namespace

ReceivePool::~ReceivePool() { trim(); }

ReceivePool::Buffer ReceivePool::allocate(std::size_t size) {
  Buffer buffer{static_cast<std::byte*>(::operator new(size, alignment_of(size))), size};
  // Only a hint: where huge pages are off, small ones serve.
  if (size >= kHugePage) (void)::madvise(buffer.data, size, MADV_HUGEPAGE);
  return buffer;
}

void ReceivePool::release(Buffer buffer) {
  ::operator delete(buffer.data, alignment_of(buffer.size));
}

std::shared_ptr<std::byte> ReceivePool::take(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  Buffer buffer;
  {
    const std::lock_guard lock(mutex_);
    const auto sized = by_size_.find(size);
    if (sized != by_size_.end() && !sized->second.empty()) {
      // The newest: its pages may still be in a cache.
      const Kept::iterator newest = sized->second.back();
      sized->second.pop_back();
      buffer = *newest;
      bytes_kept_ -= static_cast<std::int64_t>(size);
      kept_.erase(newest);
    }
  }
  if (buffer.data == nullptr) buffer = allocate(size);
  return {buffer.data, [pool = weak_from_this(), buffer](std::byte*) {
            if (const auto alive = pool.lock())
              alive->give_back(buffer);
            else
              release(buffer);
          }};
}

void ReceivePool::give_back(Buffer buffer) {
  std::vector<Buffer> gone;
  {
    const std::lock_guard lock(mutex_);
    const auto size = static_cast<std::int64_t>(buffer.size);
    if (buffer.size < kKeptFrom || size > cache_bytes_) {
      gone.push_back(buffer);
    } else {
      by_size_[buffer.size].push_back(kept_.insert(kept_.end(), buffer));
      bytes_kept_ += size;
    }
    while (bytes_kept_ > cache_bytes_) {
      gone.push_back(kept_.front());
      bytes_kept_ -= static_cast<std::int64_t>(kept_.front().size);
      auto& sized = by_size_[kept_.front().size];
      sized.erase(sized.begin());  // the oldest of all is the oldest of its size
      kept_.pop_front();
    }
  }
  for (const Buffer& one : gone) release(one);
}

void ReceivePool::trim() {
  Kept gone;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(kept_);
    by_size_.clear();
    bytes_kept_ = 0;
  }
  for (const Buffer& one : gone) release(one);
}

std::int64_t ReceivePool::bytes_kept() const {
  const std::lock_guard lock(mutex_);
  return bytes_kept_;
}

}  // namespace troupe::runtime

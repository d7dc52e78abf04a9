#include "runtime/exchange/receive_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>
#include <vector>

namespace troupe::runtime {
namespace {

constexpr std::size_t kKeptFrom = std::size_t{256} << 10;
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
    // The newest first: its pages may still be in a cache.
    const auto place = std::find_if(kept_.rbegin(), kept_.rend(),
                                    [size](const Buffer& one) { return one.size == size; });
    if (place != kept_.rend()) {
      buffer = *place;
      bytes_kept_ -= static_cast<std::int64_t>(size);
      kept_.erase(std::next(place).base());
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
      kept_.push_back(buffer);
      bytes_kept_ += size;
    }
    while (bytes_kept_ > cache_bytes_) {
      gone.push_back(kept_.front());
      bytes_kept_ -= static_cast<std::int64_t>(kept_.front().size);
      kept_.pop_front();
    }
  }
  for (const Buffer& one : gone) release(one);
}

void ReceivePool::trim() {
  std::deque<Buffer> gone;
  {
    const std::lock_guard lock(mutex_);
    gone.swap(kept_);
    bytes_kept_ = 0;
  }
  for (const Buffer& one : gone) release(one);
}

std::int64_t ReceivePool::bytes_kept() const {
  const std::lock_guard lock(mutex_);
  return bytes_kept_;
}

}  // namespace troupe::runtime

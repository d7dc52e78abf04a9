#pragma once

// Buffers that pulled columns land in. Those from 16 KiB on are kept for the next pull when the
// last view of them has gone: fresh memory costs a page fault each 4 KiB, as much as the transfer
// itself.
//
// **Threads:** any. A buffer may outlive the pool.
// **Invariants:** at most `cache_bytes` are kept; the oldest go first. Contents are not cleared.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace troupe::runtime {

class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  explicit ReceivePool(std::int64_t cache_bytes) : cache_bytes_(cache_bytes) {}
  ~ReceivePool();
  ReceivePool(const ReceivePool&) = delete;
  ReceivePool& operator=(const ReceivePool&) = delete;

  /// At least `bytes` bytes, aligned to 64. The pool must be held by a shared_ptr.
  std::shared_ptr<std::byte> take(std::size_t bytes);
  /// Lets all kept buffers go.
  void trim();
  std::int64_t bytes_kept() const;

 private:
  struct Buffer {
    std::byte* data = nullptr;
    std::size_t size = 0;
  };
  static Buffer allocate(std::size_t size);
  static void release(Buffer buffer);
  void give_back(Buffer buffer);

  const std::int64_t cache_bytes_;
  mutable std::mutex mutex_;  ///< guards the following
  using Kept = std::list<Buffer>;
  Kept kept_;                                                             ///< oldest first
  std::unordered_map<std::size_t, std::vector<Kept::iterator>> by_size_;  ///< newest last
  std::int64_t bytes_kept_ = 0;
};

}  // namespace troupe::runtime

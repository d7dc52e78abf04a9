#pragma once

// Direct copies on a few threads of their own, so that the thread which owns UCX never waits for
// one and a big pull has more than one core. What is watched is read aside first, by 256 KiB, and
// brought to its place by the watch.
//
// Ownership: a job keeps its targets alive until its last slice is over, whatever became of the
// pull. Destroying the pool waits for slices that have begun and drops the rest.
// **Threads:** `add` and `copy_now` from any; after `add`, `finished` is called on a thread of the
// pool, once a job.
// **Invariants:** slices of a job cover it once; after the first error the rest of it is not
// copied.

#include "runtime/comm/direct_copy.hpp"
#include "runtime/comm/transport.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace troupe::runtime {

struct CopyJob {
  TransportAddress owner;
  std::vector<MemoryPlace> places;
  std::vector<std::span<std::byte>> targets;
  std::int64_t bytes = 0;
  std::shared_ptr<const void> keep;
  std::shared_ptr<LandingWatch> watch;  ///< may be null
  std::function<void(result<void>)> finished;
};

class CopyPool {
 public:
  explicit CopyPool(int threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  void add(CopyJob job);
  /// Does it on this thread, which also calls `finished`.
  static void copy_now(CopyJob job);

 private:
  struct Work {
    CopyJob job;
    std::atomic<std::int64_t> slices_left{0};
    std::mutex mutex;  ///< guards the error
    std::optional<Error> error;
  };
  struct Slice {
    std::shared_ptr<Work> work;
    DirectProgress from;
    std::int64_t bytes = 0;
  };

  void run();
  static void copy(const Slice& slice);

  std::mutex mutex_;  ///< guards the following
  std::condition_variable wake_;
  std::deque<Slice> slices_;
  bool closed_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace troupe::runtime

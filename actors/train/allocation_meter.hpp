#pragma once

// Measures the most bytes of tensors alive at once on the calling thread, from its construction.
//
// **Threads:** counts allocations of the thread that made it; destroy it there.
// **Cost:** LibTorch keeps a table of blocks under a global mutex while any meter lives: use it for
// single passes, not around a training run.

#include <cstdint>
#include <memory>

namespace troupe::actors {

class AllocationMeter {
 public:
  AllocationMeter();
  ~AllocationMeter();
  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  std::int64_t peak_bytes() const;     ///< most bytes in use so far, above the start
  std::int64_t current_bytes() const;  ///< may be negative when older tensors were freed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::actors

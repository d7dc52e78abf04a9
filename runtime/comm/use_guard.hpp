#pragma once

// Notices a collective handle that two threads use at once: a CHECK, as the operations of a handle
// have an order that peers must have too.
//
// **Threads:** any.

#include "runtime/base/check.hpp"

#include <atomic>
#include <string>

namespace troupe::runtime {

class UseGuard {
 public:
  UseGuard(std::atomic<bool>& busy, const std::string& name, int rank) : busy_(busy) {
    TROUPE_CHECK(!busy_.exchange(true), "{} rank {}: handle used by two threads at once", name,
                 rank);
  }
  UseGuard(const UseGuard&) = delete;
  UseGuard& operator=(const UseGuard&) = delete;
  ~UseGuard() { busy_ = false; }

 private:
  std::atomic<bool>& busy_;
};

}  // namespace troupe::runtime

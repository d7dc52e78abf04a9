#pragma once

// How long something took.
//
// **Threads:** any.

#include <chrono>

namespace troupe::bench {

/// Seconds from `begin` until now.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace troupe::bench

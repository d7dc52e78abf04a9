#include "runtime/base/incarnation.hpp"

#include <unistd.h>

#include <chrono>

namespace troupe {

std::uint64_t new_incarnation() {
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return static_cast<std::uint64_t>(now.count()) ^ (static_cast<std::uint64_t>(::getpid()) << 40U);
}

}  // namespace troupe

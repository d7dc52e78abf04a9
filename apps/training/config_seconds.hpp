#pragma once

// Keys that are seconds, as durations.
//
// **Threads:** pure.

#include "runtime/base/clock.hpp"
#include "runtime/config/config.hpp"

#include <chrono>
#include <string_view>

namespace troupe::apps {

/// The value of a declared key of seconds (a number).
inline Duration seconds_of(const runtime::Config& config, std::string_view key) {
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(config.get<double>(key)));
}

}  // namespace troupe::apps

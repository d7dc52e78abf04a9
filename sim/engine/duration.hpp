#pragma once

// Spans that models give in seconds, as the clock counts them.
//
// **Threads:** pure.

#include "runtime/base/clock.hpp"

#include <cmath>
#include <cstdint>

namespace troupe::sim {

/// Rounded to the nearest nanosecond.
inline Duration to_duration(double span_s) {
  return Duration(static_cast<std::int64_t>(std::llround(span_s * 1e9)));
}

}  // namespace troupe::sim

#pragma once

// Time behind an interface, so that the same programs run on real and on virtual time.
//
// **Threads:** `now` may be called from any thread.

#include <chrono>

namespace troupe {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

/// The machine's monotonic clock.
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

/// What the monotonic clock says.
inline TimePoint steady_now() { return SteadyClock().now(); }

/// An absolute point in time after which a wait gives up. Always finite: default 30 minutes.
struct Deadline {
  TimePoint at;
  static Deadline in(Duration span) {
    return Deadline{std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()) +
                    span};
  }
  static Deadline by_default() { return in(std::chrono::minutes(30)); }
  bool passed() const { return std::chrono::steady_clock::now() >= at; }
  auto operator<=>(const Deadline&) const = default;
};

/// Seconds as a double, for metrics.
inline double seconds(Duration span) { return std::chrono::duration<double>(span).count(); }

}  // namespace troupe

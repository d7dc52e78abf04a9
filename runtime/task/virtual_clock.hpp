#pragma once

// A clock that moves only when told: timers of an `Executor` given one fire without waiting.
//
// **Threads:** any may read; one moves it.
// **Invariants:** never goes back.

#include "runtime/base/clock.hpp"

#include <atomic>

namespace troupe::runtime {

class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(TimePoint start = TimePoint{}) : now_(start.time_since_epoch().count()) {}
  TimePoint now() const override { return TimePoint(Duration(now_.load())); }
  void advance_to(TimePoint at) {
    if (at > now()) now_.store(at.time_since_epoch().count());
  }
  void advance(Duration span) { advance_to(now() + span); }

 private:
  std::atomic<Duration::rep> now_;
};

}  // namespace troupe::runtime

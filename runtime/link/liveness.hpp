#pragma once

// `Liveness`: when to send a heartbeat, and when a silent peer is dead.
//
// **Threads:** one owner. Pure: time comes from outside.
// **Invariants:** any bytes of the peer are a sign of life. Time in which nobody asked (`tick`
// came late, since this process was stopped or starved) does not count as the peer's silence.

#include "runtime/base/clock.hpp"

namespace troupe::runtime {

class Liveness {
 public:
  Liveness(Duration heartbeat, Duration dead_after, TimePoint now)
      : heartbeat_(heartbeat), dead_after_(dead_after), heard_(now), sent_(now), asked_(now) {}

  void heard(TimePoint now) { heard_ = now; }
  void sent(TimePoint now) { sent_ = now; }
  Duration silence(TimePoint now) const { return now - heard_; }

  enum class Verdict { kFine, kBeat, kDead };
  Verdict tick(TimePoint now) {
    const Duration unwatched = now - asked_;
    asked_ = now;
    if (unwatched > dead_after_ / 2) heard_ += unwatched;
    if (heard_ > now) heard_ = now;
    if (silence(now) > dead_after_) return Verdict::kDead;
    return now - sent_ >= heartbeat_ ? Verdict::kBeat : Verdict::kFine;
  }

 private:
  Duration heartbeat_;
  Duration dead_after_;
  TimePoint heard_;
  TimePoint sent_;
  TimePoint asked_;
};

}  // namespace troupe::runtime

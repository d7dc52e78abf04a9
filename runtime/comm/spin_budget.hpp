#pragma once

// How long a thread that waits may spin before it sleeps: long where spinning has paid lately,
// next to nothing where it has not.
//
// A wake-up costs tens of microseconds, which is as much as a message of 256 KiB; but on a machine
// whose cores are taken, whoever spins keeps the one that it waits for from running. So the budget
// doubles when something came while spinning and halves when nothing did.
// **Threads:** one.
// **Invariants:** between a sixteenth of the most and the most.

#include "runtime/base/clock.hpp"

#include <algorithm>

namespace troupe::runtime {

class SpinBudget {
 public:
  explicit SpinBudget(Duration most) : most_(most), now_(most) {}
  Duration get() const { return now_; }
  void paid() { now_ = std::min(most_, now_ * 2); }
  void failed() { now_ = std::max(most_ / kShare, now_ / 2); }

 private:
  static constexpr int kShare = 16;
  Duration most_;
  Duration now_;
};

}  // namespace troupe::runtime

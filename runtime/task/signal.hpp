#pragma once

// A one-shot event with observers: the common base of a pending's state and of a cancel source.
//
// **Threads:** any; notification happens once, on the thread that raises the event, outside the
// lock.
// **Invariants:** an observer that was subscribed before the event is notified exactly once unless
// it unsubscribed first; after the event `subscribe` refuses, so no wake-up is lost.

#include "runtime/base/clock.hpp"
#include "runtime/task/ref.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::runtime {

class Observer : public RefCounted {
 public:
  virtual void notify() noexcept = 0;
};

class Signal : public RefCounted {
 public:
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  /// False when the event has happened already; then the observer is not kept.
  bool subscribe(Ref<Observer> observer);
  void unsubscribe(const Observer* observer);

 protected:
  /// Marks the event as happened and returns who must be notified. Call with `mutex_` held.
  std::vector<Ref<Observer>> raise_locked();
  static void notify_all(const std::vector<Ref<Observer>>& observers) noexcept;

  mutable std::mutex mutex_;  // guards observers_ and what derived classes say

 private:
  std::atomic<bool> done_{false};
  std::vector<Ref<Observer>> observers_;
};

/// How long a waiting thread looks again before it sleeps. Waking a sleeper costs 5 to 25 µs on a
/// virtual machine with idle cores, which is most of a short call; yielding meanwhile leaves the
/// core to whoever has work.
inline constexpr Duration kLookAgain = std::chrono::microseconds(50);

/// Looks at `over` for at most kLookAgain, yielding in between.
template <class Predicate>
bool look_again(Predicate over) {
  const TimePoint end = SteadyClock().now() + kLookAgain;
  do {
    for (int i = 0; i < 8; ++i) {
      if (over()) return true;
      std::this_thread::yield();
    }
  } while (SteadyClock().now() < end);
  return over();
}

}  // namespace troupe::runtime

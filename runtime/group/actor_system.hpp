#pragma once

// `ActorSystem`: the CAF actor system of this process, and what groups share in it.
//
// Ownership: made by `main`; outlives all groups. CAF stays behind the .cpp.
// **Threads:** any.
// **Invariants:** CAF's scheduler policy is `sharing` (6 × less request latency than stealing on
// 0.17.6 and no idle polling) with an explicit number of threads; its own configuration files and
// command line are not read. Blocking work never runs on its threads.

#include "runtime/base/clock.hpp"
#include "runtime/task/ref.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace troupe::runtime {

struct ActorSystemOptions {
  std::size_t threads = 1;  ///< CAF scheduler threads; shells are light, engines have their own
};

/// Calls back at points in time, on a thread of its own.
class CallTimer {
 public:
  using Id = std::pair<TimePoint, std::uint64_t>;
  CallTimer();
  ~CallTimer();
  CallTimer(const CallTimer&) = delete;
  CallTimer& operator=(const CallTimer&) = delete;
  /// `callback` runs once at `at` unless removed before; it must not block.
  Id add(TimePoint at, std::function<void()> callback);
  /// False when it ran, or is running, already.
  bool remove(const Id& id);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class ActorSystem {
 public:
  explicit ActorSystem(const ActorSystemOptions& options = {});
  ~ActorSystem();
  ActorSystem(const ActorSystem&) = delete;
  ActorSystem& operator=(const ActorSystem&) = delete;

  CallTimer& timer() { return timer_; }
  /// Held while places in several lanes are taken, so that all groups see one order.
  std::mutex& lane_order() { return lane_order_; }

  struct Native;  ///< defined in caf.hpp
  Native& native() { return *native_; }
  /// `0.17.6` or `1.1.0`: the CAF that was compiled against.
  static std::string caf_version();

 private:
  CallTimer timer_;
  std::mutex lane_order_;
  std::unique_ptr<Native> native_;
};

}  // namespace troupe::runtime

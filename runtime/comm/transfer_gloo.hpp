#pragma once

// Transfers of payload over Gloo, each a few buffers, and the timer that ends them.
//
// **Threads:** `TransferTimer` has a thread of its own, started with the first transfer that waits.
// **Invariants:** a transfer's memory is not touched once it is destroyed.

#include "runtime/comm/links_gloo.hpp"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace gloo {
class Context;
}

namespace troupe::runtime {

/// For waits in Gloo that are ended from outside.
inline constexpr std::chrono::milliseconds kForGloo = std::chrono::hours(24 * 365);

/// Calls back at points in time.
class TransferTimer {
 public:
  class Alarm {
   public:
    virtual ~Alarm() = default;
    virtual void on_time() = 0;
  };
  TransferTimer() = default;
  TransferTimer(const TransferTimer&) = delete;
  TransferTimer& operator=(const TransferTimer&) = delete;
  ~TransferTimer();
  void set(TimePoint at, std::weak_ptr<Alarm> alarm);

 private:
  void run();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::multimap<TimePoint, std::weak_ptr<Alarm>> alarms_;
  TimePoint awake_at_ = TimePoint::max();
  bool stopping_ = false;
  std::thread thread_;
};

std::shared_ptr<Transfer> start_gloo_transfer(const std::shared_ptr<gloo::Context>& context,
                                              TransferTimer& timer, std::vector<TransferPart> parts,
                                              TransferEnd& lost);

}  // namespace troupe::runtime

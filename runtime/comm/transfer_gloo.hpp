#pragma once

// Transfers of payload over Gloo, each a few buffers, and what ends them: a timer, and word that a
// connection closed. Gloo forgets operations that are half through, or queued behind such a one,
// when their connection closes; whoever waits for them would wait for ever.
//
// **Threads:** any. `TransferTimer` has a thread of its own, started with the first transfer that
// waits.
// **Invariants:** a transfer's memory is not touched once it is destroyed. What came through before
// a connection closed counts as through.

#include "runtime/comm/links_gloo.hpp"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
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

class GlooTransfer;

/// The transfers over one set of connections.
class GlooTransfers {
 public:
  explicit GlooTransfers(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}
  /// Null when a connection that it needs is closed; `lost` then says to whom.
  std::shared_ptr<Transfer> start(std::vector<TransferPart> parts, TransferEnd& lost);
  /// The connection to `peer` closed, after Gloo has read all that came over it.
  void on_closed(int peer, const std::string& why);

 private:
  const std::shared_ptr<gloo::Context> context_;
  TransferTimer timer_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::weak_ptr<GlooTransfer>> live_;
  std::map<int, std::string> closed_;
};

}  // namespace troupe::runtime

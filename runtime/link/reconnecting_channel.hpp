#pragma once

// `ReconnectingChannel`: keeps one channel to an address, dialling again when it goes down.
//
// For agent → head and controller → head. It holds no queue of its own: while it is down, `current`
// is null and callers decide what waiting means to them.
// **Threads:** methods from any thread; callbacks one at a time on a thread of its own. They may
// block for a while (nothing else waits for them) and may call `stop`, but not destroy this object.
// **Invariants:** on_up and on_down alternate, starting with on_up. Between two attempts pass
// `backoff_first`, growing by `backoff_factor` to `backoff_max`; a channel that came up resets it.
// After `stop` (or destruction) no callback runs.

#include "runtime/link/link_hub.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace troupe::runtime {

struct ReconnectOptions {
  std::string address;                      ///< host:port
  std::shared_ptr<ChannelService> service;  ///< serves each channel in turn
  std::optional<PeerName> peer{};           ///< who must answer; see LinkHub::connect
  Duration attempt_within = std::chrono::seconds(5);
  Duration backoff_first = std::chrono::milliseconds(100);
  Duration backoff_max = std::chrono::seconds(1);
  double backoff_factor = 1.5;
  std::function<void(const Ref<Channel>&)> on_up{};
  std::function<void(const Error&)> on_down{};
  /// Each attempt that failed; it goes on trying whatever the reason.
  std::function<void(const Error&)> on_refused{};
};

class ReconnectingChannel {
 public:
  /// Starts dialling at once; `hub` outlives it.
  ReconnectingChannel(LinkHub& hub, ReconnectOptions options);
  ~ReconnectingChannel();
  ReconnectingChannel(const ReconnectingChannel&) = delete;
  ReconnectingChannel& operator=(const ReconnectingChannel&) = delete;

  /// Null while it is down.
  Ref<Channel> current() const;
  /// Blocks this thread until it is up; kDeadline, with the last reason as cause, when it is not.
  result<Ref<Channel>> wait_up(Deadline deadline) const;
  /// Closes the channel and stops dialling; waits for a callback that runs, unless called from it.
  void stop();

 private:
  struct State;
  void run();
  result<Ref<Channel>> dial(std::uint64_t round);
  std::optional<Error> wait_down(std::uint64_t round);
  template <class Call>
  void call_back(const char* what, const Call& call) const;

  LinkHub& hub_;
  const ReconnectOptions options_;
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace troupe::runtime

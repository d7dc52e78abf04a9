#pragma once

// `Dialler`: connects sockets without blocking anybody but a thread of its own.
//
// Ownership: the hub's. All attempts are under way at once. A name is looked up on a thread of its
// own, which nothing can interrupt: an attempt whose deadline passes leaves it behind, and it ends
// by itself; at most kLookUpsMax are under way. Numeric addresses need none.
// **Threads:** any; the callback runs on the dialler's thread.
// **Invariants:** each attempt calls back exactly once: a connected, non-blocking socket that the
// callee owns, or an error. Destruction ends open attempts with kCancelled.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe::runtime {

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

/// `host:port` or `[v6]:port`; kInvalidArgument names the text.
result<HostPort> parse_host_port(const std::string& address);

class Dialler {
 public:
  using Connected = std::function<void(result<int>)>;
  static constexpr int kLookUpsMax = 32;
  /// `before_look_up` is called with each name on the thread that looks it up (tests).
  explicit Dialler(std::function<void(const std::string&)> before_look_up = {});
  ~Dialler();
  Dialler(const Dialler&) = delete;
  Dialler& operator=(const Dialler&) = delete;

  void dial(HostPort address, Deadline deadline, Connected connected);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// kConfig for a host that has an address beyond this machine.
result<void> check_loopback(const HostPort& address);
/// A listening socket; kIo when it cannot be bound. With `only_loopback` after
/// `check_loopback`.
result<int> open_listener(const HostPort& address, bool only_loopback);
/// The port that a listening socket got.
result<std::uint16_t> port_of(int descriptor);

}  // namespace troupe::runtime

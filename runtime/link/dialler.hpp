#pragma once

// `Dialler`: connects sockets without blocking anybody but a thread of its own.
//
// Ownership: the hub's. All attempts are under way at once; only looking up a name blocks the
// thread, and so delays other attempts (numeric addresses need no look-up).
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
  Dialler();
  ~Dialler();
  Dialler(const Dialler&) = delete;
  Dialler& operator=(const Dialler&) = delete;

  void dial(HostPort address, Deadline deadline, Connected connected);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A listening socket; kIo when it cannot be bound. With `only_loopback` a host that has another
/// address is refused (kConfig).
result<int> open_listener(const HostPort& address, bool only_loopback);
/// The port that a listening socket got.
result<std::uint16_t> port_of(int descriptor);

}  // namespace troupe::runtime

#pragma once

// `SocketDriver`: sockets and the one I/O thread of a hub; the only part of runtime/link that knows
// CAF (socket_driver.cpp: a broker of CAF's middleman).
//
// Ownership: the hub owns the driver and outlives its events.
// **Threads:** `wake`, `hurry` and `stop` from any thread but the I/O thread; all else, and all
// events, on the I/O thread.
// **Invariants:** after `on_closed` of a socket it is not mentioned again. `stop` returns when the
// I/O thread has ended and every socket is closed.

#include "runtime/base/clock.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

using SocketId = std::int64_t;

class CallTimer;

class SocketEvents {
 public:
  virtual ~SocketEvents() = default;
  virtual void on_accepted(SocketId listener, SocketId socket) = 0;
  virtual void on_bytes(SocketId socket, std::span<const std::byte> bytes) = 0;
  /// The system took bytes; `waiting` are still in the write buffer.
  virtual void on_written(SocketId socket, std::size_t waiting) = 0;
  virtual void on_closed(SocketId socket) = 0;
  virtual void on_wake() = 0;
  virtual void on_tick() = 0;
};

class SocketDriver {
 public:
  /// Starts the I/O thread; `on_tick` comes each `tick`, by `timer`, which outlives the driver.
  static std::unique_ptr<SocketDriver> start(SocketEvents& events, CallTimer& timer, Duration tick);
  ~SocketDriver();
  SocketDriver(const SocketDriver&) = delete;
  SocketDriver& operator=(const SocketDriver&) = delete;

  /// Has `on_wake` called on the I/O thread.
  void wake();
  /// Ticks each few milliseconds from now on: the end is near.
  void hurry();
  void stop();

  /// Take over a connected socket, or one that listens.
  SocketId adopt(int descriptor);
  SocketId adopt_listener(int descriptor);
  /// Where to append; `flush` then hands it to the system bit by bit, and `on_written` tells.
  std::vector<char>& write_buffer(SocketId socket);
  void flush(SocketId socket);
  /// As `flush`, but what the system takes at once goes at once: these bytes are returned, and
  /// `on_written` comes only for the rest.
  std::size_t flush_now(SocketId socket);
  /// Ends both directions at once; `on_closed` follows.
  void abort(SocketId socket);
  void close_listener(SocketId listener);
  std::string peer_host(SocketId socket) const;
  std::uint16_t peer_port(SocketId socket) const;

 private:
  struct Native;
  explicit SocketDriver(std::unique_ptr<Native> native);
  std::unique_ptr<Native> native_;
};

}  // namespace troupe::runtime

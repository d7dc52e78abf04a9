#pragma once

// Sockets without a protocol: what strangers and attackers have.
//
// **Threads:** one owner each. All waits are bounded.

#include "tests/runtime/link/link_support.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime::link_test {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// A plain TCP connection to `127.0.0.1:port`.
class RawSocket {
 public:
  explicit RawSocket(int descriptor) : descriptor_(descriptor) {}
  explicit RawSocket(const std::string& address)
      : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::uint16_t port = 0;
    const std::size_t colon = address.rfind(':');
    std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
    const sockaddr_in to = loopback(port);
    if (::connect(descriptor_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
      ::close(descriptor_);
      descriptor_ = -1;
    }
  }
  RawSocket(RawSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RawSocket& operator=(RawSocket&&) = delete;
  ~RawSocket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  bool open() const { return descriptor_ >= 0; }

  /// False when the other side has closed.
  bool send(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t put = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
    return true;
  }
  bool send(const std::vector<char>& bytes) const { return send(std::as_bytes(std::span(bytes))); }
  /// What has come within `limit`; empty at the end of the stream or when nothing came.
  std::vector<std::byte> receive(Duration limit) const {
    pollfd wanted{descriptor_, POLLIN, 0};
    const auto ms = std::chrono::duration_cast<milliseconds>(limit).count();
    if (::poll(&wanted, 1, static_cast<int>(ms)) <= 0) return {};
    std::vector<std::byte> bytes(std::size_t{64} << 10);
    const ssize_t got = ::recv(descriptor_, bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    closed_ = got == 0 || (got < 0 && errno == ECONNRESET);
    return bytes;
  }
  /// Whether the other side closes within `limit`; what it says before is dropped.
  bool closes(Duration limit) const {
    const Deadline deadline = Deadline::in(limit);
    while (!closed_ && !deadline.passed()) (void)receive(milliseconds(20));
    return closed_;
  }

 private:
  int descriptor_;
  mutable bool closed_ = false;
};

/// Accepts one connection and says nothing.
class RawListener {
 public:
  RawListener() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = loopback(0);
    socklen_t size = sizeof at;
    EXPECT_EQ(::bind(descriptor_, reinterpret_cast<const sockaddr*>(&at), size), 0);
    EXPECT_EQ(::listen(descriptor_, 16), 0);
    EXPECT_EQ(::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
  }
  ~RawListener() { ::close(descriptor_); }
  RawListener(const RawListener&) = delete;
  RawListener& operator=(const RawListener&) = delete;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  RawSocket accept() const {
    return RawSocket(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC));
  }
  bool peer_hangs_up(Duration limit) const { return accept().closes(limit); }

 private:
  int descriptor_;
  std::uint16_t port_ = 0;
};

}  // namespace troupe::runtime::link_test

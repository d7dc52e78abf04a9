#pragma once

// `LinkHub`: the sockets of a process; makes authenticated `Channel`s.
//
// Ownership: one per process, made by `main`, destroyed before its ActorSystem. Destroying the hub
// takes every channel down first and joins the I/O thread. CAF's middleman carries the bytes; the
// frames, the handshake and TLS are ours (docs/link_protocol.md).
// **Threads:** every method from any thread but the I/O thread's destructor; callbacks run on the
// I/O thread.
// **Invariants:** nothing here blocks on the network. A peer that fails the handshake never
// becomes a Channel. Memory is bounded by LinkOptions whatever arrives.

#include "runtime/link/channel.hpp"
#include "runtime/link/link_options.hpp"

#include <functional>
#include <memory>
#include <string>

namespace troupe::runtime {

class ActorSystem;

/// Called on the I/O thread once a peer is authenticated: the service of its channel, or why it is
/// refused; the reason reaches the dialler. Sending on the channel is possible at once.
using AcceptPeer =
    std::function<result<std::shared_ptr<ChannelService>>(const PeerName&, Ref<Channel>)>;

class LinkHub {
 public:
  /// kConfig for TLS files that do not load, for a bad name or bounds.
  static result<std::unique_ptr<LinkHub>> open(ActorSystem& system, LinkOptions options);
  ~LinkHub();
  LinkHub(const LinkHub&) = delete;
  LinkHub& operator=(const LinkHub&) = delete;

  /// Binds and keeps the socket; port 0 picks one. Refuses a host that is not loopback without
  /// token and TLS (kConfig) unless LinkOptions::insecure.
  result<ListenAddress> listen(const std::string& host, std::uint16_t port, AcceptPeer accept,
                               ListenOptions options = {});

  /// Dials `host:port`. Ends with the channel, or: kIo (nobody listens, unknown host), kDeadline,
  /// kConflict (wrong token, protocol, certificate), or the acceptor's reason. With `peer` set, a
  /// peer of another role or name is refused (kConflict).
  pending<Ref<Channel>> connect(const std::string& address, std::shared_ptr<ChannelService> service,
                                Deadline deadline, std::optional<PeerName> peer = std::nullopt);

  const LinkOptions& options() const;

 private:
  class Impl;
  explicit LinkHub(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::runtime

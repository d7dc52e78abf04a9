#pragma once

// What a process says of its links: who it is, what proves it, how long it waits, what it bounds.
//
// **Threads:** value types.

#include "runtime/link/channel.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace troupe::runtime {

/// PEM files of a private authority (`troupe cert make`). All three or none.
struct TlsFiles {
  std::string authority;    ///< certificate that signed every peer's
  std::string certificate;  ///< of this process
  std::string key;          ///< its private key
  bool enabled() const { return !authority.empty() || !certificate.empty() || !key.empty(); }
  /// The three files as `make_certificate(folder, name, …)` names them.
  static TlsFiles in_folder(const std::string& folder, const std::string& name);
  bool operator==(const TlsFiles&) const = default;
};

struct LinkOptions {
  PeerName self;
  std::string token{};  ///< join token; empty: frames carry CRC-32C and peers are not authenticated
  TlsFiles tls{};
  /// Permits listening beyond loopback without token and TLS: the network itself is trusted.
  bool insecure = false;

  Duration heartbeat = std::chrono::milliseconds(500);
  Duration dead_after = std::chrono::seconds(3);        ///< of silence
  Duration handshake_within = std::chrono::seconds(5);  ///< then a mute connection is closed
  std::size_t frame_bytes_max = std::size_t{1} << 20;
  std::size_t queue_bytes_max = std::size_t{64} << 20;  ///< of one channel, to send
  std::size_t requests_max = std::size_t{1} << 16;      ///< of one channel, unanswered
  std::size_t connections_max = 4096;                   ///< of the hub, accepted ones
  std::size_t unauthenticated_max = 128;                ///< of these, not yet through the handshake
};

struct ListenOptions {
  /// A second peer with the role and name of a connected one is refused with kAlreadyExists.
  bool unique_names = false;
};

struct ListenAddress {
  std::string host;
  std::uint16_t port = 0;
  /// `host:port`, as `LinkHub::connect` takes it
  std::string to_string() const;
};

}  // namespace troupe::runtime

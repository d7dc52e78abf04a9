#pragma once

// `Connection`: one socket's life between its bytes and its envelopes: TLS, handshake, frames,
// heartbeats. Everything but the socket.
//
// Internal to runtime/link; the hub drives it and so do tests, with bytes of their own.
// **Threads:** one owner. No clock, no I/O inside; randomness comes in as the nonce.
// **Invariants:** no envelope is handed on before both ends proved themselves. Every call appends
// what must be sent to the buffer it is given. After an error nothing but `last_words` is called.

#include "runtime/link/frame_reader.hpp"
#include "runtime/link/handshake.hpp"
#include "runtime/link/liveness.hpp"
#include "runtime/link/tls.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// What a connection tells its owner.
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  /// The peer proved itself. An error refuses it (acceptor) or hangs up (dialler).
  virtual result<void> on_peer(const PeerName& peer) = 0;
  virtual result<void> on_envelope(std::span<const std::byte> envelope) = 0;
};

struct ConnectionOptions {
  HandshakeOptions handshake{};  ///< its binding is filled in here
  Duration heartbeat{};
  Duration dead_after{};
  Duration handshake_within{};
  std::size_t frame_bytes_max = 0;
};

class Connection {
 public:
  Connection(LinkSide side, ConnectionOptions options, std::optional<TlsStream> tls,
             ConnectionEvents& events, TimePoint now);

  /// Once, first: a dialler starts to speak.
  result<void> start(std::vector<char>& out);
  result<void> received(std::span<const std::byte> bytes, TimePoint now, std::vector<char>& out);
  /// Every heartbeat interval or more often. kDeadline: no handshake in time; kRankDead: silence.
  /// With `idle` false a heartbeat is not due: bytes wait to be sent already.
  result<void> tick(TimePoint now, bool idle, std::vector<char>& out);

  bool established() const { return established_; }
  /// Established connections only; TLS needs `flush` after the last of several.
  void send(std::span<const std::byte> envelope, std::vector<char>& out);
  result<void> flush(TimePoint now, std::vector<char>& out);
  /// Tells the peer why this ends: a refusal during the handshake, a goodbye after it.
  void last_words(const Error& why, std::vector<char>& out);

 private:
  result<void> begin(std::vector<char>& out);
  result<void> take_frames(std::vector<char>& out);
  result<void> shake(const LinkFrame& frame, std::vector<char>& out);
  void say(const HandshakeMessage& message, std::vector<char>& out);
  std::vector<char>& plain_target(std::vector<char>& out) { return tls_ ? plain_out_ : out; }

  const LinkSide side_;
  ConnectionOptions options_;
  std::optional<TlsStream> tls_;
  ConnectionEvents& events_;
  const TimePoint began_;
  std::optional<Handshake> handshake_;  // once TLS is up
  FrameReader reader_;
  FrameWriter writer_;
  Liveness liveness_;
  std::vector<std::byte> plain_in_;
  std::vector<char> plain_out_;
  bool heard_ = false;
  bool established_ = false;
};

}  // namespace troupe::runtime

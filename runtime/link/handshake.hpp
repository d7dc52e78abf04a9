#pragma once

// The handshake of a link: both ends prove that they hold the join token, and agree on keys.
//
//   dialler → hello(version, role, name, seal, nonce)      acceptor → challenge(the same)
//   dialler → proof(HMAC)                                  acceptor → welcome(HMAC) or refuse
//
// The HMAC-SHA256 runs under the token over both messages, and over keying material of the TLS
// session when there is one, so that neither a recorded nor a relayed proof fits another session.
// The dialler proves first: who does not hold the token learns nothing made with it.
// **Threads:** one owner. Pure: the nonce comes from outside, time bounds are the caller's.
// **Invariants:** the token never travels. Ends with and without a token refuse each other. Proofs
// are compared in constant time; a handshake that failed stays failed.

#include "runtime/link/channel.hpp"
#include "runtime/link/frame_reader.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

inline constexpr std::uint16_t kHandshakeVersion = 1;
inline constexpr std::size_t kPeerNameBytesMax = 256;
using Nonce = std::array<std::byte, 32>;

enum class LinkSide : std::uint8_t { kDialler, kAcceptor };

/// kConfig unless it has 1..256 printable ASCII characters without spaces.
result<void> check_peer_name(const PeerName& name);

struct HandshakeOptions {
  PeerName self{};
  std::string token{};
  Nonce nonce{};                     ///< fresh random bytes
  std::vector<std::byte> binding{};  ///< of the TLS session; empty without TLS
  std::optional<PeerName> peer{};    ///< dialler: who must answer
};

struct HandshakeMessage {
  FrameKind kind = FrameKind::kHello;
  std::vector<std::byte> payload;
};

/// What `step` asks its caller to do.
struct HandshakeStep {
  std::optional<HandshakeMessage> send{};
  /// Acceptor: the peer proved itself; answer with `welcome` or a refusal.
  bool verified = false;
  /// Dialler: both ends are sure of each other.
  bool done = false;
};

struct SessionKeys {
  FrameSeal send;
  FrameSeal receive;
};

class Handshake {
 public:
  Handshake(LinkSide side, HandshakeOptions options);

  /// Dialler: the first message.
  HandshakeMessage hello() const;
  /// The peer's message. An error ends the handshake; `refusal` tells the peer, unless the error
  /// is its own refusal (`refused_by_peer`).
  result<HandshakeStep> step(FrameKind kind, std::span<const std::byte> payload);
  /// Acceptor, once verified.
  HandshakeMessage welcome() const;
  static HandshakeMessage refusal(const Error& why);

  const PeerName& peer() const { return peer_; }
  bool refused_by_peer() const { return refused_by_peer_; }
  /// Once the messages of both ends are known: the seals of the session.
  SessionKeys session_keys() const;

 private:
  enum class State : std::uint8_t { kHello, kChallenge, kProof, kWelcome, kDone, kFailed };

  result<void> read_introduction(std::span<const std::byte> payload);
  result<void> check_proof(std::string_view label, std::span<const std::byte> proof) const;
  result<HandshakeStep> advance(FrameKind kind, std::span<const std::byte> payload);
  std::vector<std::byte> introduction() const;
  std::vector<std::byte> proof(std::string_view label) const;
  std::array<std::byte, 32> keyed(std::string_view label) const;

  const LinkSide side_;
  const HandshakeOptions options_;
  State state_;
  std::vector<std::byte> hello_;      // as sent
  std::vector<std::byte> challenge_;  // as sent
  PeerName peer_;
  bool refused_by_peer_ = false;
};

}  // namespace troupe::runtime

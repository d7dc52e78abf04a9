#include "runtime/link/handshake.hpp"

#include "runtime/base/check.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>

namespace troupe::runtime {
namespace {

constexpr std::string_view kDiallerProof = "troupe link dialler proof";
constexpr std::string_view kAcceptorProof = "troupe link acceptor proof";
constexpr std::string_view kDiallerKey = "troupe link key from dialler";
constexpr std::string_view kAcceptorKey = "troupe link key from acceptor";
constexpr std::size_t kReasonBytesMax = 512;

/// Appends integers and strings to a message.
class Writer {
 public:
  template <class T>
  void number(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof value);
  }
  void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void text(std::string_view text) {
    number(static_cast<std::uint16_t>(text.size()));
    raw(std::as_bytes(std::span(text)));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Takes them off again; past the end it gives zeros and remembers.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T number() {
    T value{};
    const auto from = raw(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> raw(std::size_t count) {
    if (count > bytes_.size()) {
      torn_ = true;
      return {};
    }
    const auto part = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return part;
  }
  std::string text() {
    const auto part = raw(number<std::uint16_t>());
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  /// Whether exactly what there was has been read.
  bool whole() const { return !torn_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool torn_ = false;
};

/// What a refusal says may come from anybody: shown without control characters.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string_view kind_name(FrameKind kind) {
  constexpr std::array<std::string_view, 7> kNames{"",        "hello",   "challenge", "proof",
                                                   "welcome", "refusal", "envelope"};
  return kNames[static_cast<std::size_t>(kind)];
}

SealKind seal_for(const std::string& token) {
  return token.empty() ? SealKind::kChecksum : SealKind::kKeyed;
}

}  // namespace

result<void> check_peer_name(const PeerName& name) {
  if (name.role > PeerRole::kClient)
    return fail(ErrorCode::kConfig, "peer name: role {}, wanted 0..4", int(name.role));
  if (name.name.empty() || name.name.size() > kPeerNameBytesMax)
    return fail(ErrorCode::kConfig, "peer name: {} characters, wanted 1..{}", name.name.size(),
                kPeerNameBytesMax);
  const bool plain = std::all_of(name.name.begin(), name.name.end(),
                                 [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (!plain)
    return fail(ErrorCode::kConfig, "peer name '{}': wanted printable ASCII without spaces",
                printable(name.name));
  return {};
}

Handshake::Handshake(LinkSide side, HandshakeOptions options)
    : side_(side),
      options_(std::move(options)),
      state_(side == LinkSide::kDialler ? State::kChallenge : State::kHello) {
  (side_ == LinkSide::kDialler ? hello_ : challenge_) = introduction();
}

std::vector<std::byte> Handshake::introduction() const {
  Writer writer;
  writer.number(kHandshakeVersion);
  writer.number(static_cast<std::uint8_t>(options_.self.role));
  writer.number(static_cast<std::uint8_t>(seal_for(options_.token)));
  writer.raw(options_.nonce);
  writer.text(options_.self.name);
  return writer.take();
}

HandshakeMessage Handshake::hello() const { return {FrameKind::kHello, hello_}; }

result<void> Handshake::read_introduction(std::span<const std::byte> payload) {
  Reader reader(payload);
  const auto version = reader.number<std::uint16_t>();
  if (version != kHandshakeVersion)
    return fail(ErrorCode::kConflict, "handshake: version {}, wanted {}", version,
                kHandshakeVersion);
  peer_.role = static_cast<PeerRole>(reader.number<std::uint8_t>());
  const auto seal = reader.number<std::uint8_t>();
  (void)reader.raw(sizeof(Nonce));
  peer_.name = reader.text();
  if (!reader.whole())
    return fail(ErrorCode::kCorrupt, "handshake: introduction of {} bytes is torn", payload.size());
  if (const auto named = check_peer_name(peer_); !named)
    return fail(ErrorCode::kCorrupt, "handshake: {}", named.error().message);
  const auto wanted = static_cast<std::uint8_t>(seal_for(options_.token));
  if (seal == wanted) return {};
  const bool token_here = !options_.token.empty();
  return fail(ErrorCode::kConflict, "handshake: {} has {} join token, {} has {}", peer_.to_string(),
              token_here ? "no" : "a", options_.self.to_string(), token_here ? "one" : "none");
}

std::array<std::byte, 32> Handshake::keyed(std::string_view label) const {
  Writer writer;
  writer.text(label);
  for (const auto* part : {&hello_, &challenge_, &options_.binding}) {
    writer.number(static_cast<std::uint32_t>(part->size()));
    writer.raw(*part);
  }
  const auto message = writer.take();
  std::array<std::byte, 32> code{};
  unsigned length = 0;
  const auto* made =
      HMAC(EVP_sha256(), options_.token.data(), static_cast<int>(options_.token.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(code.data()), &length);
  TROUPE_CHECK(made != nullptr && length == code.size(), "handshake: OpenSSL gives no HMAC-SHA256");
  return code;
}

std::vector<std::byte> Handshake::proof(std::string_view label) const {
  if (options_.token.empty()) return {};
  const auto code = keyed(label);
  return {code.begin(), code.end()};
}

result<void> Handshake::check_proof(std::string_view label,
                                    std::span<const std::byte> found) const {
  const auto wanted = proof(label);
  const bool same = found.size() == wanted.size() &&
                    CRYPTO_memcmp(found.data(), wanted.data(), wanted.size()) == 0;
  if (same) return {};
  return fail(ErrorCode::kConflict, "handshake: the join token of {} is not that of {}",
              peer_.to_string(), options_.self.to_string());
}

result<HandshakeStep> Handshake::step(FrameKind kind, std::span<const std::byte> payload) {
  auto next = advance(kind, payload);
  if (!next) state_ = State::kFailed;
  return next;
}

result<HandshakeStep> Handshake::advance(FrameKind kind, std::span<const std::byte> payload) {
  const auto wrong = [&](FrameKind wanted) {
    return fail(ErrorCode::kCorrupt, "handshake: a {} came, wanted a {}", kind_name(kind),
                kind_name(wanted));
  };
  if (kind == FrameKind::kRefuse && state_ != State::kDone && state_ != State::kFailed) {
    Reader reader(payload);
    const std::string code = reader.text();
    const std::string reason = printable(reader.text());
    const auto known = error_code_from_name(code);
    if (!reader.whole() || !known)
      return fail(ErrorCode::kCorrupt, "handshake: refusal of {} bytes is torn", payload.size());
    refused_by_peer_ = true;
    return fail(*known, "refused by the peer: {}", reason);
  }
  HandshakeStep step;
  switch (state_) {
    case State::kHello:
      if (kind != FrameKind::kHello) return wrong(FrameKind::kHello);
      TROUPE_TRY_VOID(read_introduction(payload));
      hello_.assign(payload.begin(), payload.end());
      step.send = HandshakeMessage{FrameKind::kChallenge, challenge_};
      state_ = State::kProof;
      return step;
    case State::kChallenge:
      if (kind != FrameKind::kChallenge) return wrong(FrameKind::kChallenge);
      TROUPE_TRY_VOID(read_introduction(payload));
      if (options_.peer && *options_.peer != peer_)
        return fail(ErrorCode::kConflict, "handshake: {} answered, wanted {}", peer_.to_string(),
                    options_.peer->to_string());
      challenge_.assign(payload.begin(), payload.end());
      step.send = HandshakeMessage{FrameKind::kProof, proof(kDiallerProof)};
      state_ = State::kWelcome;
      return step;
    case State::kProof:
      if (kind != FrameKind::kProof) return wrong(FrameKind::kProof);
      TROUPE_TRY_VOID(check_proof(kDiallerProof, payload));
      step.verified = true;
      state_ = State::kDone;
      return step;
    case State::kWelcome:
      if (kind != FrameKind::kWelcome) return wrong(FrameKind::kWelcome);
      TROUPE_TRY_VOID(check_proof(kAcceptorProof, payload));
      step.done = true;
      state_ = State::kDone;
      return step;
    case State::kDone:
    case State::kFailed:
      break;
  }
  return fail(ErrorCode::kCorrupt, "handshake: a {} came after its end", kind_name(kind));
}

HandshakeMessage Handshake::welcome() const { return {FrameKind::kWelcome, proof(kAcceptorProof)}; }

HandshakeMessage Handshake::refusal(const Error& why) {
  Writer writer;
  writer.text(error_code_name(why.code));
  writer.text(std::string_view(why.message).substr(0, kReasonBytesMax));
  return {FrameKind::kRefuse, writer.take()};
}

SessionKeys Handshake::session_keys() const {
  if (options_.token.empty()) return {};
  const auto seal = [this](std::string_view label) {
    const auto code = keyed(label);
    SealKey key{};
    std::copy_n(code.begin(), key.size(), key.begin());
    return FrameSeal(key);
  };
  const bool dialler = side_ == LinkSide::kDialler;
  return {seal(dialler ? kDiallerKey : kAcceptorKey), seal(dialler ? kAcceptorKey : kDiallerKey)};
}

}  // namespace troupe::runtime

#include "runtime/link/connection.hpp"

#include "runtime/base/check.hpp"
#include "runtime/batch/envelope_codec.hpp"

namespace troupe::runtime {
namespace {

/// The type of the first TLS record of either side.
constexpr std::byte kTlsHandshake{22};

const std::vector<std::byte>& heartbeat_envelope() {
  static const std::vector<std::byte> kBytes = [] {
    Envelope beat;
    beat.kind = MessageKind::kHeartbeat;
    auto bytes = encode_envelope(beat);
    TROUPE_CHECK(bytes, "link: no heartbeat: {}", bytes.error().message);
    return std::move(*bytes);
  }();
  return kBytes;
}

/// A goodbye whose size does not depend on what the error drags along.
std::vector<std::byte> goodbye_envelope(const Error& why) {
  constexpr std::size_t kMessageBytes = 4096;
  Envelope goodbye;
  goodbye.kind = MessageKind::kAbort;
  goodbye.error = why;
  auto bytes = encode_envelope(goodbye);
  if (bytes && bytes->size() <= 4 * kMessageBytes) return std::move(*bytes);
  goodbye.error = Error{.code = why.code,
                        .message = why.to_string().substr(0, kMessageBytes),
                        .origin = {},
                        .causes = {}};
  bytes = encode_envelope(goodbye);
  return bytes ? std::move(*bytes) : std::vector<std::byte>();
}

}  // namespace

Connection::Connection(LinkSide side, ConnectionOptions options, std::optional<TlsStream> tls,
                       ConnectionEvents& events, TimePoint now)
    : side_(side),
      options_(std::move(options)),
      tls_(std::move(tls)),
      events_(events),
      began_(now),
      liveness_(options_.heartbeat, options_.dead_after, now) {}

result<void> Connection::start(std::vector<char>& out) {
  if (!tls_) return begin(out);
  if (side_ == LinkSide::kDialler) TROUPE_TRY_VOID(tls_->start());
  tls_->drain(out);
  return {};
}

/// The line below is ready: introduce ourselves, or wait for who dialled.
result<void> Connection::begin(std::vector<char>& out) {
  if (tls_) options_.handshake.binding = tls_->binding();
  handshake_.emplace(side_, options_.handshake);
  if (side_ == LinkSide::kDialler) say(handshake_->hello(), out);
  return {};
}

void Connection::say(const HandshakeMessage& message, std::vector<char>& out) {
  writer_.append(message.kind, message.payload, plain_target(out));
}

result<void> Connection::received(std::span<const std::byte> bytes, TimePoint now,
                                  std::vector<char>& out) {
  liveness_.heard(now);
  if (!tls_) {
    reader_.feed(bytes);
    return take_frames(out);
  }
  if (!std::exchange(heard_, true) && !bytes.empty() && bytes[0] != kTlsHandshake)
    return fail(ErrorCode::kConflict, "the peer does not speak TLS, this end does");
  plain_in_.clear();
  const auto taken = tls_->received(bytes, plain_in_);
  result<void> outcome;
  if (tls_->established() && !handshake_) outcome = begin(out);
  if (outcome) {
    reader_.feed(plain_in_);
    outcome = take_frames(out);
  }
  if (outcome) outcome = taken;
  // An answer of ours counts as sent; what TLS says of itself does not put off a heartbeat.
  if (outcome && !plain_out_.empty()) outcome = flush(now, out);
  tls_->drain(out);
  return outcome;
}

result<void> Connection::take_frames(std::vector<char>& out) {
  while (true) {
    TROUPE_TRY(const auto frame, reader_.next());
    if (!frame) return {};
    if (!established_) {
      TROUPE_TRY_VOID(shake(*frame, out));
    } else if (frame->kind == FrameKind::kEnvelope) {
      TROUPE_TRY_VOID(events_.on_envelope(frame->payload));
    } else {
      return fail(ErrorCode::kCorrupt, "frame of kind {} after the handshake", int(frame->kind));
    }
  }
}

result<void> Connection::shake(const LinkFrame& frame, std::vector<char>& out) {
  TROUPE_CHECK(handshake_.has_value(), "connection: a frame before its handshake");
  TROUPE_TRY(const HandshakeStep step, handshake_->step(frame.kind, frame.payload));
  if (step.send) say(*step.send, out);
  if (!step.verified && !step.done) return {};
  TROUPE_TRY_VOID(events_.on_peer(handshake_->peer()));
  if (step.verified) say(handshake_->welcome(), out);
  SessionKeys keys = handshake_->session_keys();
  writer_.set_seal(std::move(keys.send));
  reader_.set_seal(std::move(keys.receive));
  reader_.set_payload_bytes_max(options_.frame_bytes_max);
  established_ = true;
  return {};
}

result<void> Connection::tick(TimePoint now, bool idle, std::vector<char>& out) {
  if (!established_) {
    if (now - began_ < options_.handshake_within) return {};
    return fail(ErrorCode::kDeadline, "no handshake within {:.1f} s",
                seconds(options_.handshake_within));
  }
  switch (liveness_.tick(now)) {
    case Liveness::Verdict::kDead: {
      const double silent_s = seconds(liveness_.silence(now));
      Error silence{
          .code = ErrorCode::kDeadline,
          .message = fmt::format("no sign of life for {:.1f} s: stopped, or cut off", silent_s),
          .origin = {},
          .causes = {}};
      return fail(std::move(silence).wrap(
          ErrorCode::kRankDead, fmt::format("silent for {:.1f} s, at most {:.1f} s", silent_s,
                                            seconds(options_.dead_after))));
    }
    case Liveness::Verdict::kBeat:
      if (!idle) return {};
      send(heartbeat_envelope(), out);
      return flush(now, out);
    case Liveness::Verdict::kFine:
      break;
  }
  return {};
}

void Connection::send(std::span<const std::byte> envelope, std::vector<char>& out) {
  writer_.append(FrameKind::kEnvelope, envelope, plain_target(out));
}

result<void> Connection::flush(TimePoint now, std::vector<char>& out) {
  liveness_.sent(now);
  if (!tls_) return {};
  auto sent = tls_->send(plain_out_, out);
  plain_out_.clear();
  return sent;
}

void Connection::last_words(const Error& why, std::vector<char>& out) {
  if (established_) {
    send(goodbye_envelope(why), out);
  } else if (!handshake_ || !handshake_->refused_by_peer()) {
    // Below TLS only an alert can be said. Where there is none, the peer spoke no TLS, or not yet.
    const std::size_t before = out.size();
    if (tls_) tls_->drain(out);
    const bool alerted = out.size() > before;
    std::vector<char>& target = tls_ && tls_->established() ? plain_out_ : out;
    const HandshakeMessage refusal = Handshake::refusal(why);
    if (!alerted || &target != &out) writer_.append(refusal.kind, refusal.payload, target);
  }
  if (!tls_) return;
  if (tls_->established()) {
    (void)tls_->send(plain_out_, out);  // nobody is left to be told of an error
    plain_out_.clear();
    tls_->finish();
  }
  tls_->drain(out);
}

}  // namespace troupe::runtime

#include "runtime/batch/envelope_codec.hpp"

#include "runtime/batch/checksum.hpp"
#include "runtime/batch/codec_support.hpp"

#include <capnp/serialize.h>
#include <schemas/envelope.capnp.h>

#include <array>
#include <cstring>
#include <limits>

namespace troupe::runtime {
namespace {

bool carries_error(MessageKind kind) {
  return kind == MessageKind::kError || kind == MessageKind::kAbort;
}

void write_error(const Error& error, schemas::ErrorReply::Builder out, std::size_t depth) {
  out.setCode(std::string(error_code_name(error.code)));
  out.setMessage(whole_text(error.message));
  out.setGroup(whole_text(error.origin.group));
  out.setRank(error.origin.rank ? error.origin.rank->value : -1);
  out.setNode(error.origin.node ? error.origin.node->value : -1);
  if (depth >= kCauseDepthMax) return;
  auto causes = out.initCauses(list_size(std::min(error.causes.size(), kCausesMax)));
  for (unsigned i = 0; i < causes.size(); ++i) write_error(error.causes[i], causes[i], depth + 1);
}

result<Error> read_error(schemas::ErrorReply::Reader in, std::size_t depth) {
  const std::string code = text_of(in.getCode());
  const std::optional<ErrorCode> known = error_code_from_name(code);
  if (!known) return fail(ErrorCode::kCorrupt, "envelope: error code '{}' is unknown", code);
  if (in.getRank() < -1 || in.getNode() < -1)
    return fail(ErrorCode::kCorrupt, "envelope: error of rank {}, node {}", in.getRank(),
                in.getNode());
  Error error{.code = *known,
              .message = text_of(in.getMessage()),
              .origin = {.group = text_of(in.getGroup()), .rank = {}, .node = {}},
              .causes = {}};
  if (in.getRank() >= 0) error.origin.rank = RankId{in.getRank()};
  if (in.getNode() >= 0) error.origin.node = NodeId{in.getNode()};
  const auto causes = in.getCauses();
  const std::size_t most = depth >= kCauseDepthMax ? 0 : kCausesMax;
  if (causes.size() > most)
    return fail(ErrorCode::kCorrupt, "envelope: {} error causes at depth {}, wanted at most {}",
                causes.size(), depth, most);
  for (const auto cause : causes) {
    TROUPE_TRY(Error decoded, read_error(cause, depth + 1));
    error.causes.push_back(std::move(decoded));
  }
  return error;
}

result<void> write_payload(const PayloadReference& payload,
                           schemas::PayloadReference::Builder out) {
  out.setBytes(payload.bytes);
  out.setChecksum(payload.checksum);
  if (const auto* inside = std::get_if<std::vector<std::byte>>(&payload.place)) {
    if (inside->size() != payload.bytes)
      return fail(ErrorCode::kInvalidArgument, "envelope: payload of {} bytes says {}",
                  inside->size(), payload.bytes);
    if (inside->size() > kControlFrameBytesMax)
      return fail(ErrorCode::kInvalidArgument, "envelope: payload of {} bytes, wanted at most {}",
                  inside->size(), kControlFrameBytesMax);
    out.setInFrame(
        capnp::Data::Reader(reinterpret_cast<const kj::byte*>(inside->data()), inside->size()));
  } else if (const auto* held = std::get_if<HeldPayload>(&payload.place)) {
    auto place = out.initHeld();
    place.setGroup(whole_text(held->group));
    place.setRank(held->rank.value);
    place.setId(held->id);
  }
  return {};
}

result<PayloadReference> read_payload(schemas::PayloadReference::Reader in, bool checksums) {
  PayloadReference payload{.place = {}, .bytes = in.getBytes(), .checksum = in.getChecksum()};
  switch (in.which()) {
    case schemas::PayloadReference::NONE:
      if (payload.bytes != 0)
        return fail(ErrorCode::kCorrupt, "envelope: no payload, yet {} bytes", payload.bytes);
      return payload;
    case schemas::PayloadReference::IN_FRAME: {
      const auto data = in.getInFrame();
      if (data.size() != payload.bytes)
        return fail(ErrorCode::kCorrupt, "envelope: payload of {} bytes says {}", data.size(),
                    payload.bytes);
      const auto* bytes = reinterpret_cast<const std::byte*>(data.begin());
      const std::uint32_t found = crc32c({bytes, data.size()});
      if (checksums && found != payload.checksum)
        return fail(ErrorCode::kCorrupt, "envelope: payload checksum {:08x}, wanted {:08x}", found,
                    payload.checksum);
      payload.place = std::vector<std::byte>(bytes, bytes + data.size());
      return payload;
    }
    case schemas::PayloadReference::HELD: {
      const auto held = in.getHeld();
      if (held.getRank() < 0)
        return fail(ErrorCode::kCorrupt, "envelope: payload held by rank {}", held.getRank());
      payload.place = HeldPayload{text_of(held.getGroup()), RankId{held.getRank()}, held.getId()};
      return payload;
    }
  }
  return fail(ErrorCode::kCorrupt, "envelope: payload of kind {}, wanted 0..2",
              static_cast<unsigned>(in.which()));
}

result<Envelope> read_envelope(schemas::Envelope::Reader in, bool checksums) {
  const auto kind = static_cast<unsigned>(in.getKind());
  if (kind > static_cast<unsigned>(MessageKind::kAbort))
    return fail(ErrorCode::kCorrupt, "envelope: kind {}, wanted 0..4", kind);
  if (in.getSourceRank() < -1)
    return fail(ErrorCode::kCorrupt, "envelope: from rank {}", in.getSourceRank());
  Envelope envelope;
  envelope.kind = static_cast<MessageKind>(kind);
  envelope.call = CallId{in.getCallId()};
  envelope.group = text_of(in.getGroup());
  envelope.method = text_of(in.getMethod());
  envelope.remaining = Duration(in.getRemainingNanoseconds());
  envelope.sent_wall_ns = in.getSentWallNanoseconds();
  if (in.getSourceRank() >= 0) envelope.source = RankId{in.getSourceRank()};
  envelope.epoch = in.getEpoch();
  envelope.trace = in.getTraceId();
  TROUPE_TRY(envelope.payload, read_payload(in.getPayload(), checksums));
  if (in.hasError() != carries_error(envelope.kind))
    return fail(ErrorCode::kCorrupt, "envelope: {} {} an error", message_kind_name(envelope.kind),
                in.hasError() ? "carries" : "lacks");
  if (in.hasError()) {
    TROUPE_TRY(envelope.error, read_error(in.getError(), 0));
  }
  return envelope;
}

}  // namespace

std::string_view message_kind_name(MessageKind kind) {
  constexpr std::array<std::string_view, 5> kNames{"call", "result", "error", "heartbeat", "abort"};
  return kNames[static_cast<std::size_t>(kind)];
}

PayloadReference payload_in_frame(std::vector<std::byte> bytes) {
  PayloadReference payload{.place = {}, .bytes = bytes.size(), .checksum = crc32c(bytes)};
  payload.place = std::move(bytes);
  return payload;
}

Deadline Envelope::deadline(TimePoint received) const {
  // A hostile or broken sender must not overflow the clock.
  constexpr Duration kFarthest = std::chrono::hours(24 * 365);
  return Deadline{received + std::clamp(remaining, -kFarthest, kFarthest)};
}

result<std::vector<std::byte>> encode_envelope(const Envelope& envelope) {
  if (envelope.error.has_value() != carries_error(envelope.kind))
    return fail(ErrorCode::kInvalidArgument, "envelope: {} {} an error",
                message_kind_name(envelope.kind), envelope.error ? "carries" : "lacks");
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<schemas::Envelope>();
  out.setKind(static_cast<schemas::MessageKind>(envelope.kind));
  out.setCallId(envelope.call.value);
  out.setGroup(whole_text(envelope.group));
  out.setMethod(whole_text(envelope.method));
  out.setRemainingNanoseconds(envelope.remaining.count());
  out.setSentWallNanoseconds(envelope.sent_wall_ns);
  out.setSourceRank(envelope.source ? envelope.source->value : -1);
  out.setEpoch(envelope.epoch);
  out.setTraceId(envelope.trace);
  TROUPE_TRY_VOID(write_payload(envelope.payload, out.initPayload()));
  if (envelope.error) write_error(*envelope.error, out.initError(), 0);
  const std::size_t bytes = capnp::computeSerializedSizeInWords(message) * sizeof(capnp::word);
  if (bytes > kControlFrameBytesMax)
    return fail(ErrorCode::kInvalidArgument, "envelope: {} of {}.{}: {} bytes, wanted at most {}",
                message_kind_name(envelope.kind), envelope.group, envelope.method, bytes,
                kControlFrameBytesMax);
  const kj::Array<capnp::word> flat = capnp::messageToFlatArray(message);
  const auto* begin = reinterpret_cast<const std::byte*>(flat.begin());
  return std::vector<std::byte>(begin, begin + bytes);
}

result<Envelope> decode_envelope(std::span<const std::byte> frame, bool checksums) {
  if (frame.size() > kControlFrameBytesMax)
    return fail(ErrorCode::kCorrupt, "envelope: {} bytes, wanted at most {}", frame.size(),
                kControlFrameBytesMax);
  if (frame.size() % sizeof(capnp::word) != 0 || frame.empty())
    return fail(ErrorCode::kCorrupt, "envelope: {} bytes, wanted whole words of {}", frame.size(),
                sizeof(capnp::word));
  std::vector<capnp::word> words(frame.size() / sizeof(capnp::word));  // aligned, whatever came
  std::memcpy(static_cast<void*>(words.data()), frame.data(), frame.size());
  return guarded_decode<Envelope>("envelope", [&]() -> result<Envelope> {
    capnp::FlatArrayMessageReader message(kj::arrayPtr(words.data(), words.size()),
                                          reader_options(frame.size()));
    TROUPE_TRY_VOID(check_end(message.getEnd(), std::as_bytes(std::span(words)), "envelope"));
    return read_envelope(message.getRoot<schemas::Envelope>(), checksums);
  });
}

}  // namespace troupe::runtime

#include "runtime/comm/transport_wire.hpp"

#include "runtime/base/check.hpp"
#include "runtime/comm/session_mac.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace troupe::runtime {
namespace {

constexpr std::uint32_t kMessageMagic = 0x58505254;  // "TRPX"
constexpr std::uint32_t kAddressMagic = 0x41505254;  // "TRPA"
constexpr std::uint16_t kVersion = 1;
constexpr std::size_t kTextMax = 256;
constexpr std::size_t kLanesMax = std::size_t{32} << 10;
constexpr std::size_t kAddressMax = 2 * kLanesMax + 4 * kTextMax;

/// Appends fixed-width integers and counted byte strings.
class ByteWriter {
 public:
  template <class T>
  void put(T value) {
    static_assert(std::is_integral_v<T>);
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void counted(std::span<const std::byte> bytes) {
    put(static_cast<std::uint32_t>(bytes.size()));
    raw(bytes);
  }
  void counted(std::string_view text) { counted(std::as_bytes(std::span(text))); }
  std::vector<std::byte> take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads what ByteWriter wrote; after the first bound that fails it gives zeros and `ok` is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T value{};
    const auto bytes = raw(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> raw(std::size_t count) {
    if (count > bytes_.size()) return refuse();
    const auto part = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return part;
  }
  std::span<const std::byte> counted(std::size_t most) {
    const auto count = get<std::uint32_t>();
    return count > most ? refuse() : raw(count);
  }
  std::string text(std::size_t most) {
    const auto part = counted(most);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::size_t left() const { return bytes_.size(); }
  /// Everything was there and nothing is left.
  bool whole() const { return ok_ && bytes_.empty(); }

 private:
  /// Nothing more is read, so that whoever reads while something is left comes to an end.
  std::span<const std::byte> refuse() {
    ok_ = false;
    bytes_ = {};
    return {};
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace

std::vector<std::byte> encode_address(const TransportAddress& address) {
  ByteWriter out;
  out.put(kAddressMagic);
  out.put(kVersion);
  out.put(address.epoch);
  out.put(address.pid);
  out.put(address.probe_place);
  out.raw(address.probe);
  out.counted(std::string_view(address.name).substr(0, kTextMax));
  out.counted(std::string_view(address.host).substr(0, kTextMax));
  out.counted(std::string_view(address.lane_version).substr(0, kTextMax));
  out.counted(address.lanes);
  out.counted(address.network_lanes);
  return std::move(out).take();
}

result<TransportAddress> decode_address(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  if (in.get<std::uint32_t>() != kAddressMagic || in.get<std::uint16_t>() != kVersion)
    return fail(ErrorCode::kCorrupt,
                "transport address: {} bytes that are no address of version {}", bytes.size(),
                kVersion);
  TransportAddress address;
  address.epoch = in.get<std::uint64_t>();
  address.pid = in.get<std::int64_t>();
  address.probe_place = in.get<std::uint64_t>();
  const auto probe = in.raw(address.probe.size());
  std::copy(probe.begin(), probe.end(), address.probe.begin());
  address.name = in.text(kTextMax);
  address.host = in.text(kTextMax);
  address.lane_version = in.text(kTextMax);
  const auto lanes = in.counted(kLanesMax);
  address.lanes.assign(lanes.begin(), lanes.end());
  const auto network_lanes = in.counted(kLanesMax);
  address.network_lanes.assign(network_lanes.begin(), network_lanes.end());
  if (!in.whole() || address.epoch == 0)
    return fail(ErrorCode::kCorrupt, "transport address: torn, {} bytes of epoch {:x}",
                bytes.size(), address.epoch);
  return address;
}

MessageBytes seal_message(const SessionKey& key, const MessageHeader& header,
                          std::span<const std::byte> control) {
  ByteWriter out;
  out.put(kMessageMagic);
  out.put(kVersion);
  out.put(static_cast<std::uint16_t>(header.type));
  out.put(header.from);
  out.put(header.to);
  out.put(header.sequence);
  out.put(header.pull);
  out.put(header.chunk);
  out.put(header.flags);
  out.put(header.connection);
  out.put(header.bytes);
  out.put(header.remaining_ns);
  const std::vector<std::byte> head = std::move(out).take();
  const SessionMac mac = session_mac(key, head, control);
  MessageBytes bytes{};
  TROUPE_DCHECK(head.size() + sizeof(mac) == sizeof(bytes), "header of {} bytes", head.size());
  std::copy(head.begin(), head.end(), bytes.begin());
  std::copy(mac.begin(), mac.end(), bytes.end() - sizeof(mac));
  return bytes;
}

namespace {

/// The fields as they lie; nothing is trusted before the MAC was checked.
MessageHeader parse_header(std::span<const std::byte> head, std::uint32_t& magic,
                           std::uint16_t& version, std::uint16_t& type) {
  ByteReader in(head);
  magic = in.get<std::uint32_t>();
  version = in.get<std::uint16_t>();
  type = in.get<std::uint16_t>();
  MessageHeader header;
  header.type = static_cast<MessageType>(type);
  header.from = in.get<std::uint64_t>();
  header.to = in.get<std::uint64_t>();
  header.sequence = in.get<std::uint64_t>();
  header.pull = in.get<std::uint64_t>();
  header.chunk = in.get<std::uint32_t>();
  header.flags = in.get<std::uint16_t>();
  header.connection = in.get<std::uint16_t>();
  header.bytes = in.get<std::uint64_t>();
  header.remaining_ns = in.get<std::uint64_t>();
  return header;
}

}  // namespace

result<MessageHeader> open_message(const SessionKey& key, std::uint64_t self,
                                   std::span<const std::byte> head, std::size_t payload_bytes,
                                   std::span<const std::byte> payload) {
  if (head.size() != kMessageHeaderBytes)
    return fail(ErrorCode::kCorrupt, "header of {} bytes, wanted {}", head.size(),
                kMessageHeaderBytes);
  const auto signed_part = head.first(kMessageHeaderBytes - sizeof(SessionMac));
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  std::uint16_t type = 0;
  const MessageHeader header = parse_header(signed_part, magic, version, type);
  const bool is_data = header.type == MessageType::kData;
  if (!is_data && (payload.size() != payload_bytes || payload_bytes > kControlBytesMax))
    return fail(ErrorCode::kCorrupt, "message type {} with {} bytes of payload", type,
                payload_bytes);
  const SessionMac mac =
      session_mac(key, signed_part, is_data ? std::span<const std::byte>() : payload);
  if (!same_mac(mac, std::span<const std::byte, 16>(head.last(sizeof(SessionMac)))))
    return fail(ErrorCode::kCorrupt, "header whose mac is not of this session");
  if (magic != kMessageMagic || version != kVersion)
    return fail(ErrorCode::kCorrupt, "header of version {}, wanted {}", version, kVersion);
  if (type < static_cast<std::uint16_t>(MessageType::kRequest) ||
      type > static_cast<std::uint16_t>(MessageType::kGoodbye))
    return fail(ErrorCode::kCorrupt, "message type {}, wanted 1..6", type);
  if (header.to != self)
    return fail(ErrorCode::kCorrupt, "message to epoch {:x}, this is {:x}", header.to, self);
  if (header.bytes != payload_bytes || header.bytes > static_cast<std::uint64_t>(kChunkBytesMax))
    return fail(ErrorCode::kCorrupt, "payload of {} bytes, the header says {}", payload_bytes,
                header.bytes);
  return header;
}

std::vector<std::byte> encode_request(const Request& request) {
  ByteWriter out;
  if (!request.reader.empty()) out.counted(request.reader);
  for (const RequestPart& part : request.parts) {
    out.put(part.chunk);
    out.put(part.column);
    out.put(part.first);
    out.put(part.rows);
    out.put(part.bytes);
    out.put(part.skip);
    out.put(part.take);
  }
  return std::move(out).take();
}

result<Request> decode_request(const MessageHeader& header, std::span<const std::byte> payload) {
  ByteReader in(payload);
  Request request;
  if ((header.flags & kFlagIntroduced) != 0) {
    const auto reader = in.counted(kAddressMax);
    request.reader.assign(reader.begin(), reader.end());
  }
  constexpr std::size_t kPartBytes = 56;
  if (in.left() % kPartBytes != 0 || in.left() == 0 || in.left() > kRequestPartsMax * kPartBytes)
    return fail(ErrorCode::kCorrupt, "request of {} bytes of parts, wanted 1..{} of {}", in.left(),
                kRequestPartsMax, kPartBytes);
  std::int64_t total = 0;
  while (in.left() > 0) {
    RequestPart part;
    part.chunk = in.get<std::uint64_t>();
    part.column = in.get<std::uint64_t>();
    part.first = in.get<std::int64_t>();
    part.rows = in.get<std::int64_t>();
    part.bytes = in.get<std::int64_t>();
    part.skip = in.get<std::int64_t>();
    part.take = in.get<std::int64_t>();
    constexpr std::int64_t kMost = std::int64_t{1} << 56;
    const bool fits = part.first >= 0 && part.rows >= 0 && part.bytes >= 0 && part.bytes <= kMost &&
                      part.skip >= 0 && part.take >= 0 && part.skip <= part.bytes &&
                      part.take <= part.bytes - part.skip && part.chunk <= UINT32_MAX;
    if (!fits || part.take > kChunkBytesMax - total)
      return fail(ErrorCode::kCorrupt,
                  "request for bytes {}+{} of {} of rows {}+{}, {} before it, wanted at most {}",
                  part.skip, part.take, part.bytes, part.first, part.rows, total, kChunkBytesMax);
    total += part.take;
    request.parts.push_back(part);
  }
  return request;
}

std::vector<std::byte> encode_places(std::span<const MemoryPlace> places) {
  ByteWriter out;
  for (const MemoryPlace& place : places) {
    out.put(place.address);
    out.put(place.bytes);
  }
  return std::move(out).take();
}

result<std::vector<MemoryPlace>> decode_places(std::span<const std::byte> payload,
                                               std::int64_t wanted) {
  constexpr std::size_t kPlaceBytes = 16;
  if (payload.size() % kPlaceBytes != 0 || payload.size() > kAnswerPiecesMax * kPlaceBytes)
    return fail(ErrorCode::kCorrupt, "places of {} bytes", payload.size());
  std::vector<MemoryPlace> places;
  ByteReader in(payload);
  auto left = static_cast<std::uint64_t>(wanted);
  while (in.left() > 0) {
    MemoryPlace place;
    place.address = in.get<std::uint64_t>();
    place.bytes = in.get<std::uint64_t>();
    if (place.bytes > left)
      return fail(ErrorCode::kCorrupt, "place of {} bytes, {} are left of {}", place.bytes, left,
                  wanted);
    left -= place.bytes;
    places.push_back(place);
  }
  if (left != 0) return fail(ErrorCode::kCorrupt, "places lack {} of {} bytes", left, wanted);
  return places;
}

std::vector<std::byte> encode_failure(const Error& error) {
  constexpr std::size_t kMessageMax = 4096;
  ByteWriter out;
  out.counted(error_code_name(error.code));
  out.counted(std::string_view(error.message).substr(0, kMessageMax));
  out.counted(std::string_view(error.origin.group).substr(0, kTextMax));
  out.put(error.origin.rank ? error.origin.rank->value : std::int32_t{-1});
  return std::move(out).take();
}

Error decode_failure(std::span<const std::byte> payload) {
  ByteReader in(payload);
  Error error;
  const auto code = error_code_from_name(in.text(kTextMax));
  error.message = in.text(kControlBytesMax);
  error.origin.group = in.text(kTextMax);
  const auto rank = in.get<std::int32_t>();
  if (rank >= 0) error.origin.rank = RankId{rank};
  if (!in.whole() || !code)
    return Error{.code = ErrorCode::kCorrupt,
                 .message = fmt::format("{} bytes that are no error", payload.size()),
                 .origin = {},
                 .causes = {}};
  error.code = *code;
  return error;
}

bool ReplayWindow::admit(std::uint64_t sequence) {
  if (sequence == 0 || sequence + kSpan <= newest_) return false;
  if (sequence > newest_) {
    const std::uint64_t fresh = std::min(sequence - newest_, kSpan);
    for (std::uint64_t i = 0; i < fresh; ++i) seen_.reset((sequence - i) % kSpan);
    newest_ = sequence;
  }
  const auto place = static_cast<std::size_t>(sequence % kSpan);
  if (seen_.test(place)) return false;
  seen_.set(place);
  return true;
}

}  // namespace troupe::runtime

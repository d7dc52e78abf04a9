#pragma once

// Bytes of the data plane: addresses, message headers with their MAC, and what requests and answers
// carry. Little-endian; docs/transport.md has the tables.
//
// **Threads:** pure functions; a `ReplayWindow` belongs to one thread.
// **Invariants:** nothing is read from a message before its size, MAC, version and bounds hold.
// Decoding takes any bytes and allocates at most a small multiple of them.

#include "runtime/base/error.hpp"
#include "runtime/base/result.hpp"
#include "runtime/comm/transport.hpp"

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Most parts of one request, pieces of one answer by address, and bytes of any control payload.
inline constexpr std::size_t kRequestPartsMax = 512;
inline constexpr std::size_t kAnswerPiecesMax = 4096;
inline constexpr std::size_t kControlBytesMax = std::size_t{128} << 10;
/// Most bytes that one request may ask for, whatever the owner's options say.
inline constexpr std::int64_t kChunkBytesMax = std::int64_t{1} << 30;

/// What `Transport::address` holds.
struct TransportAddress {
  std::string name;          ///< as `TransportOptions::name`
  std::string host;          ///< the same for processes that can share memory; see host_identity
  std::string lane_version;  ///< of the library beneath; both ends must agree
  std::uint64_t epoch = 0;   ///< random, fresh in each process; not 0
  std::int64_t pid = 0;
  std::uint64_t probe_place = 0;  ///< where `probe` lies in that process
  std::array<std::byte, 16> probe{};
  std::vector<std::byte> lanes;          ///< the library's own address
  std::vector<std::byte> network_lanes;  ///< the same without shared memory; for other hosts
  bool operator==(const TransportAddress&) const = default;
};
std::vector<std::byte> encode_address(const TransportAddress& address);
result<TransportAddress> decode_address(std::span<const std::byte> bytes);

enum class MessageType : std::uint16_t {
  kRequest = 1,  ///< reader → owner: parts of a chunk
  kData,         ///< owner → reader: the bytes
  kPlaces,       ///< owner → reader: where they lie in the owner's memory, pinned
  kDone,         ///< reader → owner: unpin
  kError,        ///< owner → reader: no bytes, and why
  kGoodbye,      ///< the sender closes; nothing more comes
};

struct MessageHeader {
  MessageType type = MessageType::kRequest;
  std::uint64_t from = 0;      ///< epoch of the sender
  std::uint64_t to = 0;        ///< epoch of who it is meant for
  std::uint64_t sequence = 0;  ///< 1, 2, … of `from` towards `to`
  std::uint64_t pull = 0;      ///< the reader's number of the pull
  std::uint32_t chunk = 0;
  std::uint16_t flags = 0;
  std::uint16_t connection = 0;    ///< request: the reader's number of its connection, from 1
  std::uint64_t bytes = 0;         ///< payload of this message
  std::uint64_t remaining_ns = 0;  ///< request: until its deadline
  bool operator==(const MessageHeader&) const = default;
};
inline constexpr std::uint16_t kFlagIntroduced = 1;  ///< request: the reader's address comes first
inline constexpr std::uint16_t kFlagPlaces = 2;      ///< request: the reader can copy directly
inline constexpr std::uint16_t kFlagWatched = 4;     ///< request: the reader walks over the bytes
inline constexpr std::size_t kMessageHeaderBytes = 80;
using MessageBytes = std::array<std::byte, kMessageHeaderBytes>;

/// The header with its MAC, which covers `control` too: the payload of all but kData.
MessageBytes seal_message(const SessionKey& key, const MessageHeader& header,
                          std::span<const std::byte> control);
/// Checks sizes, MAC, magic, version, type, and that `to` is `self`. `payload_bytes` is what came
/// with it; `payload` those bytes, which may be elsewhere still when the message is kData.
result<MessageHeader> open_message(const SessionKey& key, std::uint64_t self,
                                   std::span<const std::byte> head, std::size_t payload_bytes,
                                   std::span<const std::byte> payload);

/// Bytes [skip, skip + take) of rows [first, first + rows) of a column, which have `bytes` in all.
/// Neighbouring parts with one chunk number are answered together.
struct RequestPart {
  std::uint64_t chunk = 0;
  std::uint64_t column = 0;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  std::int64_t skip = 0;
  std::int64_t take = 0;
  bool operator==(const RequestPart&) const = default;
};
struct Request {
  std::vector<std::byte> reader;  ///< its address, when it introduces itself
  std::vector<RequestPart> parts;
};
std::vector<std::byte> encode_request(const Request& request);
result<Request> decode_request(const MessageHeader& header, std::span<const std::byte> payload);

/// A stretch of the owner's memory.
struct MemoryPlace {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool operator==(const MemoryPlace&) const = default;
};
std::vector<std::byte> encode_places(std::span<const MemoryPlace> places);
/// The places; they hold `wanted` bytes together or the message is refused.
result<std::vector<MemoryPlace>> decode_places(std::span<const std::byte> payload,
                                               std::int64_t wanted);

std::vector<std::byte> encode_failure(const Error& error);
/// The owner's error; kCorrupt when the bytes are none.
Error decode_failure(std::span<const std::byte> payload);

/// Which sequence numbers of one peer were seen: lets messages overtake one another by up to
/// kSpan, and each come once.
class ReplayWindow {
 public:
  static constexpr std::uint64_t kSpan = 4096;
  /// False when `sequence` was seen, or is too old to tell.
  bool admit(std::uint64_t sequence);

 private:
  std::uint64_t newest_ = 0;
  std::bitset<kSpan> seen_;
};

}  // namespace troupe::runtime

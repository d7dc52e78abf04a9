// No bytes crash the readers of data-plane messages, also past the MAC; what they accept is within
// its bounds.

#include "runtime/comm/transport_wire.hpp"

#include <cstdlib>

namespace {

using namespace troupe::runtime;

void must(bool held) {
  if (!held) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  must(!open_message({}, 1, bytes.first(size < 80 ? size : 80), 0, {}));
  if (const auto address = decode_address(bytes))
    must(*decode_address(encode_address(*address)) == *address);
  for (const std::uint16_t flags : {std::uint16_t{0}, kFlagIntroduced}) {
    MessageHeader header;
    header.flags = flags;
    const auto request = decode_request(header, bytes);
    if (!request) continue;
    must(!request->parts.empty() && request->parts.size() <= kRequestPartsMax);
    std::int64_t total = 0;
    for (const RequestPart& part : request->parts) total += part.take;
    must(total <= kChunkBytesMax);
  }
  if (const auto places = decode_places(bytes, 4096)) {
    std::uint64_t total = 0;
    for (const MemoryPlace& place : *places) total += place.bytes;
    must(total == 4096);
  }
  (void)decode_failure(bytes);
  // A message of our own making opens, whatever its payload; one bit off and it does not.
  MessageHeader header{.type = MessageType::kPlaces, .to = 1};
  header.bytes = size;
  if (size > kControlBytesMax) return 0;
  MessageBytes head = seal_message({}, header, bytes);
  must(open_message({}, 1, head, size, bytes).has_value());
  head[size % head.size()] ^= std::byte{1};
  must(!open_message({}, 1, head, size, bytes).has_value());
  return 0;
}

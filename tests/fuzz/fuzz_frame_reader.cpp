// No bytes crash the frame reader or what stands before it in a link, and they are worth the same
// in whatever pieces they come.
//
// The first byte chooses. 0: the rest is a stream, read whole and in pieces. 1: the rest describes
// frames (kind, two bytes of length, payload) that are sealed here, so that what is behind the
// checksum is reached; they go to an acceptor. 2: the same to a dialler.

#include "runtime/batch/envelope_codec.hpp"
#include "runtime/link/connection.hpp"
#include "runtime/link/frame_reader.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace {

using namespace troupe;
using namespace troupe::runtime;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kFrameBytesMax = 2048;

void require(bool condition) {
  if (!condition) std::abort();
}

struct Reading {
  std::vector<Bytes> frames;
  bool failed = false;
  bool operator==(const Reading&) const = default;
};

Reading read_in_pieces(std::span<const std::byte> stream, std::size_t piece) {
  Reading reading;
  FrameReader reader(kFrameBytesMax);
  while (!stream.empty() && !reading.failed) {
    // Each piece in memory of its own, so that looking back is an error that ASan sees.
    const std::size_t size = std::min(piece, stream.size());
    const Bytes copy(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(size));
    stream = stream.subspan(size);
    reader.feed(copy);
    while (true) {
      const auto frame = reader.next();
      reading.failed = !frame.has_value();
      if (!frame || !*frame) break;
      reading.frames.emplace_back((*frame)->payload.begin(), (*frame)->payload.end());
    }
    require(reader.bytes_held() <= kLinkPrefixBytes + kFrameBytesMax);
  }
  return reading;
}

struct Events final : ConnectionEvents {
  result<void> on_peer(const PeerName& peer) override {
    require(check_peer_name(peer).has_value());
    ++peers;
    return {};
  }
  result<void> on_envelope(std::span<const std::byte> bytes) override {
    require(peers == 1);
    TROUPE_TRY_VOID(decode_envelope(bytes, false).map([](const Envelope&) {}));
    return {};
  }
  int peers = 0;
};

void shake(LinkSide side, std::span<const std::byte> script) {
  ConnectionOptions options{.handshake = {},
                            .heartbeat = std::chrono::milliseconds(500),
                            .dead_after = std::chrono::seconds(3),
                            .handshake_within = std::chrono::seconds(5),
                            .frame_bytes_max = kFrameBytesMax};
  options.handshake.self = {PeerRole::kHead, "main"};
  Events events;
  Connection connection(side, options, std::nullopt, events, {});
  std::vector<char> out;
  require(connection.start(out).has_value());
  FrameWriter writer;
  while (script.size() >= 3) {
    const auto kind = static_cast<FrameKind>(std::to_integer<unsigned>(script[0]) % 8);
    std::uint16_t length = 0;
    std::memcpy(&length, script.data() + 1, sizeof length);
    script = script.subspan(3);
    const auto payload = script.first(std::min<std::size_t>(length, script.size()));
    script = script.subspan(payload.size());
    std::vector<char> frame;
    writer.append(kind, payload, frame);
    const auto taken = connection.received(std::as_bytes(std::span(frame)), {}, out);
    require(out.size() <= std::size_t{64} << 10);
    if (taken) continue;
    connection.last_words(taken.error(), out);
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: {
      const Reading whole = read_in_pieces(rest, rest.size() + 1);
      for (const std::size_t piece : {1U, 7U, 41U, 1000U})
        require(read_in_pieces(rest, piece) == whole);
      break;
    }
    case 1:
      shake(LinkSide::kAcceptor, rest);
      break;
    default:
      shake(LinkSide::kDialler, rest);
  }
  return 0;
}

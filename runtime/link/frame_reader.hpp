#pragma once

// The frames of a link: their prefix, and the reader that finds them in a stream of bytes.
//
// Layout, little-endian: magic `TrLk`; u8 version; u8 kind; u16 zero; u32 payload bytes; u32 zero;
// u64 sequence; 16 bytes seal over all before it and the payload; then the payload.
// **Threads:** one owner. Pure: no clock, no I/O.
// **Invariants:** a length is compared with the bound before anything is kept, and memory grows
// only with bytes that arrived, to one frame at most. Sequence numbers count from 0 without gaps.
// After an error the reader stays in error.

#include "runtime/base/result.hpp"
#include "runtime/link/frame_seal.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troupe::runtime {

inline constexpr std::size_t kLinkPrefixBytes = 40;
inline constexpr std::uint8_t kLinkVersion = 1;
/// Largest payload before the handshake is over.
inline constexpr std::size_t kHandshakeFrameBytesMax = 1024;

enum class FrameKind : std::uint8_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,
  kRefuse = 5,
  kEnvelope = 6,
};

struct LinkFrame {
  FrameKind kind = FrameKind::kEnvelope;
  std::span<const std::byte> payload;  ///< valid until the next call of the reader
};

class FrameReader {
 public:
  explicit FrameReader(std::size_t payload_bytes_max = kHandshakeFrameBytesMax)
      : payload_bytes_max_(payload_bytes_max) {}

  /// Gives the reader more of the stream, which must stay valid until `next` has said nullopt.
  void feed(std::span<const std::byte> bytes);
  /// The next whole frame, or nullopt when more bytes are needed. kCorrupt names what is wrong.
  result<std::optional<LinkFrame>> next();

  /// From the next frame on.
  void set_payload_bytes_max(std::size_t bytes) { payload_bytes_max_ = bytes; }
  void set_seal(FrameSeal seal) { seal_ = std::move(seal); }
  /// Bytes of a torn frame that are kept.
  std::size_t bytes_held() const { return held_.size() - held_read_; }
  std::uint64_t frames_read() const { return sequence_; }

 private:
  result<std::size_t> frame_bytes(std::span<const std::byte> prefix) const;
  std::optional<std::span<const std::byte>> gather(std::size_t bytes);
  result<std::optional<LinkFrame>> read();

  std::size_t payload_bytes_max_;
  FrameSeal seal_;
  std::uint64_t sequence_ = 0;
  std::span<const std::byte> fed_;  // not looked at yet
  std::vector<std::byte> held_;     // start of a frame whose rest has not come
  std::size_t held_read_ = 0;       // of held_, already handed out
  std::optional<Error> failure_;
};

/// Appends frames to a buffer: the other direction.
class FrameWriter {
 public:
  void set_seal(FrameSeal seal) { seal_ = std::move(seal); }
  void append(FrameKind kind, std::span<const std::byte> payload, std::vector<char>& target);
  /// Bytes that `append` adds for a payload of this size.
  static std::size_t frame_bytes(std::size_t payload_bytes) {
    return kLinkPrefixBytes + payload_bytes;
  }

 private:
  FrameSeal seal_;
  std::uint64_t sequence_ = 0;
};

}  // namespace troupe::runtime

#pragma once

// The envelope of every control message that leaves a process, and its bytes.
//
// Within a process an `Envelope` is passed by value; between processes it is one Cap'n Proto frame
// (schemas/envelope.capnp, one flat message) of at most 1 MiB.
// **Threads:** a value type and pure functions.
// **Invariants:** decoding checks size, nesting, enumerators and error codes; a failure is one
// kCorrupt error; nothing is thrown.

#include "runtime/base/clock.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// Largest control frame, encoded.
inline constexpr std::size_t kControlFrameBytesMax = std::size_t{1} << 20;
/// Deepest chain, and most in one list, of error causes that travels; what is beyond is cut.
inline constexpr std::size_t kCauseDepthMax = 8;
inline constexpr std::size_t kCausesMax = 64;

enum class MessageKind : std::uint8_t { kCall, kResult, kError, kHeartbeat, kAbort };

/// `call`, `result`, `error`, `heartbeat`, `abort`.
std::string_view message_kind_name(MessageKind kind);

/// Bytes that wait in the column store of a rank.
struct HeldPayload {
  std::string group;
  RankId rank;
  std::uint64_t id = 0;
  bool operator==(const HeldPayload&) const = default;
};

/// Arguments or result: nothing, bytes in the frame itself, or held by a rank.
struct PayloadReference {
  std::variant<std::monostate, std::vector<std::byte>, HeldPayload> place{};
  std::uint64_t bytes = 0;     ///< size of the payload, wherever it is
  std::uint32_t checksum = 0;  ///< its CRC-32C; 0 when there is no payload
  bool operator==(const PayloadReference&) const = default;
};

/// A payload of bytes in the frame, with its size and checksum.
PayloadReference payload_in_frame(std::vector<std::byte> bytes);

struct Envelope {
  MessageKind kind = MessageKind::kCall;
  CallId call{};
  std::string group{};
  std::string method{};
  Duration remaining{0};           ///< until the deadline, when this was sent; may be past
  std::int64_t sent_wall_ns = 0;   ///< wall time of sending, ns since 1970
  std::optional<RankId> source{};  ///< empty for the controller
  std::uint64_t epoch = 0;         ///< a restarted group ignores messages of earlier epochs
  std::uint64_t trace = 0;
  PayloadReference payload{};
  std::optional<Error> error{};  ///< set for kError and kAbort, and only then

  bool operator==(const Envelope&) const = default;

  /// The deadline by the receiver's clock, with transit time not subtracted.
  Deadline deadline(TimePoint received) const;
  /// Sets `remaining` from an absolute deadline.
  void set_deadline(Deadline deadline, TimePoint now) { remaining = deadline.at - now; }
};

/// kInvalidArgument when the frame outgrows kControlFrameBytesMax, when `error` does not fit the
/// kind, or a payload's size is not that of its bytes.
result<std::vector<std::byte>> encode_envelope(const Envelope& envelope);

/// Refuses frames over kControlFrameBytesMax before looking at them. With `checksums` the bytes of
/// an in-frame payload must have their checksum.
result<Envelope> decode_envelope(std::span<const std::byte> frame, bool checksums = true);

}  // namespace troupe::runtime

#pragma once

// The bytes of a ledger file: a header, then frames, each with its number and checksum. Pure; the
// file itself is placement/ledger_file.hpp, what a frame says is placement/ledger.hpp.
//
// One frame is one batch of records that was made durable by one flush, and the next frame is
// written only after that. So a crash can tear the last frame and no other: damage at the end is
// cut off with a warning, damage with a whole frame behind it is refused.
// docs/placement_protocol.md has the layout.
// **Threads:** pure functions.
// **Invariants:** frames are numbered without gaps; reading never looks past `bytes`.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::placement {

inline constexpr std::size_t kLedgerHeaderBytes = 24;
inline constexpr std::size_t kFrameHeaderBytes = 24;
/// Largest payload of one frame; a batch that is larger is cut into several.
inline constexpr std::size_t kFramePayloadBytesMax = std::size_t{16} << 20;

/// The start of a file whose first frame is `first_frame`.
std::vector<std::byte> encode_ledger_header(std::uint64_t first_frame);

/// One frame, padded to 8 bytes. kInvalidArgument when the payload is empty or too large.
result<std::vector<std::byte>> encode_ledger_frame(std::uint64_t number,
                                                   std::span<const std::byte> payload);

struct LedgerContent {
  std::vector<std::span<const std::byte>> payloads;  ///< into the bytes that were read
  std::uint64_t next_frame = 0;                      ///< number of the frame to append
  std::size_t bytes = 0;                             ///< up to here the file is whole
  std::optional<std::string> warning;                ///< says what was cut off behind that
};

/// `place` names the file in errors and warnings. kCorrupt for damage before the last frame.
result<LedgerContent> read_ledger(std::span<const std::byte> bytes, std::string_view place);

}  // namespace troupe::placement

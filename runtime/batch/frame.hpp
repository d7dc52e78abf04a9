#pragma once

// The start of every file and payload frame of Troupe: magic, version, sizes, header checksum.
//
// Layout, little-endian: 8 bytes magic; u32 version; u32 CRC-32C of the header; u64 header bytes;
// u64 frame bytes; then the header, a flat Cap'n Proto message. What follows is the format's own.
// **Threads:** pure functions.
// **Invariants:** `open_frame` hands out a header only if magic, version, both sizes and the
// checksum hold; its errors are kCorrupt and name `place` and both values.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::runtime {

inline constexpr std::int64_t kFramePrefixBytes = 32;

/// What tells one format from another.
struct FrameFormat {
  std::string_view place;  ///< how errors call it, e.g. `batch`
  std::string_view magic;  ///< 8 bytes
  std::uint32_t version = 1;
};

struct FrameLimits {
  std::int64_t frame_bytes_max = 0;
  std::int64_t header_bytes_max = 0;
  bool checksums = true;
};

/// Writes the prefix of a frame of `frame_bytes` over the first kFramePrefixBytes of `target`.
void write_frame_prefix(const FrameFormat& format, std::span<const std::byte> header,
                        std::int64_t frame_bytes, std::span<std::byte> target);

/// The frame size that a prefix claims, unchecked: to tell a torn file from a damaged one. 0 when
/// there are too few bytes to say.
std::uint64_t claimed_frame_bytes(std::span<const std::byte> frame);

/// The header of a frame after all checks.
result<std::span<const std::byte>> open_frame(const FrameFormat& format,
                                              std::span<const std::byte> frame,
                                              const FrameLimits& limits);

}  // namespace troupe::runtime

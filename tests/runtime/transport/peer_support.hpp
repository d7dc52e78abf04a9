#pragma once

// Columns of bytes that both a test and its child can make up: byte `i` of column `c` is known.
//
// **Threads:** any.

#include "runtime/comm/transport.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// Repeats only after 251 × 256 bytes, so that a chunk in the wrong place shows.
inline std::byte pattern_byte(std::uint64_t column, std::uint64_t i) {
  return static_cast<std::byte>((column * 31 + i % 251 + (i / 251) * 7) & 0xFF);
}

/// Columns 1..99 are plain bytes, 100..199 lie in pieces of 1,000 bytes in falling order of memory,
/// and from 1,000 on there are tiny ones of 64 bytes. Column 99 is not held.
class PatternColumns {
 public:
  explicit PatternColumns(std::int64_t big_bytes) : big_bytes_(big_bytes) {}

  result<Pinned> read(ColumnId column, std::int64_t first, std::int64_t rows) {
    const std::int64_t size = column.value >= 1000 ? 64 : big_bytes_;
    if (column.value == 99)
      return fail(ErrorCode::kNotFound, "column {}: its lease is over", column.value);
    if (first < 0 || rows < 0 || first > size || rows > size - first)
      return fail(ErrorCode::kInvalidArgument, "column {}: rows {}+{} of {}", column.value, first,
                  rows, size);
    const auto block = make(column.value, static_cast<std::size_t>(size));
    Pinned pinned;
    pinned.keep = block;
    const bool scattered = column.value >= 100 && column.value < 200;
    if (!scattered) {
      pinned.spans.push_back(std::span<const std::byte>(*block).subspan(
          static_cast<std::size_t>(first), static_cast<std::size_t>(rows)));
      return pinned;
    }
    for (std::int64_t at = first; at < first + rows;) {
      const std::int64_t piece = at / kPiece;
      const std::int64_t in_piece = at % kPiece;
      const std::int64_t take = std::min(kPiece - in_piece, first + rows - at);
      pinned.spans.push_back(std::span<const std::byte>(*block).subspan(
          static_cast<std::size_t>(place_of(piece, size) + in_piece),
          static_cast<std::size_t>(take)));
      at += take;
    }
    return pinned;
  }

 private:
  static constexpr std::int64_t kPiece = 1000;

  /// Where piece `piece` of a scattered column lies; a shorter last piece stays at the end.
  static std::int64_t place_of(std::int64_t piece, std::int64_t size) {
    const std::int64_t whole = size / kPiece;
    return piece >= whole ? whole * kPiece : (whole - 1 - piece) * kPiece;
  }
  std::shared_ptr<const std::vector<std::byte>> make(std::uint64_t column, std::size_t size) {
    const std::lock_guard lock(mutex_);
    auto& block = blocks_[column];
    if (block) return block;
    auto bytes = std::make_shared<std::vector<std::byte>>(size);
    const bool scattered = column >= 100 && column < 200;
    for (std::size_t i = 0; i < size; ++i) {
      const auto row = static_cast<std::int64_t>(i);
      const auto at =
          scattered ? place_of(row / kPiece, static_cast<std::int64_t>(size)) + row % kPiece : row;
      (*bytes)[static_cast<std::size_t>(at)] = pattern_byte(column, i);
    }
    block = std::move(bytes);
    return block;
  }

  std::int64_t big_bytes_;
  std::mutex mutex_;  ///< guards the blocks
  std::map<std::uint64_t, std::shared_ptr<const std::vector<std::byte>>> blocks_;
};

/// First byte of `bytes` that is not the pattern from `first` on; -1 when all are.
inline std::int64_t first_wrong(std::uint64_t column, std::int64_t first,
                                std::span<const std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern_byte(column, static_cast<std::uint64_t>(first) + i))
      return static_cast<std::int64_t>(i);
  }
  return -1;
}

/// `direct` (copies where permitted), `shm` (of UCX), `tcp`.
inline TransportOptions transport_options(std::string_view mode, const SessionKey& key) {
  TransportOptions options;
  options.key = key;
  options.interfaces = "lo";
  if (mode == "shm") {
    options.lanes = TransportLanes::kSharedMemory;
    options.interfaces.clear();
  }
  options.direct_copy = mode == "direct";
  if (mode == "tcp") options.lanes = TransportLanes::kTcp;
  return options;
}

}  // namespace troupe::runtime

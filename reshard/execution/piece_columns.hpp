#pragma once

// How pieces are named towards `runtime::Transport`, whose pulls ask for rows of columns: a column
// is (kind, epoch, operation), its rows are the elements of the operation's box.
//
// **Threads:** pure functions.
// **Invariants:** names arrive from outside; whatever decodes is checked again by its user.

#include "runtime/base/ids.hpp"

#include <cstdint>
#include <utility>

namespace troupe::reshard {

enum class ColumnKind : std::uint8_t {
  kBytes = 0,  ///< the elements
  kSums,       ///< `PieceSums` of them
  kCrc,        ///< the same with the crc alone
  kTensorSum,  ///< the same with the part of the tensor's checksum alone
  kProgress,   ///< how far a target is; the first row is how far the asker is
  kDeltaSize,  ///< bytes of the piece's delta
  kDelta,
};

struct PieceColumn {
  ColumnKind kind = ColumnKind::kBytes;
  std::uint64_t epoch = 0;  ///< its lower 29 bits
  std::int32_t op = 0;
};

inline constexpr int kEpochBits = 29;
inline std::uint64_t short_epoch(std::uint64_t epoch) {
  return epoch & ((std::uint64_t{1} << kEpochBits) - 1);
}

inline ColumnId encode_column(const PieceColumn& column) {
  return ColumnId{static_cast<std::uint64_t>(column.kind) << 61 | short_epoch(column.epoch) << 32 |
                  static_cast<std::uint32_t>(column.op)};
}
inline PieceColumn decode_column(ColumnId column) {
  return {.kind = static_cast<ColumnKind>(column.value >> 61),
          .epoch = short_epoch(column.value >> 32),
          .op = static_cast<std::int32_t>(static_cast<std::uint32_t>(column.value))};
}

/// Progress names two ranks in place of an operation; ranks are below 2^15 there.
inline constexpr std::int32_t kProgressRanksMax = std::int32_t{1} << 15;
inline std::int32_t progress_op(std::int32_t rank, std::int32_t taker) {
  return rank << 15 | taker;
}
inline std::pair<std::int32_t, std::int32_t> progress_ranks(const PieceColumn& column) {
  return {(column.op >> 15) & (kProgressRanksMax - 1), column.op & (kProgressRanksMax - 1)};
}

}  // namespace troupe::reshard

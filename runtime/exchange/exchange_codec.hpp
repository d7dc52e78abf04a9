#pragma once

// Exported batches and lease notices as bytes (schemas/exchange.capnp).
//
// A frame is the prefix of frame.hpp with magic `TRPXCHNG` and version 1, then one flat message.
// Row lengths and runs travel as tables of variable-length integers; equal tables come once, so
// that the columns of one step share theirs.
// **Threads:** pure functions.
// **Invariants:** decoding trusts nothing: a failure is one kCorrupt error naming column and both
// values; memory is bounded by the frame's size times a small constant plus 8 bytes for each of at
// most `ExchangeLimits::table_rows_max` rows.

#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/column_ref.hpp"
#include "runtime/exchange/lease_table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// A process that holds columns; the epoch tells it from an earlier one of the same name.
struct ExchangeOwner {
  ColumnOwner owner;
  std::uint64_t epoch = 0;
  bool operator==(const ExchangeOwner&) const = default;
};

/// Rows [first_row, first_row + rows) of a column at its owner.
struct ExchangePiece {
  std::uint32_t owner = 0;  ///< index into the owners
  ColumnId column;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  /// [rows + 1] running sum of row lengths; null for dense. Rows that no run covers may have any.
  std::shared_ptr<const std::vector<std::int64_t>> offsets;
  bool granted = false;
};

/// Rows [first, first + count) of one piece.
struct ExchangeRun {
  std::uint32_t piece = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const ExchangeRun&) const = default;
};

struct ExchangeColumn {
  std::string name;
  ColumnType type;
  std::vector<ExchangePiece> pieces;
  std::shared_ptr<const std::vector<ExchangeRun>> runs;  ///< in row order
};

struct ExchangeBatch {
  Batch inlined;  ///< all rows, metadata and metrics, and the columns that travel inside
  std::vector<ExchangeOwner> owners;
  std::vector<ExchangeColumn> columns;
};

/// A frame that is a u8 column at its owner.
struct ExchangeHeld {
  ExchangeOwner owner;
  ColumnId column;
  std::int64_t bytes = 0;
  std::uint32_t checksum = 0;
  bool granted = false;
};

using ExchangeFrame = std::variant<ExchangeBatch, ExchangeHeld>;

struct ExchangeLimits {
  DecodeLimits batch;
  std::int64_t table_rows_max = std::int64_t{1} << 24;  ///< of all length tables together
};

result<std::vector<std::byte>> encode_exchange(const ExchangeBatch& batch);
result<std::vector<std::byte>> encode_exchange(const ExchangeHeld& held);
result<ExchangeFrame> decode_exchange(std::span<const std::byte> bytes,
                                      const ExchangeLimits& limits);

/// What `columns.release` and `columns.renew` carry; at most kNoticeReleasesMax releases.
struct LeaseNotice {
  std::uint64_t epoch = 0;  ///< of the owner that it is meant for
  std::vector<LeaseRelease> releases;
};
inline constexpr std::size_t kNoticeReleasesMax = 32768;
std::vector<std::byte> encode_lease_notice(const LeaseNotice& notice);
result<LeaseNotice> decode_lease_notice(std::span<const std::byte> bytes);

}  // namespace troupe::runtime

#pragma once

// What a `Column` is made of; for the sources of runtime/batch and runtime/exchange only.
//
// A `Storage` is one immutable block of rows, local or at another owner. A `Rope` strings ranges
// of rows of several storages together. Storages are shared by every view over them, and a
// storage at another owner holds the lease that keeps the rows alive there.
// **Threads:** immutable after construction.
// **Invariants:** ranges of a rope are not empty and ordered by `start`; neighbours that continue
// one another in the same storage are one range; every storage is used by some range.

#include "runtime/base/result.hpp"
#include "runtime/batch/column.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace troupe::runtime {

class ColumnLease;

/// [rows + 1] running sum of row lengths, in elements.
using OffsetTable = std::shared_ptr<const std::vector<std::int64_t>>;

class Storage {
 public:
  std::int64_t rows = 0;
  std::int64_t element_bytes = 1;
  std::int64_t row_elements = 1;             ///< dense only
  OffsetTable offsets;                       ///< null for dense
  const std::byte* data = nullptr;           ///< meaningless when remote
  std::shared_ptr<const void> owner;         ///< keeps `data` alive
  std::shared_ptr<const ColumnLease> lease;  ///< set when the rows live at another owner
  std::int64_t lease_first = 0;              ///< row of the owner's column that is row 0 here

  std::int64_t start(std::int64_t row) const {
    return offsets ? (*offsets)[static_cast<std::size_t>(row)] : row * row_elements;
  }
  std::int64_t length(std::int64_t row) const { return start(row + 1) - start(row); }
  std::int64_t elements(std::int64_t first, std::int64_t count) const {
    return start(first + count) - start(first);
  }
  std::span<const std::byte> bytes(std::int64_t first, std::int64_t count) const {
    return {data + start(first) * element_bytes,
            static_cast<std::size_t>(elements(first, count) * element_bytes)};
  }
};

using StoragePointer = std::shared_ptr<const Storage>;

struct RopeRange {
  std::uint32_t storage = 0;  ///< index into Rope::storages
  std::int64_t first = 0;     ///< first row in the storage
  std::int64_t start = 0;     ///< row of the rope where this range begins
};

class Rope {
 public:
  struct Place {
    const Storage* storage = nullptr;
    std::int64_t row = 0;
  };

  ColumnType type;
  std::vector<StoragePointer> storages;
  std::vector<RopeRange> ranges;
  std::int64_t rows = 0;

  /// Index of the range that holds `row`, which is in [0, rows).
  std::size_t range_of(std::int64_t row) const;
  std::int64_t range_rows(std::size_t range) const {
    return (range + 1 < ranges.size() ? ranges[range + 1].start : rows) - ranges[range].start;
  }
  Place locate(std::int64_t row) const {
    const RopeRange& range = ranges[ranges.size() == 1 ? 0 : range_of(row)];
    return {storages[range.storage].get(), range.first + row - range.start};
  }
};

/// Rows [first, first + count) of one storage.
struct Run {
  const StoragePointer* storage = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The one door to a column's parts.
class ColumnAccess {
 public:
  static Column make(std::shared_ptr<const Rope> rope);
  static Column make(ColumnType type, StoragePointer storage);
  static const Rope& rope(const Column& column) { return *column.rope_; }
  static const std::shared_ptr<const RowMap>& map(const Column& column) { return column.map_; }
  static std::int64_t first(const Column& column) { return column.first_; }
  /// The column as runs in row order, neighbours joined; pointers live as long as the column.
  static std::vector<Run> runs(const Column& column);
  /// `rows` of the column's window as rows of its rope.
  static std::shared_ptr<const RowMap> compose(const Column& column,
                                               std::span<const std::int64_t> rows);
  /// The column seen through `map`, whose entries are rows of its rope. Storages that the map does
  /// not reach are let go.
  static Column through(const Column& column, std::shared_ptr<const RowMap> map);
  /// Local bytes as a column; `lengths` may be null for dense.
  static Column view(ColumnType type, std::int64_t rows, std::shared_ptr<const void> owner,
                     const std::byte* data, OffsetTable offsets);
  /// The table of all rows' offsets, shared with the storage when the view is the whole of it.
  static OffsetTable offset_table(const Column& column);
};

/// Builds a rope run by run.
class RopeBuilder {
 public:
  explicit RopeBuilder(ColumnType type);
  void add(const StoragePointer& storage, std::int64_t first, std::int64_t count);
  Column finish() &&;

 private:
  std::uint32_t storage_index(const StoragePointer& storage);

  std::shared_ptr<Rope> rope_;
  std::vector<std::pair<const Storage*, std::uint32_t>> sorted_;  ///< by pointer
};

/// The running sum of `lengths`, which are ≥ 0 (CHECK).
OffsetTable offsets_of(std::span<const std::int64_t> lengths);

}  // namespace troupe::runtime

#pragma once

// What stands behind a column reference: a lease on one column at its owner, and the source that
// brings rows of such columns here. For those who bring columns in from elsewhere; users of
// batches need column_ref.hpp only.
//
// A storage that is a reference shares its `ColumnLease`; the last one to go ends the lease.
// **Threads:** every function from any thread; `ColumnSource::pull` blocks its caller.
// **Invariants:** two storages with the same lease look at the same column: equal rows of it are
// equal bytes.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/column.hpp"
#include "runtime/batch/column_ref.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace troupe::runtime {

class ColumnSource;

class ColumnLease {
 public:
  virtual ~ColumnLease() = default;
  virtual const ColumnOwner& owner() const = 0;
  virtual ColumnId id() const = 0;
  /// Who brings rows here; leases with one source are pulled in one go. Lives as long as the lease.
  virtual ColumnSource& source() const = 0;
};

/// Rows [first, first + rows) of the column under `lease`.
struct RowsWanted {
  const ColumnLease* lease = nullptr;
  const ColumnType* type = nullptr;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  /// [rows + 1] running sum of row lengths from any start; empty for dense columns.
  std::span<const std::int64_t> offsets;
};

class ColumnSource {
 public:
  virtual ~ColumnSource() = default;
  /// The payload of each of `wanted`, in order, or why it is not to be had: an error that names
  /// the owner. Without a deadline the source's own default holds.
  virtual std::vector<result<Column>> pull(std::span<const RowsWanted> wanted,
                                           std::optional<Deadline> deadline) = 0;
};

/// The columns with all payload here, pulled together: one pull per source.
struct Unresolved {
  std::size_t column = 0;  ///< index of the first that failed
  Error error;
};
tl::expected<std::vector<Column>, Unresolved> resolve_columns(
    std::span<const Column* const> columns, PullMeter* meter, std::optional<Deadline> deadline);

}  // namespace troupe::runtime

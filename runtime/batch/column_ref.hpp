#pragma once

// Columns that stay where they were produced: a store at the owner, and references elsewhere.
//
// A rank puts a result batch into its `ColumnStore` and hands on the batch that `put` returns,
// whose columns are references: type, rows, row lengths and bytes are there, the payload is not.
// Slices, splits and concats of references compose; `Batch::resolve` at the reader pulls only the
// rows that its view covers. The references hold the lease: when the last view of a column goes,
// the store frees it. This is the form for ranks that are threads of one process: a pull hands
// over a shared pointer and counts bytes, and copies nothing.
// **Threads:** every function may be called from any thread.
// **Invariants:** a store never frees a column that a reference still covers, unless revoked;
// after `revoke` every resolve of its columns fails with that error; a store may die first, which
// counts as revoked.
// **Cost:** a reference holds 8 bytes a row for a length table, shared by columns of one `put`
// with the same lengths; dense columns hold none.

#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

class ColumnLease;
class ColumnSource;

/// Who holds a column.
struct ColumnOwner {
  std::string group;
  RankId rank;
  bool operator==(const ColumnOwner&) const = default;
};

/// One contiguous stretch of a column that lives at `owner`.
struct ColumnRef {
  ColumnOwner owner;
  ColumnId id;
  ColumnType type;
  std::int64_t first_row = 0;  ///< of the column at the owner
  std::int64_t rows = 0;
  std::vector<std::int64_t> row_lengths;  ///< [rows] elements; empty for dense columns
  std::int64_t bytes = 0;                 ///< payload of these rows
};

/// Counts what crosses from owners to one reader.
class PullMeter {
 public:
  void add(std::int64_t bytes) {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    pulls_.fetch_add(1, std::memory_order_relaxed);
  }
  std::int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::int64_t pulls() const { return pulls_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<std::int64_t> pulls_{0};
};

class ColumnStore {
 public:
  explicit ColumnStore(ColumnOwner owner);
  ~ColumnStore();
  ColumnStore(const ColumnStore&) = delete;
  ColumnStore& operator=(const ColumnStore&) = delete;

  /// Keeps the columns of `batch` (resolved) and returns the same batch as references. Columns
  /// that are references already, here or elsewhere, pass through unchanged. kAborted after
  /// revoke.
  result<Batch> put(const Batch& batch);
  result<Column> put(const Column& column);

  /// Frees every column; from now on `put` and every resolve of its references fail with `cause`.
  void revoke(Error cause);

  /// Rows [first, first + count) of a column that is held, for a reader elsewhere whose word is not
  /// trusted: kNotFound, kInvalidArgument, or the cause of the revocation.
  result<Column> read(ColumnId id, std::int64_t first, std::int64_t count);
  /// The lease of a column that is held, shared with its references here; null when it is not.
  std::shared_ptr<const ColumnLease> lease(ColumnId id) const;
  /// What leases of this store name as their source.
  const ColumnSource* source() const;

  const ColumnOwner& owner() const;
  std::int64_t columns_held() const;
  std::int64_t bytes_held() const;
  /// Payload bytes that readers in this process have pulled from here.
  std::int64_t bytes_pulled() const;

 private:
  class Core;
  class Lease;
  using LengthTables = std::vector<std::shared_ptr<const std::vector<std::int64_t>>>;

  /// As `put`, sharing one length table among columns with equal lengths.
  result<Column> put_sharing(const Column& column, LengthTables& tables);

  std::shared_ptr<Core> core_;
};

/// The remote stretches of a column, in row order; empty when it is all here.
std::vector<ColumnRef> references(const Column& column);

/// What a batch costs the process that holds it.
struct HeldBytes {
  std::int64_t payload = 0;   ///< local storages, each counted once and whole
  std::int64_t metadata = 0;  ///< length tables, row maps and range lists, each counted once
};
HeldBytes held_bytes(const Batch& batch);

}  // namespace troupe::runtime

#pragma once

// A batch: named columns of equal row count, control metadata, and metrics. The unit of data
// between the controller and worker groups.
//
// A value: copies share payload. Operations that return a `Batch` leave this one as it was; only
// `set`, `merge` and the metadata and metrics setters change it, and on an error they change
// nothing.
// **Threads:** a value type; one writer at a time, payload may be shared by any threads.
// **Invariants:** all columns have `rows()` rows; a column named `valid` is dense bool, one a row.
// **Cost:** split, slice, index, select, repeat, concat and merge of new columns copy no payload;
// merge of an existing column compares its bits unless both are the same view.
//
// What row operations do with metadata and metrics: metadata goes to every part; metrics describe
// the whole batch, so `split` and `split_by` leave them to part 0, reorder, repeat, select, drop,
// rename and padding keep them, and slice, index, mask and minibatches drop them.

#include "runtime/base/result.hpp"
#include "runtime/batch/column.hpp"
#include "runtime/observe/metrics.hpp"

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// Name of the column that marks padding rows (false).
inline constexpr std::string_view kValidColumn = "valid";

enum class Repeat : std::uint8_t {
  kInterleaved,  ///< a a b b c c
  kTiled,        ///< a b c a b c
};

struct MinibatchOptions {
  std::int64_t rows = 0;  ///< rows of each minibatch, > 0; the last may be smaller
  bool shuffle = true;
  std::uint64_t seed = 0;  ///< the order is a pure function of (seed, rows of the batch)
  bool drop_last = false;  ///< leave out a last minibatch that is not full
};

/// Bounds on bytes from outside; exceeding one is a kCorrupt error naming it.
struct DecodeLimits {
  std::int64_t rows_max = std::int64_t{1} << 32;
  std::int64_t columns_max = 4096;
  std::int64_t header_bytes_max = std::int64_t{16} << 20;
  std::int64_t bytes_max = std::int64_t{1} << 40;
  bool checksums = true;  ///< off only where a fuzzer must get past them
};

class Batch {
 public:
  using Columns = std::map<std::string, Column, std::less<>>;
  using Metadata = std::map<std::string, std::string, std::less<>>;
  using Names = std::span<const std::string>;

  Batch() = default;
  /// A batch of `rows` rows and no columns yet.
  explicit Batch(std::int64_t rows);

  std::int64_t rows() const { return rows_.value_or(0); }
  bool empty() const { return rows() == 0; }
  /// False until a column or the constructor has fixed the row count.
  bool rows_fixed() const { return rows_.has_value(); }
  /// Payload bytes of all columns, resolved or not.
  std::int64_t bytes() const;

  const Columns& columns() const { return columns_; }
  std::vector<std::string> names() const;
  bool has(std::string_view name) const { return columns_.find(name) != columns_.end(); }
  /// The column, or null.
  const Column* find(std::string_view name) const;
  /// The column; a missing one is a programmer error (CHECK names those that exist).
  const Column& column(std::string_view name) const;
  /// The column if it exists; the kNotFound error names those that do.
  result<Column> require(std::string_view name) const;
  /// Puts or replaces a column. The first one fixes the row count; another count is kConflict.
  result<void> set(std::string name, Column column);

  const Metadata& metadata() const { return metadata_; }
  /// `json` must be one JSON text; kInvalidArgument names the key otherwise.
  result<void> set_metadata(std::string key, std::string json);
  void erase_metadata(std::string_view key);
  const Metrics& metrics() const { return metrics_; }
  Metrics& metrics() { return metrics_; }

  /// Only, or all but, the named columns. A name that is missing is kNotFound.
  result<Batch> select(Names names) const;
  result<Batch> select(std::initializer_list<std::string> names) const;
  result<Batch> drop(Names names) const;
  result<Batch> drop(std::initializer_list<std::string> names) const;
  result<Batch> rename(std::string_view from, std::string to) const;

  /// Rows [first, first + count); out of range is kInvalidArgument.
  result<Batch> slice(std::int64_t first, std::int64_t count) const;
  /// Rows in the given order, repeats allowed.
  result<Batch> index(std::span<const std::int64_t> rows) const;
  /// Rows whose flag is true; `flags` must have one a row.
  result<Batch> mask(const std::vector<bool>& flags) const;
  /// As index, but `order` must be a permutation of all rows; keeps metrics.
  result<Batch> reorder(std::span<const std::int64_t> order) const;
  /// Every row `times` ≥ 0 times (CHECK).
  Batch repeat(std::int64_t times, Repeat kind = Repeat::kInterleaved) const;

  /// Always `parts` ≥ 1 (CHECK) parts whose sizes differ by at most one, larger ones first; parts
  /// may be empty, and keep all columns.
  std::vector<Batch> split(std::int64_t parts) const;
  /// Parts of `rows_per_part` ≥ 1 (CHECK) rows, the last maybe smaller; an empty batch is one
  /// empty part.
  std::vector<Batch> split_by(std::int64_t rows_per_part) const;
  /// Parts one below the other. All need the same columns with the same types, also empty parts;
  /// a key of metadata held by several must have one value. kConflict names column or key and
  /// both sides.
  static result<Batch> concat(std::span<const Batch> parts);
  /// Adds the columns, metadata and metrics of `other`, which has the same rows. What both have
  /// must be bitwise equal (NaN equals NaN); kConflict names the column, the first differing row
  /// and both values. References to compare that are not the same view are pulled for it.
  result<void> merge(const Batch& other, PullMeter* meter = nullptr);

  /// This batch with rows added until `multiple` ≥ 1 (CHECK) divides the count, and a `valid`
  /// column that is false on them. Added rows repeat rows 0, 1, … (also when the batch is smaller
  /// than the multiple); an empty batch stays empty, since 0 is a multiple of everything.
  Batch pad_to_multiple(std::int64_t multiple) const;
  /// Without the rows that `valid` marks and without that column; unchanged if there is none.
  Batch strip_padding() const;
  /// Drops the rows that `valid` of the batch that was *sent* marks: for results of a callee that
  /// does not hand the flag back. kConflict when the row counts differ.
  result<Batch> strip_padding(const Column& valid) const;
  /// Rows that are not padding: the denominator of any mean over rows.
  std::int64_t valid_rows() const;

  std::vector<Batch> minibatches(const MinibatchOptions& options) const;

  /// True when some column lives at another rank.
  bool has_references() const;
  /// The same batch with every (or each named) column's payload here; see Column::resolve.
  /// All columns are pulled together: one request to each owner, owners at the same time.
  result<Batch> resolve(PullMeter* meter = nullptr,
                        std::optional<Deadline> deadline = std::nullopt) const;
  result<Batch> resolve(Names names, PullMeter* meter = nullptr,
                        std::optional<Deadline> deadline = std::nullopt) const;

  /// The same batch in storage of its own on `device`: pulls what is elsewhere and keeps no larger
  /// block alive. kUnsupported names any device but `cpu`: this build keeps batches in host memory.
  result<Batch> to(std::string_view device, PullMeter* meter = nullptr) const;

  /// Cap'n Proto header and raw aligned column bytes; references must be resolved before.
  result<std::vector<std::byte>> to_bytes() const;
  static result<Batch> from_bytes(std::span<const std::byte> bytes,
                                  const DecodeLimits& limits = {});
  /// The same bytes as a file, written beside it and renamed.
  result<void> save(const std::filesystem::path& path) const;
  static result<Batch> load(const std::filesystem::path& path, const DecodeLimits& limits = {});

  /// Same rows, columns (bitwise), metadata and metrics.
  friend bool operator==(const Batch& a, const Batch& b);

 private:
  Batch shell() const;  ///< same rows and metadata, no columns, no metrics
  Batch take(std::span<const std::int64_t> rows) const;
  Batch window(std::int64_t first, std::int64_t count) const;

  std::optional<std::int64_t> rows_;  ///< empty until a column or the constructor fixes it
  Columns columns_;
  Metadata metadata_;
  Metrics metrics_;
};

}  // namespace troupe::runtime

#pragma once

// One named-less column of a batch: rows of a dense tensor, of a jagged tensor, or of text.
//
// A column is an immutable view: ranges of rows over shared storages, with an optional row map.
// Slice, index, repeat and concat build new views and touch no payload. A storage may also live
// at another rank (see column_ref.hpp): then rows, lengths and bytes are known, and the payload
// is read after `resolve()`.
// **Threads:** immutable after construction; copies may be read from any number of threads.
// **Invariants:** all storages of a column have one `ColumnType`; no operation changes payload;
// payload that is copied (values, compact, encode) is counted in `CopyCounter`.
// **Cost:** copying a column is two reference counts; slice is O(ranges); index is O(rows taken).

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe::runtime {

enum class DType : std::uint8_t { kF32, kF64, kI64, kI32, kU8, kBool };

std::string_view dtype_name(DType dtype);  ///< `f32`, `f64`, `i64`, `i32`, `u8`, `bool`
std::int64_t dtype_bytes(DType dtype);     ///< bytes of one element; a bool takes one

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kF32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kF64> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::kI64> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::kI32> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::kU8> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::kBool> {};

/// A C++ type that a column can hold.
template <class T>
concept ColumnValue = requires {
  DTypeOf<T>::value;
};

enum class ColumnKind : std::uint8_t {
  kDense,   ///< every row has the same shape
  kJagged,  ///< rows of different length, stored without padding
  kText,    ///< one string of bytes a row
  kJson,    ///< one JSON text a row
};

std::string_view column_kind_name(ColumnKind kind);

/// What every row of a column has in common.
struct ColumnType {
  ColumnKind kind = ColumnKind::kDense;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> row_shape;  ///< dense only; empty for one scalar a row
  bool operator==(const ColumnType&) const = default;
  /// `dense f32 [3, 4]`, `jagged i32`, `text`, `json`.
  std::string to_string() const;
};

/// Most rows that a batch may have; keeps row arithmetic far from overflow.
inline constexpr std::int64_t kRowsMax = std::int64_t{1} << 40;

/// Payload bytes that this thread copied since it started. Read it before and after.
struct CopyCounter {
  static std::int64_t bytes();
  static void add(std::int64_t bytes);
};

class Storage;
class Rope;
class PullMeter;
using RowMap = std::vector<std::int64_t>;

class Column {
 public:
  /// Dense column; `values` holds rows × product(row_shape) elements, row by row, and is moved in.
  /// CHECKs that the size divides; with a row size of zero use `dense_rows`.
  template <ColumnValue T>
  static Column dense(std::vector<T> values, std::vector<std::int64_t> row_shape = {});
  /// As `dense` with the number of rows given; needed when product(row_shape) is 0.
  template <ColumnValue T>
  static Column dense_rows(std::int64_t rows, std::vector<T> values,
                           std::vector<std::int64_t> row_shape);
  /// Jagged column; `lengths` [B] are ≥ 0 and sum to values.size() (CHECK).
  template <ColumnValue T>
  static Column jagged(std::vector<T> values, std::vector<std::int64_t> lengths);
  /// Jagged column from one vector a row.
  template <ColumnValue T>
  static Column jagged(const std::vector<std::vector<T>>& rows);
  /// Jagged column over values that `keep` keeps alive; nothing is copied.
  template <ColumnValue T>
  requires(!std::is_same_v<T, bool>) static Column
      jagged_view(std::span<const T> values, std::vector<std::int64_t> lengths,
                  std::shared_ptr<const void> keep);
  /// One string a row; any bytes.
  static Column strings(const std::vector<std::string>& rows);
  /// One JSON text a row; CHECKs that each parses. For text from outside use `parse_json`.
  static Column json(const std::vector<std::string>& rows);
  /// As `json`; the kInvalidArgument error names the first row that does not parse.
  static result<Column> parse_json(const std::vector<std::string>& rows);
  /// `rows` rows of zeros: dense zeros, jagged and text rows of length 0, JSON `null`.
  static Column zeros(const ColumnType& type, std::int64_t rows);

  std::int64_t rows() const { return count_; }
  const ColumnType& type() const;
  ColumnKind kind() const { return type().kind; }
  DType dtype() const { return type().dtype; }
  /// Elements in row `i` (bytes for text and JSON); known for references as well.
  std::int64_t row_length(std::int64_t i) const;
  /// [B] elements of each row.
  std::vector<std::int64_t> row_lengths() const;
  /// Elements, and payload bytes, of all rows; a repeated row counts each time.
  std::int64_t elements() const;
  std::int64_t bytes() const;

  /// Row `i` without a copy; valid while any column over the same storage lives. CHECKs the
  /// element type, the range, and that the column is resolved. Not for text: use `text`.
  template <ColumnValue T>
  std::span<const T> row(std::int64_t i) const;
  /// The only element of row `i` (CHECK).
  template <ColumnValue T>
  T scalar(std::int64_t i) const;
  /// All elements in row order, copied.
  template <ColumnValue T>
  std::vector<T> values() const;
  /// All elements in row order without a copy, when they lie side by side in one storage.
  template <ColumnValue T>
  std::optional<std::span<const T>> contiguous() const;
  /// Text or JSON of row `i` without a copy.
  std::string_view text(std::int64_t i) const;
  std::vector<std::string> texts() const;
  /// Raw bytes of row `i`, of any kind.
  std::span<const std::byte> row_bytes(std::int64_t i) const;

  /// Rows [first, first + count) (CHECK).
  Column slice(std::int64_t first, std::int64_t count) const;
  /// Rows in the given order, repeats allowed; every index in [0, rows) (CHECK).
  Column index(std::span<const std::int64_t> rows) const;
  /// One below the other. All parts must have one type (CHECK); at least one part.
  static Column concat(std::span<const Column> parts);

  /// The first row at which the two differ in length or in any bit; empty when equal. Rows past
  /// the shorter column differ. CHECKs equal types.
  std::optional<std::int64_t> first_difference(const Column& other) const;
  /// True when both are the same rows of the same storages, which needs no payload to tell; false
  /// says nothing.
  bool same_view(const Column& other) const;
  /// Same type and the same bits in every row.
  bool bitwise_equal(const Column& other) const;
  /// Row `i` for people: `[1, 2, 3]`, at most 8 elements or 60 bytes of text.
  std::string describe_row(std::int64_t i) const;

  /// True when some row lives at another owner, so that `resolve` must come before reading.
  bool is_reference() const;
  /// The same rows with all payload here. Pulls each remote row that is looked at once, however
  /// often it is repeated, and counts the bytes in `meter` when given. The error is kRankDead,
  /// kDeadline, kNotFound (or the owner's own) with the owner as origin. Blocks while rows come
  /// from another process; without a deadline its exchange's default holds.
  result<Column> resolve(PullMeter* meter = nullptr,
                         std::optional<Deadline> deadline = std::nullopt) const;
  /// A copy in storage of its own, so that the view keeps no larger block alive.
  Column compact() const;

 private:
  friend class ColumnAccess;
  Column(std::shared_ptr<const Rope> rope, std::shared_ptr<const RowMap> map, std::int64_t first,
         std::int64_t count);

  static Column own(ColumnType type, std::int64_t rows, std::shared_ptr<const void> owner,
                    std::span<const std::byte> payload, std::vector<std::int64_t> lengths);
  std::int64_t base_row(std::int64_t i) const;
  void require_dtype(DType wanted) const;
  std::optional<std::span<const std::byte>> contiguous_bytes() const;
  void copy_bytes(std::byte* target) const;

  std::shared_ptr<const Rope> rope_;
  std::shared_ptr<const RowMap> map_;  ///< rope rows of this column's window; null: identity
  std::int64_t first_ = 0;             ///< window into the map, or into the rope
  std::int64_t count_ = 0;
};

/// Elements in one row of shape `row_shape`; 1 for an empty shape. CHECKs signs and overflow.
std::int64_t row_elements(std::span<const std::int64_t> row_shape);

template <ColumnValue T>
Column Column::dense_rows(std::int64_t rows, std::vector<T> values,
                          std::vector<std::int64_t> row_shape) {
  ColumnType type{ColumnKind::kDense, DTypeOf<T>::value, std::move(row_shape)};
  if constexpr (std::is_same_v<T, bool>) {
    auto block = std::make_shared<std::vector<std::uint8_t>>(values.begin(), values.end());
    const auto payload = std::as_bytes(std::span<const std::uint8_t>(*block));
    return own(std::move(type), rows, std::move(block), payload, {});
  } else {
    auto block = std::make_shared<std::vector<T>>(std::move(values));
    const auto payload = std::as_bytes(std::span<const T>(*block));
    return own(std::move(type), rows, std::move(block), payload, {});
  }
}

template <ColumnValue T>
Column Column::dense(std::vector<T> values, std::vector<std::int64_t> row_shape) {
  const std::int64_t wanted = row_elements(row_shape);
  const auto found = static_cast<std::int64_t>(values.size());
  TROUPE_CHECK(wanted > 0 || found == 0, "column: {} values, rows of 0 elements", found);
  return dense_rows<T>(wanted == 0 ? 0 : found / wanted, std::move(values), std::move(row_shape));
}

template <ColumnValue T>
Column Column::jagged(std::vector<T> values, std::vector<std::int64_t> lengths) {
  ColumnType type{ColumnKind::kJagged, DTypeOf<T>::value, {}};
  const auto rows = static_cast<std::int64_t>(lengths.size());
  if constexpr (std::is_same_v<T, bool>) {
    auto block = std::make_shared<std::vector<std::uint8_t>>(values.begin(), values.end());
    const auto payload = std::as_bytes(std::span<const std::uint8_t>(*block));
    return own(std::move(type), rows, std::move(block), payload, std::move(lengths));
  } else {
    auto block = std::make_shared<std::vector<T>>(std::move(values));
    const auto payload = std::as_bytes(std::span<const T>(*block));
    return own(std::move(type), rows, std::move(block), payload, std::move(lengths));
  }
}

template <ColumnValue T>
Column Column::jagged(const std::vector<std::vector<T>>& rows) {
  std::vector<T> values;
  std::vector<std::int64_t> lengths;
  lengths.reserve(rows.size());
  for (const std::vector<T>& one : rows) {
    values.insert(values.end(), one.begin(), one.end());
    lengths.push_back(static_cast<std::int64_t>(one.size()));
  }
  return jagged<T>(std::move(values), std::move(lengths));
}

template <ColumnValue T>
requires(!std::is_same_v<T, bool>) Column Column::jagged_view(std::span<const T> values,
                                                              std::vector<std::int64_t> lengths,
                                                              std::shared_ptr<const void> keep) {
  const auto rows = static_cast<std::int64_t>(lengths.size());
  return own({ColumnKind::kJagged, DTypeOf<T>::value, {}}, rows, std::move(keep),
             std::as_bytes(values), std::move(lengths));
}

template <ColumnValue T>
std::span<const T> Column::row(std::int64_t i) const {
  require_dtype(DTypeOf<T>::value);
  const auto bytes = row_bytes(i);
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

template <ColumnValue T>
T Column::scalar(std::int64_t i) const {
  const auto values = row<T>(i);
  TROUPE_CHECK(values.size() == 1, "column: row {} has {} elements, wanted 1", i, values.size());
  return values[0];
}

template <ColumnValue T>
std::vector<T> Column::values() const {
  require_dtype(DTypeOf<T>::value);
  if constexpr (std::is_same_v<T, bool>) {
    std::vector<std::uint8_t> raw(static_cast<std::size_t>(elements()));
    copy_bytes(reinterpret_cast<std::byte*>(raw.data()));
    return std::vector<bool>(raw.begin(), raw.end());
  } else {
    std::vector<T> all(static_cast<std::size_t>(elements()));
    copy_bytes(reinterpret_cast<std::byte*>(all.data()));
    return all;
  }
}

template <ColumnValue T>
std::optional<std::span<const T>> Column::contiguous() const {
  require_dtype(DTypeOf<T>::value);
  const auto bytes = contiguous_bytes();
  if (!bytes) return std::nullopt;
  return std::span<const T>{reinterpret_cast<const T*>(bytes->data()), bytes->size() / sizeof(T)};
}

}  // namespace troupe::runtime

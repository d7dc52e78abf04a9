#include "runtime/batch/column.hpp"

#include "runtime/batch/column_storage.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstring>
#include <limits>

namespace troupe::runtime {
namespace {

thread_local std::int64_t copied_bytes = 0;

constexpr std::int64_t kElementsMax = std::int64_t{1} << 56;

/// All rows of text in one block, with their lengths.
Column text_column(ColumnKind kind, const std::vector<std::string>& rows) {
  std::size_t total = 0;
  std::vector<std::int64_t> lengths;
  lengths.reserve(rows.size());
  for (const std::string& row : rows) {
    total += row.size();
    lengths.push_back(static_cast<std::int64_t>(row.size()));
  }
  auto block = std::make_shared<std::string>();
  block->reserve(total);
  for (const std::string& row : rows) *block += row;
  const auto* data = reinterpret_cast<const std::byte*>(block->data());
  return ColumnAccess::view(ColumnType{kind, DType::kU8, {}},
                            static_cast<std::int64_t>(rows.size()), std::move(block), data,
                            offsets_of(lengths));
}

}  // namespace

std::string_view dtype_name(DType dtype) {
  constexpr std::array<std::string_view, 6> kNames{"f32", "f64", "i64", "i32", "u8", "bool"};
  return kNames[static_cast<std::size_t>(dtype)];
}

std::int64_t dtype_bytes(DType dtype) {
  constexpr std::array<std::int64_t, 6> kBytes{4, 8, 8, 4, 1, 1};
  return kBytes[static_cast<std::size_t>(dtype)];
}

std::string_view column_kind_name(ColumnKind kind) {
  constexpr std::array<std::string_view, 4> kNames{"dense", "jagged", "text", "json"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string ColumnType::to_string() const {
  if (kind == ColumnKind::kText || kind == ColumnKind::kJson)
    return std::string(column_kind_name(kind));
  std::string text = fmt::format("{} {}", column_kind_name(kind), dtype_name(dtype));
  if (kind == ColumnKind::kDense) text += fmt::format(" [{}]", fmt::join(row_shape, ", "));
  return text;
}

std::int64_t CopyCounter::bytes() { return copied_bytes; }
void CopyCounter::add(std::int64_t bytes) { copied_bytes += bytes; }

std::int64_t row_elements(std::span<const std::int64_t> row_shape) {
  std::int64_t product = 1;
  for (const std::int64_t side : row_shape) {
    TROUPE_CHECK(side >= 0, "column: row shape [{}] has side {}", fmt::join(row_shape, ", "), side);
    TROUPE_CHECK(side == 0 || product <= kElementsMax / side, "column: row shape [{}] overflows",
                 fmt::join(row_shape, ", "));
    product *= side;
  }
  return product;
}

OffsetTable offsets_of(std::span<const std::int64_t> lengths) {
  auto offsets = std::make_shared<std::vector<std::int64_t>>();
  offsets->reserve(lengths.size() + 1);
  offsets->push_back(0);
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) {
    TROUPE_CHECK(length >= 0 && length <= kElementsMax - total,
                 "column: row {} has length {}, wanted 0..{}", offsets->size() - 1, length,
                 kElementsMax - total);
    total += length;
    offsets->push_back(total);
  }
  return offsets;
}

Column::Column(std::shared_ptr<const Rope> rope, std::shared_ptr<const RowMap> map,
               std::int64_t first, std::int64_t count)
    : rope_(std::move(rope)), map_(std::move(map)), first_(first), count_(count) {}

Column Column::own(ColumnType type, std::int64_t rows, std::shared_ptr<const void> owner,
                   std::span<const std::byte> payload, std::vector<std::int64_t> lengths) {
  TROUPE_CHECK(rows >= 0 && rows <= kRowsMax, "column: {} rows, wanted 0..{}", rows, kRowsMax);
  const auto found = static_cast<std::int64_t>(payload.size()) / dtype_bytes(type.dtype);
  OffsetTable offsets;
  if (type.kind == ColumnKind::kDense) {
    const std::int64_t wanted = row_elements(type.row_shape);
    TROUPE_CHECK(wanted == 0 ? found == 0 : found % wanted == 0 && found / wanted == rows,
                 "column: {} values, wanted {} rows of {}", found, rows, wanted);
  } else {
    offsets = offsets_of(lengths);
    TROUPE_CHECK(offsets->back() == found, "column: {} values, row lengths sum to {}", found,
                 offsets->back());
  }
  return ColumnAccess::view(std::move(type), rows, std::move(owner), payload.data(),
                            std::move(offsets));
}

Column Column::strings(const std::vector<std::string>& rows) {
  return text_column(ColumnKind::kText, rows);
}

Column Column::json(const std::vector<std::string>& rows) {
  result<Column> parsed = parse_json(rows);
  TROUPE_CHECK(parsed.has_value(), "{}", parsed.error().message);
  return *std::move(parsed);
}

result<Column> Column::parse_json(const std::vector<std::string>& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!nlohmann::json::accept(rows[i]))
      return fail(ErrorCode::kInvalidArgument, "json column: row {}: not a json text: {}", i,
                  rows[i].substr(0, 60));
  }
  return text_column(ColumnKind::kJson, rows);
}

Column Column::zeros(const ColumnType& type, std::int64_t rows) {
  TROUPE_CHECK(rows >= 0 && rows <= kRowsMax, "column: {} rows, wanted 0..{}", rows, kRowsMax);
  if (type.kind == ColumnKind::kJson)
    return text_column(type.kind, std::vector<std::string>(static_cast<std::size_t>(rows), "null"));
  std::vector<std::int64_t> lengths;
  std::int64_t bytes = 0;
  if (type.kind == ColumnKind::kDense) {
    const std::int64_t one = row_elements(type.row_shape);
    TROUPE_CHECK(one == 0 || rows <= kElementsMax / one, "column: {} rows of {} overflow", rows,
                 one);
    bytes = rows * one * dtype_bytes(type.dtype);
  } else {
    lengths.resize(static_cast<std::size_t>(rows));
  }
  auto block = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
  const std::span<const std::byte> payload(*block);
  return own(type, rows, std::move(block), payload, std::move(lengths));
}

const ColumnType& Column::type() const { return rope_->type; }

std::int64_t Column::base_row(std::int64_t i) const {
  TROUPE_CHECK(i >= 0 && i < count_, "column: row {}, wanted 0..{}", i, count_ - 1);
  return map_ ? (*map_)[static_cast<std::size_t>(first_ + i)] : first_ + i;
}

std::int64_t Column::row_length(std::int64_t i) const {
  const Rope::Place place = rope_->locate(base_row(i));
  return place.storage->length(place.row);
}

std::vector<std::int64_t> Column::row_lengths() const {
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(count_));
  for (const Run& run : ColumnAccess::runs(*this)) {
    for (std::int64_t i = 0; i < run.count; ++i)
      lengths.push_back((*run.storage)->length(run.first + i));
  }
  return lengths;
}

std::int64_t Column::elements() const {
  if (kind() == ColumnKind::kDense) return count_ * row_elements(type().row_shape);
  std::int64_t total = 0;
  for (const Run& run : ColumnAccess::runs(*this))
    total += (*run.storage)->elements(run.first, run.count);
  return total;
}

std::int64_t Column::bytes() const { return elements() * dtype_bytes(dtype()); }

void Column::require_dtype(DType wanted) const {
  TROUPE_CHECK(dtype() == wanted, "column: holds {}, asked for {}", type().to_string(),
               dtype_name(wanted));
}

std::span<const std::byte> Column::row_bytes(std::int64_t i) const {
  const Rope::Place place = rope_->locate(base_row(i));
  TROUPE_CHECK(!place.storage->lease, "column: row {} is a reference; resolve before reading", i);
  return place.storage->bytes(place.row, 1);
}

std::string_view Column::text(std::int64_t i) const {
  TROUPE_CHECK(kind() == ColumnKind::kText || kind() == ColumnKind::kJson,
               "column: holds {}, asked for text", type().to_string());
  const auto bytes = row_bytes(i);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::string> Column::texts() const {
  std::vector<std::string> all;
  all.reserve(static_cast<std::size_t>(count_));
  for (std::int64_t i = 0; i < count_; ++i) all.emplace_back(text(i));
  CopyCounter::add(bytes());
  return all;
}

std::optional<std::span<const std::byte>> Column::contiguous_bytes() const {
  const std::vector<Run> runs = ColumnAccess::runs(*this);
  if (runs.empty()) return std::span<const std::byte>{};
  if (runs.size() > 1) return std::nullopt;
  const Storage& storage = **runs[0].storage;
  TROUPE_CHECK(!storage.lease, "column: is a reference; resolve before reading");
  return storage.bytes(runs[0].first, runs[0].count);
}

void Column::copy_bytes(std::byte* target) const {
  for (const Run& run : ColumnAccess::runs(*this)) {
    const Storage& storage = **run.storage;
    TROUPE_CHECK(!storage.lease, "column: is a reference; resolve before reading");
    const auto bytes = storage.bytes(run.first, run.count);
    if (bytes.empty()) continue;
    std::memcpy(target, bytes.data(), bytes.size());
    target += bytes.size();
    CopyCounter::add(static_cast<std::int64_t>(bytes.size()));
  }
}

Column Column::compact() const {
  auto block = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes()));
  copy_bytes(block->data());
  OffsetTable offsets;
  if (kind() != ColumnKind::kDense) offsets = offsets_of(row_lengths());
  const std::byte* data = block->data();
  return ColumnAccess::view(type(), count_, std::move(block), data, std::move(offsets));
}

}  // namespace troupe::runtime

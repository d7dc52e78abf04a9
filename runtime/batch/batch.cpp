#include "runtime/batch/batch.hpp"

#include "runtime/batch/column_lease.hpp"
#include "runtime/batch/column_ref.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace troupe::runtime {
namespace {

std::string joined_names(const Batch::Columns& columns) {
  std::string text;
  for (const auto& [name, column] : columns) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

tl::unexpected<Error> no_column(std::string_view name, const Batch::Columns& columns) {
  return fail(ErrorCode::kNotFound, "batch: no column {}; has {}", name, joined_names(columns));
}

result<void> merge_metadata(Batch::Metadata& into, const Batch::Metadata& from,
                            std::string_view place) {
  for (const auto& [key, value] : from) {
    const auto [entry, added] = into.emplace(key, value);
    if (!added && entry->second != value)
      return fail(ErrorCode::kConflict, "{}: metadata {}: {} against {}", place, key, entry->second,
                  value);
  }
  return {};
}

/// Why `other` is not the same column as `column`; nothing when it is.
result<void> check_same(const std::string& name, const Column& column, const Column& other,
                        PullMeter* meter) {
  if (column.type() != other.type())
    return fail(ErrorCode::kConflict, "merge: column {}: {} against {}", name,
                column.type().to_string(), other.type().to_string());
  if (column.same_view(other)) return {};
  TROUPE_TRY(const Column left, column.resolve(meter));
  TROUPE_TRY(const Column right, other.resolve(meter));
  if (const auto row = left.first_difference(right))
    return fail(ErrorCode::kConflict, "merge: column {}: row {}: {} against {}", name, *row,
                left.describe_row(*row), right.describe_row(*row));
  return {};
}

/// The columns called `name` of all parts, one below the other.
result<Column> concat_column(const std::string& name, const Column& head,
                             std::span<const Batch> parts) {
  std::vector<Column> pieces;
  pieces.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Column* piece = parts[i].find(name);
    if (piece == nullptr)
      return fail(ErrorCode::kConflict, "concat: column {}: part 0 has it, part {} has only {}",
                  name, i, joined_names(parts[i].columns()));
    if (piece->type() != head.type())
      return fail(ErrorCode::kConflict, "concat: column {}: part 0 has {}, part {} has {}", name,
                  head.type().to_string(), i, piece->type().to_string());
    pieces.push_back(*piece);
  }
  return Column::concat(pieces);
}

}  // namespace

Batch::Batch(std::int64_t rows) : rows_(rows) {
  TROUPE_CHECK(rows >= 0 && rows <= kRowsMax, "batch: {} rows, wanted 0..{}", rows, kRowsMax);
}

std::int64_t Batch::bytes() const {
  std::int64_t total = 0;
  for (const auto& [name, column] : columns_) total += column.bytes();
  return total;
}

std::vector<std::string> Batch::names() const {
  std::vector<std::string> all;
  for (const auto& [name, column] : columns_) all.push_back(name);
  return all;
}

const Column* Batch::find(std::string_view name) const {
  const auto place = columns_.find(name);
  return place == columns_.end() ? nullptr : &place->second;
}

const Column& Batch::column(std::string_view name) const {
  const Column* found = find(name);
  TROUPE_CHECK(found != nullptr, "batch: no column {}; has {}", name, joined_names(columns_));
  return *found;
}

result<Column> Batch::require(std::string_view name) const {
  const Column* found = find(name);
  if (found == nullptr) return no_column(name, columns_);
  return *found;
}

result<void> Batch::set(std::string name, Column column) {
  if (rows_ && *rows_ != column.rows())
    return fail(ErrorCode::kConflict, "batch: column {}: {} rows, the batch has {}", name,
                column.rows(), *rows_);
  if (name == kValidColumn && column.type() != ColumnType{ColumnKind::kDense, DType::kBool, {}})
    return fail(ErrorCode::kInvalidArgument, "batch: column {}: {}, wanted dense bool []", name,
                column.type().to_string());
  rows_ = column.rows();
  columns_.insert_or_assign(std::move(name), std::move(column));
  return {};
}

result<void> Batch::set_metadata(std::string key, std::string json) {
  if (!nlohmann::json::accept(json))
    return fail(ErrorCode::kInvalidArgument, "batch: metadata {}: not a json text: {}", key,
                json.substr(0, 60));
  metadata_.insert_or_assign(std::move(key), std::move(json));
  return {};
}

void Batch::erase_metadata(std::string_view key) {
  const auto place = metadata_.find(key);
  if (place != metadata_.end()) metadata_.erase(place);
}

result<Batch> Batch::select(Names names) const {
  Batch chosen = shell();
  chosen.metrics_ = metrics_;
  for (const std::string& name : names) {
    const auto place = columns_.find(name);
    if (place == columns_.end()) return no_column(name, columns_);
    chosen.columns_.emplace(*place);
  }
  return chosen;
}

result<Batch> Batch::select(std::initializer_list<std::string> names) const {
  return select(Names(names.begin(), names.size()));
}

result<Batch> Batch::drop(Names names) const {
  Batch rest = *this;
  for (const std::string& name : names) {
    if (!has(name)) return no_column(name, columns_);
    rest.columns_.erase(name);
  }
  return rest;
}

result<Batch> Batch::drop(std::initializer_list<std::string> names) const {
  return drop(Names(names.begin(), names.size()));
}

result<Batch> Batch::rename(std::string_view from, std::string to) const {
  const auto place = columns_.find(from);
  if (place == columns_.end()) return no_column(from, columns_);
  if (from == to) return *this;
  if (has(to))
    return fail(ErrorCode::kAlreadyExists, "batch: rename {} to {}: a column {} exists", from, to,
                to);
  Batch renamed = *this;
  renamed.columns_.erase(renamed.columns_.find(from));
  TROUPE_TRY_VOID(renamed.set(std::move(to), place->second));
  return renamed;
}

result<Batch> Batch::concat(std::span<const Batch> parts) {
  if (parts.empty()) return fail(ErrorCode::kInvalidArgument, "concat: no parts");
  const Batch& head = parts.front();
  std::int64_t rows = 0;
  Batch whole;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    rows += parts[i].rows();
    if (rows > kRowsMax)
      return fail(ErrorCode::kInvalidArgument, "concat: {} rows, wanted at most {}", rows,
                  kRowsMax);
    TROUPE_TRY_VOID(
        merge_metadata(whole.metadata_, parts[i].metadata_, fmt::format("concat: part {}", i)));
    TROUPE_TRY_VOID(whole.metrics_.merge(parts[i].metrics_));
    if (parts[i].columns_.size() <= head.columns_.size()) continue;
    for (const auto& [name, column] : parts[i].columns_) {
      if (!head.has(name))
        return fail(ErrorCode::kConflict, "concat: column {}: part {} has it, part 0 has only {}",
                    name, i, joined_names(head.columns_));
    }
  }
  for (const auto& [name, column] : head.columns_) {
    TROUPE_TRY(Column joined, concat_column(name, column, parts));
    whole.columns_.emplace(name, std::move(joined));
  }
  whole.rows_ = rows;
  return whole;
}

result<void> Batch::merge(const Batch& other, PullMeter* meter) {
  if (rows_ && other.rows_ && *rows_ != *other.rows_)
    return fail(ErrorCode::kConflict, "merge: {} rows against {}{}", *other.rows_, *rows_,
                other.has(kValidColumn) != has(kValidColumn) ? "; padding was not stripped" : "");
  for (const auto& [name, column] : other.columns_) {
    const Column* mine = find(name);
    if (mine != nullptr) TROUPE_TRY_VOID(check_same(name, *mine, column, meter));
  }
  Metadata metadata = metadata_;
  TROUPE_TRY_VOID(merge_metadata(metadata, other.metadata_, "merge"));
  TROUPE_TRY_VOID(metrics_.merge(other.metrics_));  // the last step that can fail
  metadata_ = std::move(metadata);
  for (const auto& entry : other.columns_) columns_.insert(entry);
  if (!rows_) rows_ = other.rows_;
  return {};
}

bool operator==(const Batch& a, const Batch& b) {
  return a.rows() == b.rows() && a.metadata_ == b.metadata_ && a.metrics_ == b.metrics_ &&
         a.columns_.size() == b.columns_.size() &&
         std::equal(a.columns_.begin(), a.columns_.end(), b.columns_.begin(),
                    [](const auto& left, const auto& right) {
                      return left.first == right.first && left.second.bitwise_equal(right.second);
                    });
}

bool Batch::has_references() const {
  return std::any_of(columns_.begin(), columns_.end(),
                     [](const auto& entry) { return entry.second.is_reference(); });
}

result<Batch> Batch::resolve(PullMeter* meter, std::optional<Deadline> deadline) const {
  const std::vector<std::string> all = names();
  return resolve(all, meter, deadline);
}

result<Batch> Batch::resolve(Names names, PullMeter* meter,
                             std::optional<Deadline> deadline) const {
  Batch resolved = *this;
  std::vector<const Column*> wanted;
  wanted.reserve(names.size());
  for (const std::string& name : names) {
    const auto place = columns_.find(name);
    if (place == columns_.end()) return no_column(name, columns_);
    wanted.push_back(&place->second);
  }
  auto pulled = resolve_columns(wanted, meter, deadline);
  if (!pulled) {
    Error error = std::move(pulled.error().error);
    error.message = fmt::format("column {}: {}", names[pulled.error().column], error.message);
    return fail(std::move(error));
  }
  for (std::size_t i = 0; i < names.size(); ++i)
    resolved.columns_.find(names[i])->second = std::move((*pulled)[i]);
  return resolved;
}

result<Batch> Batch::to(std::string_view device, PullMeter* meter) const {
  if (device != "cpu")
    return fail(ErrorCode::kUnsupported, "batch: device '{}', this build keeps batches on 'cpu'",
                device);
  TROUPE_TRY(Batch here, resolve(meter));
  for (auto& [name, column] : here.columns_) column = column.compact();
  return here;
}

}  // namespace troupe::runtime

// Views over storages: slice, index, concat, and the runs that everything else walks.

#include "runtime/batch/column_storage.hpp"

#include <algorithm>
#include <numeric>

namespace troupe::runtime {

std::size_t Rope::range_of(std::int64_t row) const {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), row,
                       [](std::int64_t wanted, const RopeRange& r) { return wanted < r.start; });
  return static_cast<std::size_t>(after - ranges.begin()) - 1;
}

RopeBuilder::RopeBuilder(ColumnType type) : rope_(std::make_shared<Rope>()) {
  rope_->type = std::move(type);
}

std::uint32_t RopeBuilder::storage_index(const StoragePointer& storage) {
  const auto place = std::lower_bound(
      sorted_.begin(), sorted_.end(), storage.get(),
      [](const auto& entry, const Storage* wanted) { return std::less<>{}(entry.first, wanted); });
  if (place != sorted_.end() && place->first == storage.get()) return place->second;
  const auto index = static_cast<std::uint32_t>(rope_->storages.size());
  sorted_.insert(place, {storage.get(), index});
  rope_->storages.push_back(storage);
  return index;
}

void RopeBuilder::add(const StoragePointer& storage, std::int64_t first, std::int64_t count) {
  if (count == 0) return;
  if (!rope_->ranges.empty()) {
    const RopeRange& back = rope_->ranges.back();
    const bool continues = rope_->storages[back.storage] == storage &&
                           back.first + (rope_->rows - back.start) == first;
    if (continues) {
      rope_->rows += count;
      return;
    }
  }
  rope_->ranges.push_back({storage_index(storage), first, rope_->rows});
  rope_->rows += count;
}

Column RopeBuilder::finish() && { return ColumnAccess::make(std::move(rope_)); }

Column ColumnAccess::make(std::shared_ptr<const Rope> rope) {
  const std::int64_t rows = rope->rows;
  return Column(std::move(rope), nullptr, 0, rows);
}

Column ColumnAccess::make(ColumnType type, StoragePointer storage) {
  RopeBuilder builder(std::move(type));
  const std::int64_t rows = storage->rows;
  builder.add(storage, 0, rows);
  return std::move(builder).finish();
}

Column ColumnAccess::view(ColumnType type, std::int64_t rows, std::shared_ptr<const void> owner,
                          const std::byte* data, OffsetTable offsets) {
  auto storage = std::make_shared<Storage>();
  storage->rows = rows;
  storage->element_bytes = dtype_bytes(type.dtype);
  storage->row_elements = type.kind == ColumnKind::kDense ? row_elements(type.row_shape) : 0;
  storage->offsets = std::move(offsets);
  storage->data = data;
  storage->owner = std::move(owner);
  return make(std::move(type), std::move(storage));
}

std::vector<Run> ColumnAccess::runs(const Column& column) {
  const Rope& rope = *column.rope_;
  std::vector<Run> all;
  const auto push = [&](const StoragePointer& storage, std::int64_t first, std::int64_t count) {
    if (!all.empty() && *all.back().storage == storage &&
        all.back().first + all.back().count == first) {
      all.back().count += count;
    } else {
      all.push_back({&storage, first, count});
    }
  };
  if (column.count_ == 0) return all;
  if (column.map_) {
    for (std::int64_t i = 0; i < column.count_; ++i) {
      const std::int64_t row = (*column.map_)[static_cast<std::size_t>(column.first_ + i)];
      const RopeRange& range = rope.ranges[rope.ranges.size() == 1 ? 0 : rope.range_of(row)];
      push(rope.storages[range.storage], range.first + row - range.start, 1);
    }
    return all;
  }
  const std::int64_t end = column.first_ + column.count_;
  for (std::size_t r = rope.range_of(column.first_);
       r < rope.ranges.size() && rope.ranges[r].start < end; ++r) {
    const RopeRange& range = rope.ranges[r];
    const std::int64_t from = std::max(column.first_, range.start);
    const std::int64_t to = std::min(end, range.start + rope.range_rows(r));
    push(rope.storages[range.storage], range.first + from - range.start, to - from);
  }
  return all;
}

Column Column::slice(std::int64_t first, std::int64_t count) const {
  TROUPE_CHECK(first >= 0 && count >= 0 && first <= count_ && count <= count_ - first,
               "column: slice of {} rows from {}, wanted within {}", count, first, count_);
  if (count == 0) return RopeBuilder(type()).finish();
  if (map_ || rope_->storages.size() == 1) return {rope_, map_, first_ + first, count};
  // A window over many storages lets go of those that it does not cover, and of their leases.
  RopeBuilder builder(type());
  const Column window(rope_, nullptr, first_ + first, count);
  for (const Run& run : ColumnAccess::runs(window)) builder.add(*run.storage, run.first, run.count);
  return std::move(builder).finish();
}

std::shared_ptr<const RowMap> ColumnAccess::compose(const Column& column,
                                                    std::span<const std::int64_t> rows) {
  auto map = std::make_shared<RowMap>(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    TROUPE_DCHECK(rows[i] >= 0 && rows[i] < column.count_, "column: index {} of {}", rows[i],
                  column.count_);
    const std::int64_t row = column.first_ + rows[i];
    (*map)[i] = column.map_ ? (*column.map_)[static_cast<std::size_t>(row)] : row;
  }
  return map;
}

Column ColumnAccess::through(const Column& column, std::shared_ptr<const RowMap> map) {
  const auto count = static_cast<std::int64_t>(map->size());
  const Rope& rope = *column.rope_;
  if (count == 0) return RopeBuilder(rope.type).finish();
  const Column all(column.rope_, map, 0, count);
  if (rope.storages.size() == 1) return all;
  std::vector<bool> used(rope.storages.size());
  std::size_t used_count = 0;
  for (const std::int64_t row : *map) {
    const std::uint32_t storage = rope.ranges[rope.range_of(row)].storage;
    if (!used[storage]) ++used_count;
    used[storage] = true;
  }
  if (used_count == rope.storages.size()) return all;
  RopeBuilder builder(rope.type);
  for (const Run& run : runs(all)) builder.add(*run.storage, run.first, run.count);
  return std::move(builder).finish();
}

OffsetTable ColumnAccess::offset_table(const Column& column) {
  const std::vector<Run> all = runs(column);
  if (all.size() == 1 && all[0].first == 0 && all[0].count == (*all[0].storage)->rows)
    return (*all[0].storage)->offsets;
  return offsets_of(column.row_lengths());
}

Column Column::index(std::span<const std::int64_t> rows) const {
  for (std::size_t i = 0; i < rows.size(); ++i)
    TROUPE_CHECK(rows[i] >= 0 && rows[i] < count_, "column: index {} at {}, wanted 0..{}", rows[i],
                 i, count_ - 1);
  return ColumnAccess::through(*this, ColumnAccess::compose(*this, rows));
}

Column Column::concat(std::span<const Column> parts) {
  TROUPE_CHECK(!parts.empty(), "column: concat of no parts");
  const Column& head = parts.front();
  bool adjacent = true;  // windows of one view that follow one another: the join is a window too
  std::int64_t count = head.count_;
  for (const Column& part : parts.subspan(1)) {
    TROUPE_CHECK(part.type() == head.type(), "column: concat of {} and {}", head.type().to_string(),
                 part.type().to_string());
    if (part.count_ == 0) continue;
    adjacent = adjacent && part.rope_ == head.rope_ && part.map_ == head.map_ &&
               part.first_ == head.first_ + count;
    count += part.count_;
  }
  if (adjacent) return {head.rope_, head.map_, head.first_, count};
  RopeBuilder builder(head.type());
  for (const Column& part : parts) {
    for (const Run& run : ColumnAccess::runs(part)) builder.add(*run.storage, run.first, run.count);
  }
  return std::move(builder).finish();
}

bool Column::is_reference() const {
  const std::vector<StoragePointer>& storages = rope_->storages;
  if (std::none_of(storages.begin(), storages.end(),
                   [](const StoragePointer& s) { return s->lease != nullptr; }))
    return false;
  const std::vector<Run> runs = ColumnAccess::runs(*this);
  return std::any_of(runs.begin(), runs.end(),
                     [](const Run& run) { return (*run.storage)->lease != nullptr; });
}

}  // namespace troupe::runtime

#include "runtime/batch/column_ref.hpp"

#include "runtime/batch/column_storage.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace troupe::runtime {

class ColumnStore::Core {
 public:
  explicit Core(ColumnOwner who) : owner(std::move(who)) {}

  result<ColumnId> keep(const Column& column) {
    const std::lock_guard lock(mutex_);
    if (revoked_) return fail(*revoked_);
    const ColumnId id{++last_id_};
    bytes_held_ += column.bytes();
    columns_.emplace(id, column);
    return id;
  }

  void release(ColumnId id) {
    std::optional<Column> freed;  // payload is freed outside the lock
    const std::lock_guard lock(mutex_);
    const auto place = columns_.find(id);
    if (place == columns_.end()) return;
    bytes_held_ -= place->second.bytes();
    freed = std::move(place->second);
    columns_.erase(place);
  }

  void revoke(Error cause) {
    std::unordered_map<ColumnId, Column> freed;
    const std::lock_guard lock(mutex_);
    if (!revoked_) revoked_ = std::move(cause).at(origin());
    columns_.swap(freed);
    bytes_held_ = 0;
  }

  result<Column> pull(ColumnId id, std::int64_t first, std::int64_t count) {
    const std::lock_guard lock(mutex_);
    if (revoked_) return fail(*revoked_);
    const auto place = columns_.find(id);
    TROUPE_CHECK(place != columns_.end(), "column store of {} rank {}: column {} is not held",
                 owner.group, owner.rank.value, id.value);
    Column rows = place->second.slice(first, count);
    bytes_pulled_ += rows.bytes();
    return rows;
  }

  Origin origin() const { return Origin{.group = owner.group, .rank = owner.rank, .node = {}}; }

  struct Totals {
    std::int64_t columns = 0;
    std::int64_t bytes_held = 0;
    std::int64_t bytes_pulled = 0;
  };
  Totals totals() const {
    const std::lock_guard lock(mutex_);
    return {static_cast<std::int64_t>(columns_.size()), bytes_held_, bytes_pulled_};
  }

  const ColumnOwner owner;

 private:
  mutable std::mutex mutex_;  ///< guards everything below
  std::unordered_map<ColumnId, Column> columns_;
  std::optional<Error> revoked_;
  std::uint64_t last_id_ = 0;
  std::int64_t bytes_held_ = 0;
  std::int64_t bytes_pulled_ = 0;
};

/// Keeps one column alive in its store for as long as some storage refers to it.
class ColumnLease {
 public:
  ColumnLease(std::shared_ptr<ColumnStore::Core> core, ColumnId id)
      : core_(std::move(core)), id_(id) {}
  ~ColumnLease() { core_->release(id_); }
  ColumnLease(const ColumnLease&) = delete;
  ColumnLease& operator=(const ColumnLease&) = delete;

  result<Column> pull(std::int64_t first, std::int64_t count) const {
    return core_->pull(id_, first, count);
  }
  const ColumnOwner& owner() const { return core_->owner; }
  ColumnId id() const { return id_; }

 private:
  std::shared_ptr<ColumnStore::Core> core_;
  ColumnId id_;
};

namespace {

OffsetTable shared_table(std::vector<OffsetTable>& tables, OffsetTable table) {
  for (const OffsetTable& known : tables) {
    if (known == table || *known == *table) return known;
  }
  tables.push_back(table);
  return table;
}

/// Half-open rows of one storage.
struct Interval {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// The union of the intervals, in order.
std::vector<Interval> merged(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.first < b.first; });
  std::vector<Interval> joined;
  for (const Interval& one : intervals) {
    if (!joined.empty() && one.first <= joined.back().end)
      joined.back().end = std::max(joined.back().end, one.end);
    else
      joined.push_back(one);
  }
  return joined;
}

/// What one view looks at in one remote storage, and the payload once it is here.
struct Wanted {
  StoragePointer storage;
  std::vector<Interval> rows;
  std::vector<Column> pulled;  ///< one for each of `rows`

  /// Puts rows [first, first + count), which lie within one interval, into `builder`.
  void give(RopeBuilder& builder, std::int64_t first, std::int64_t count) const {
    const auto after =
        std::upper_bound(rows.begin(), rows.end(), first,
                         [](std::int64_t row, const Interval& one) { return row < one.first; });
    const auto place = static_cast<std::size_t>(after - rows.begin()) - 1;
    const Column piece = pulled[place].slice(first - rows[place].first, count);
    for (const Run& run : ColumnAccess::runs(piece))
      builder.add(*run.storage, run.first, run.count);
  }
};

/// Whose the run is: its lease, or null when it is local.
const ColumnLease* lease_of(const Run& run) { return (*run.storage)->lease.get(); }

}  // namespace

ColumnStore::ColumnStore(ColumnOwner owner) : core_(std::make_shared<Core>(std::move(owner))) {}

ColumnStore::~ColumnStore() {
  core_->revoke(Error{.code = ErrorCode::kRankDead,
                      .message = fmt::format("column store of {} rank {} is gone", owner().group,
                                             owner().rank.value),
                      .origin = {},
                      .causes = {}});
}

const ColumnOwner& ColumnStore::owner() const { return core_->owner; }
std::int64_t ColumnStore::columns_held() const { return core_->totals().columns; }
std::int64_t ColumnStore::bytes_held() const { return core_->totals().bytes_held; }
std::int64_t ColumnStore::bytes_pulled() const { return core_->totals().bytes_pulled; }
void ColumnStore::revoke(Error cause) { core_->revoke(std::move(cause)); }

result<Column> ColumnStore::put_sharing(const Column& column, LengthTables& tables) {
  std::vector<Column> pieces;
  std::int64_t first = 0;
  const std::vector<Run> runs = ColumnAccess::runs(column);
  for (std::size_t i = 0; i < runs.size();) {
    const bool local = lease_of(runs[i]) == nullptr;
    std::int64_t count = 0;
    for (; i < runs.size() && (lease_of(runs[i]) == nullptr) == local; ++i) count += runs[i].count;
    Column piece = column.slice(first, count);
    first += count;
    if (!local) {
      pieces.push_back(std::move(piece));
      continue;
    }
    auto storage = std::make_shared<Storage>();
    storage->rows = count;
    storage->element_bytes = dtype_bytes(column.dtype());
    if (column.kind() == ColumnKind::kDense)
      storage->row_elements = row_elements(column.type().row_shape);
    else
      storage->offsets = shared_table(tables, ColumnAccess::offset_table(piece));
    TROUPE_TRY(const ColumnId id, core_->keep(piece));
    storage->lease = std::make_shared<const ColumnLease>(core_, id);
    pieces.push_back(ColumnAccess::make(column.type(), std::move(storage)));
  }
  return pieces.empty() ? column : Column::concat(pieces);
}

result<Column> ColumnStore::put(const Column& column) {
  LengthTables tables;
  return put_sharing(column, tables);
}

result<Batch> ColumnStore::put(const Batch& batch) {
  LengthTables tables;
  Batch references = batch;
  for (const auto& [name, column] : batch.columns()) {
    TROUPE_TRY(Column reference, put_sharing(column, tables));
    TROUPE_TRY_VOID(references.set(name, std::move(reference)));
  }
  return references;
}

result<Column> Column::resolve(PullMeter* meter) const {
  if (!is_reference()) return *this;
  const std::vector<Run> runs = ColumnAccess::runs(*this);
  std::vector<Wanted> wanted;
  std::unordered_map<const Storage*, std::size_t> places;
  for (const Run& run : runs) {
    if (lease_of(run) == nullptr) continue;
    const auto [place, added] = places.emplace(run.storage->get(), wanted.size());
    if (added) wanted.push_back({*run.storage, {}, {}});
    wanted[place->second].rows.push_back({run.first, run.first + run.count});
  }
  for (Wanted& one : wanted) {
    one.rows = merged(std::move(one.rows));
    for (const Interval& rows : one.rows) {
      TROUPE_TRY(Column piece, one.storage->lease->pull(rows.first, rows.end - rows.first));
      if (meter != nullptr) meter->add(piece.bytes());
      one.pulled.push_back(std::move(piece));
    }
  }
  RopeBuilder builder(type());
  for (const Run& run : runs) {
    if (lease_of(run) == nullptr)
      builder.add(*run.storage, run.first, run.count);
    else
      wanted[places.at(run.storage->get())].give(builder, run.first, run.count);
  }
  return std::move(builder).finish();
}

std::vector<ColumnRef> references(const Column& column) {
  std::vector<ColumnRef> all;
  for (const Run& run : ColumnAccess::runs(column)) {
    const ColumnLease* lease = lease_of(run);
    if (lease == nullptr) continue;
    const Storage& storage = **run.storage;
    ColumnRef reference{.owner = lease->owner(),
                        .id = lease->id(),
                        .type = column.type(),
                        .first_row = run.first,
                        .rows = run.count,
                        .row_lengths = {},
                        .bytes = storage.elements(run.first, run.count) * storage.element_bytes};
    for (std::int64_t i = 0; storage.offsets && i < run.count; ++i)
      reference.row_lengths.push_back(storage.length(run.first + i));
    all.push_back(std::move(reference));
  }
  return all;
}

HeldBytes held_bytes(const Batch& batch) {
  HeldBytes held;
  std::unordered_set<const void*> seen;
  const auto table_bytes = [](std::size_t entries, std::size_t size) {
    return static_cast<std::int64_t>(entries * size);
  };
  for (const auto& [name, column] : batch.columns()) {
    const Rope& rope = ColumnAccess::rope(column);
    if (seen.insert(&rope).second)
      held.metadata += table_bytes(rope.ranges.size(), sizeof(RopeRange)) +
                       table_bytes(rope.storages.size(), sizeof(StoragePointer));
    const auto& map = ColumnAccess::map(column);
    if (map && seen.insert(map.get()).second)
      held.metadata += table_bytes(map->size(), sizeof(RowMap::value_type));
    for (const StoragePointer& storage : rope.storages) {
      if (!seen.insert(storage.get()).second) continue;
      if (storage->offsets && seen.insert(storage->offsets.get()).second)
        held.metadata += table_bytes(storage->offsets->size(), sizeof(std::int64_t));
      if (!storage->lease)
        held.payload += storage->elements(0, storage->rows) * storage->element_bytes;
    }
  }
  return held;
}

}  // namespace troupe::runtime

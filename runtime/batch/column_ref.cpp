#include "runtime/batch/column_ref.hpp"

#include "runtime/batch/column_lease.hpp"
#include "runtime/batch/column_storage.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace troupe::runtime {

class ColumnStore::Core final : public ColumnSource, public std::enable_shared_from_this<Core> {
 public:
  explicit Core(ColumnOwner who) : owner(std::move(who)) {}

  result<std::shared_ptr<const ColumnLease>> keep(const Column& column);
  std::shared_ptr<const ColumnLease> lease(ColumnId id) const;
  void release(ColumnId id);
  void revoke(Error cause);
  result<Column> read(ColumnId id, std::int64_t first, std::int64_t count);
  std::vector<result<Column>> pull(std::span<const RowsWanted> wanted,
                                   std::optional<Deadline> deadline) override;

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
  struct Held {
    Column column;
    std::weak_ptr<const ColumnLease> lease;
  };

  Origin origin() const { return Origin{.group = owner.group, .rank = owner.rank, .node = {}}; }

  mutable std::mutex mutex_;  ///< guards everything below
  std::unordered_map<ColumnId, Held> columns_;
  std::optional<Error> revoked_;
  std::uint64_t last_id_ = 0;
  std::int64_t bytes_held_ = 0;
  std::int64_t bytes_pulled_ = 0;
};

/// Keeps one column alive in its store for as long as some storage refers to it.
class ColumnStore::Lease final : public ColumnLease {
 public:
  Lease(std::shared_ptr<Core> core, ColumnId id) : core_(std::move(core)), id_(id) {}
  ~Lease() override { core_->release(id_); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const ColumnOwner& owner() const override { return core_->owner; }
  ColumnId id() const override { return id_; }
  ColumnSource& source() const override { return *core_; }

 private:
  std::shared_ptr<Core> core_;
  ColumnId id_;
};

result<std::shared_ptr<const ColumnLease>> ColumnStore::Core::keep(const Column& column) {
  const std::lock_guard lock(mutex_);
  if (revoked_) return fail(*revoked_);
  const ColumnId id{++last_id_};
  // Made under the lock, but after nothing can fail: a lease that dies here would want the lock.
  auto lease = std::make_shared<const Lease>(shared_from_this(), id);
  bytes_held_ += column.bytes();
  columns_.emplace(id, Held{column, lease});
  return lease;
}

std::shared_ptr<const ColumnLease> ColumnStore::Core::lease(ColumnId id) const {
  const std::lock_guard lock(mutex_);
  const auto place = columns_.find(id);
  return place == columns_.end() ? nullptr : place->second.lease.lock();
}

void ColumnStore::Core::release(ColumnId id) {
  std::optional<Held> freed;  // payload is freed outside the lock
  const std::lock_guard lock(mutex_);
  const auto place = columns_.find(id);
  if (place == columns_.end()) return;
  bytes_held_ -= place->second.column.bytes();
  freed = std::move(place->second);
  columns_.erase(place);
}

void ColumnStore::Core::revoke(Error cause) {
  std::unordered_map<ColumnId, Held> freed;
  const std::lock_guard lock(mutex_);
  if (!revoked_) revoked_ = std::move(cause).at(origin());
  columns_.swap(freed);
  bytes_held_ = 0;
}

result<Column> ColumnStore::Core::read(ColumnId id, std::int64_t first, std::int64_t count) {
  const std::lock_guard lock(mutex_);
  if (revoked_) return fail(*revoked_);
  const auto refuse = [this](ErrorCode code, std::string message) {
    return fail(
        Error{.code = code, .message = std::move(message), .origin = origin(), .causes = {}});
  };
  const auto place = columns_.find(id);
  if (place == columns_.end())
    return refuse(
        ErrorCode::kNotFound,
        fmt::format("column store of {} rank {}: column {} is not held; its lease is over",
                    owner.group, owner.rank.value, id.value));
  const Column& whole = place->second.column;
  if (first < 0 || count < 0 || first > whole.rows() || count > whole.rows() - first)
    return refuse(ErrorCode::kInvalidArgument,
                  fmt::format("column store of {} rank {}: column {}: {} rows from {}, it has {}",
                              owner.group, owner.rank.value, id.value, count, first, whole.rows()));
  return whole.slice(first, count);
}

std::vector<result<Column>> ColumnStore::Core::pull(std::span<const RowsWanted> wanted,
                                                    std::optional<Deadline> /*deadline*/) {
  std::vector<result<Column>> pulled;
  pulled.reserve(wanted.size());
  std::int64_t bytes = 0;
  for (const RowsWanted& one : wanted) {
    pulled.push_back(read(one.lease->id(), one.first, one.rows));
    if (pulled.back()) bytes += pulled.back()->bytes();
  }
  const std::lock_guard lock(mutex_);
  bytes_pulled_ += bytes;
  return pulled;
}

namespace {

OffsetTable shared_table(std::vector<OffsetTable>& tables, OffsetTable table) {
  for (const OffsetTable& known : tables) {
    if (known == table || *known == *table) return known;
  }
  tables.push_back(table);
  return table;
}

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
const ColumnSource* ColumnStore::source() const { return core_.get(); }

result<Column> ColumnStore::read(ColumnId id, std::int64_t first, std::int64_t count) {
  return core_->read(id, first, count);
}

std::shared_ptr<const ColumnLease> ColumnStore::lease(ColumnId id) const {
  return core_->lease(id);
}

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
    TROUPE_TRY(storage->lease, core_->keep(piece));
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

std::vector<ColumnRef> references(const Column& column) {
  std::vector<ColumnRef> all;
  for (const Run& run : ColumnAccess::runs(column)) {
    const ColumnLease* lease = lease_of(run);
    if (lease == nullptr) continue;
    const Storage& storage = **run.storage;
    ColumnRef reference{.owner = lease->owner(),
                        .id = lease->id(),
                        .type = column.type(),
                        .first_row = storage.lease_first + run.first,
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

// Exporting: which columns travel inside a frame, and what stands for the others.

#include "runtime/base/check.hpp"
#include "runtime/batch/checksum.hpp"
#include "runtime/exchange/exchange_core.hpp"

#include <algorithm>
#include <unordered_map>

namespace troupe::runtime {
namespace {

using LeasePointer = std::shared_ptr<const ColumnLease>;

/// Rows of one storage that a view covers, from the first to the last.
struct Hull {
  const StoragePointer* storage = nullptr;
  std::int64_t first = 0;
  std::int64_t end = 0;
  LeasePointer lease;            ///< of the rows at whoever holds them
  std::int64_t lease_first = 0;  ///< row of the leased column that is `first`
};

/// Writes the references of one batch.
class Exporter {
 public:
  Exporter(ColumnStore& store, const ColumnOwner& self, std::uint64_t epoch, bool granted)
      : store_(store), self_(self), epoch_(epoch), granted_(granted) {}

  result<ExchangeColumn> refer(const std::string& name, const Column& column);
  std::vector<ExchangeOwner> owners() && { return std::move(owners_); }
  std::vector<LeasePointer> own() && { return std::move(own_); }

 private:
  /// Finds the lease under which the rows of `hull` can be had, keeping local rows here for it.
  result<void> place(const ColumnType& type, Hull& hull);
  std::uint32_t owner_index(const ExchangeOwner& owner);
  ExchangeOwner owner_of(const ColumnLease& lease) const;

  ColumnStore& store_;
  const ColumnOwner& self_;
  std::uint64_t epoch_;
  bool granted_;
  std::vector<ExchangeOwner> owners_;
  std::vector<LeasePointer> own_;
};

ExchangeOwner Exporter::owner_of(const ColumnLease& lease) const {
  if (&lease.source() == store_.source()) return {self_, epoch_};
  return static_cast<const RemoteLease&>(lease).where();
}

std::uint32_t Exporter::owner_index(const ExchangeOwner& owner) {
  const auto place = std::find(owners_.begin(), owners_.end(), owner);
  if (place != owners_.end()) return static_cast<std::uint32_t>(place - owners_.begin());
  owners_.push_back(owner);
  return static_cast<std::uint32_t>(owners_.size() - 1);
}

result<void> Exporter::place(const ColumnType& type, Hull& hull) {
  const Storage& storage = **hull.storage;
  const bool ours = storage.lease && &storage.lease->source() == store_.source();
  if (ours || dynamic_cast<const RemoteLease*>(storage.lease.get()) != nullptr) {
    hull.lease = storage.lease;
    hull.lease_first = storage.lease_first + hull.first;
    return {};
  }
  RopeBuilder builder(type);
  builder.add(*hull.storage, hull.first, hull.end - hull.first);
  // Rows of another store of this process come without a copy.
  TROUPE_TRY(const Column here, std::move(builder).finish().resolve());
  TROUPE_TRY(const Column kept, store_.put(here));
  const std::vector<Run> runs = ColumnAccess::runs(kept);
  TROUPE_CHECK(runs.size() == 1 && (*runs[0].storage)->lease, "export: {} runs of a kept column",
               runs.size());
  hull.lease = (*runs[0].storage)->lease;
  hull.lease_first = 0;
  return {};
}

result<ExchangeColumn> Exporter::refer(const std::string& name, const Column& column) {
  const std::vector<Run> runs = ColumnAccess::runs(column);
  std::vector<Hull> hulls;
  std::unordered_map<const Storage*, std::size_t> hull_of;
  for (const Run& run : runs) {
    const auto [place, added] = hull_of.emplace(run.storage->get(), hulls.size());
    if (added) hulls.push_back({run.storage, run.first, run.first + run.count, nullptr, 0});
    Hull& hull = hulls[place->second];
    hull.first = std::min(hull.first, run.first);
    hull.end = std::max(hull.end, run.first + run.count);
  }
  ExchangeColumn out{.name = name, .type = column.type(), .pieces = {}, .runs = nullptr};
  // One piece for each lease, whatever number of storages look at it.
  std::unordered_map<const ColumnLease*, std::uint32_t> piece_of;
  for (Hull& hull : hulls) {
    TROUPE_TRY_VOID(place(column.type(), hull));
    const auto [place, added] =
        piece_of.emplace(hull.lease.get(), static_cast<std::uint32_t>(out.pieces.size()));
    const std::int64_t end = hull.lease_first + (hull.end - hull.first);
    if (added) {
      const ExchangeOwner owner = owner_of(*hull.lease);
      const bool own = owner.owner == self_ && owner.epoch == epoch_;
      if (own) own_.push_back(hull.lease);
      out.pieces.push_back({.owner = owner_index(owner),
                            .column = hull.lease->id(),
                            .first_row = hull.lease_first,
                            .rows = end - hull.lease_first,
                            .offsets = nullptr,
                            .granted = granted_ && own});
      continue;
    }
    ExchangePiece& piece = out.pieces[place->second];
    const std::int64_t first = std::min(piece.first_row, hull.lease_first);
    piece.rows = std::max(piece.first_row + piece.rows, end) - first;
    piece.first_row = first;
  }
  auto wire_runs = std::make_shared<std::vector<ExchangeRun>>();
  std::vector<std::vector<std::int64_t>> lengths(out.pieces.size());
  const bool dense = column.kind() == ColumnKind::kDense;
  for (std::size_t i = 0; !dense && i < out.pieces.size(); ++i)
    lengths[i].resize(static_cast<std::size_t>(out.pieces[i].rows));
  for (const Run& run : runs) {
    const Hull& hull = hulls[hull_of.at(run.storage->get())];
    const std::uint32_t index = piece_of.at(hull.lease.get());
    const std::int64_t first =
        hull.lease_first + (run.first - hull.first) - out.pieces[index].first_row;
    wire_runs->push_back({index, first, run.count});
    for (std::int64_t i = 0; !dense && i < run.count; ++i)
      lengths[index][static_cast<std::size_t>(first + i)] = (*run.storage)->length(run.first + i);
  }
  for (std::size_t i = 0; !dense && i < out.pieces.size(); ++i)
    out.pieces[i].offsets = offsets_of(lengths[i]);
  out.runs = std::move(wire_runs);
  return out;
}

/// Whether every row of the column is in this process, so that reading it costs nothing.
bool is_here(const Column& column) {
  const std::vector<Run> runs = ColumnAccess::runs(column);
  return std::none_of(runs.begin(), runs.end(), [](const Run& run) {
    return dynamic_cast<const RemoteLease*>((*run.storage)->lease.get()) != nullptr;
  });
}

}  // namespace

result<ColumnExchange::Core::Exported> ColumnExchange::Core::encode(const Batch& batch,
                                                                    bool granted) {
  ExchangeBatch out;
  Exporter exporter(store_, options_.self, epoch_, granted);
  out.inlined = batch;
  std::int64_t inlined = 0;
  for (const auto& [name, column] : batch.columns()) {
    const std::int64_t bytes = column.bytes();
    const bool small = bytes <= options_.inline_bytes_max &&
                       inlined + bytes <= options_.inline_total_max && is_here(column);
    if (small || column.rows() == 0) {
      TROUPE_TRY(Column here, column.resolve());
      TROUPE_TRY_VOID(out.inlined.set(name, std::move(here)));
      inlined += bytes;
      continue;
    }
    TROUPE_TRY(ExchangeColumn referred, exporter.refer(name, column));
    out.columns.push_back(std::move(referred));
    TROUPE_TRY(out.inlined, out.inlined.drop({name}));
  }
  out.owners = std::move(exporter).owners();
  Exported exported;
  exported.own = std::move(exporter).own();
  TROUPE_TRY(exported.bytes, encode_exchange(out));
  if (exported.bytes.size() <= kExchangeFrameBytesMax) return exported;
  // Too big for a control frame: held here like a column, and pulled by who imports it.
  ExchangeHeld held{.owner = {options_.self, epoch_},
                    .column = {},
                    .bytes = static_cast<std::int64_t>(exported.bytes.size()),
                    .checksum = crc32c(exported.bytes),
                    .granted = granted};
  const auto* first = reinterpret_cast<const std::uint8_t*>(exported.bytes.data());
  TROUPE_TRY(const Column kept,
             store_.put(Column::dense<std::uint8_t>({first, first + exported.bytes.size()})));
  const LeasePointer lease = (*ColumnAccess::runs(kept)[0].storage)->lease;
  held.column = lease->id();
  exported.own.push_back(lease);
  TROUPE_TRY(exported.bytes, encode_exchange(held));
  return exported;
}

result<std::vector<std::byte>> ColumnExchange::Core::grant(Exported exported) {
  const std::lock_guard lock(mutex_);
  if (closed_ || !table_.is_open(holder_))
    return fail(ErrorCode::kAborted, "column exchange of {}: no holder to export to",
                owner_name(options_.self));
  for (const LeasePointer& lease : exported.own) {
    TROUPE_TRY_VOID(table_.grant(holder_, lease->id(), steady_now()));
    granted_[lease->id()] = lease;
  }
  wake_.notify_all();  // the table has an expiry now
  return std::move(exported.bytes);
}

}  // namespace troupe::runtime

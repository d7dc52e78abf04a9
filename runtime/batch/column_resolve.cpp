// Resolving: which rows of which columns elsewhere a set of views looks at, and the views again
// over what came.

#include "runtime/batch/column_lease.hpp"
#include "runtime/batch/column_storage.hpp"

#include <algorithm>
#include <unordered_map>

namespace troupe::runtime {
namespace {

/// Half-open rows of a column at its owner, and one storage that knows their lengths.
struct Interval {
  std::int64_t first = 0;
  std::int64_t end = 0;
  const Storage* storage = nullptr;  ///< null once several storages are joined
};

/// What the views look at in one column elsewhere, and the payload once it is here.
struct Wanted {
  const ColumnLease* lease = nullptr;
  const ColumnType* type = nullptr;
  std::size_t column = 0;           ///< index of the first view that looks
  std::vector<Interval> seen;       ///< as the runs come
  std::vector<Interval> rows;       ///< their union, in order
  std::vector<OffsetTable> joined;  ///< of `rows` that several storages describe together
  std::vector<Column> pulled;       ///< one for each of `rows`

  void join();
  std::span<const std::int64_t> offsets(std::size_t place);
  /// Puts rows [first, first + count), which lie within one interval, into `builder`.
  void give(RopeBuilder& builder, std::int64_t first, std::int64_t count) const;
  std::size_t interval_of(std::int64_t row) const;
};

void Wanted::join() {
  std::vector<Interval> sorted = seen;
  std::sort(sorted.begin(), sorted.end(),
            [](const Interval& a, const Interval& b) { return a.first < b.first; });
  for (const Interval& one : sorted) {
    if (!rows.empty() && one.first <= rows.back().end) {
      if (one.storage != rows.back().storage) rows.back().storage = nullptr;
      rows.back().end = std::max(rows.back().end, one.end);
    } else {
      rows.push_back(one);
    }
  }
}

std::size_t Wanted::interval_of(std::int64_t row) const {
  const auto after =
      std::upper_bound(rows.begin(), rows.end(), row,
                       [](std::int64_t wanted, const Interval& one) { return wanted < one.first; });
  return static_cast<std::size_t>(after - rows.begin()) - 1;
}

/// [rows + 1] of interval `place`; empty for dense. Two imports of one column may each know the
/// lengths of other rows, so that a joined interval asks each about its own.
std::span<const std::int64_t> Wanted::offsets(std::size_t place) {
  if (type->kind == ColumnKind::kDense) return {};
  const Interval& interval = rows[place];
  const auto count = static_cast<std::size_t>(interval.end - interval.first);
  if (interval.storage != nullptr) {
    const auto start = static_cast<std::size_t>(interval.first - interval.storage->lease_first);
    return std::span(*interval.storage->offsets).subspan(start, count + 1);
  }
  std::vector<std::int64_t> lengths(count);
  for (const Interval& one : seen) {
    if (interval_of(one.first) != place) continue;
    for (std::int64_t row = one.first; row < one.end; ++row)
      lengths[static_cast<std::size_t>(row - interval.first)] =
          one.storage->length(row - one.storage->lease_first);
  }
  joined.push_back(offsets_of(lengths));
  return *joined.back();
}

void Wanted::give(RopeBuilder& builder, std::int64_t first, std::int64_t count) const {
  const std::size_t place = interval_of(first);
  const Column piece = pulled[place].slice(first - rows[place].first, count);
  for (const Run& run : ColumnAccess::runs(piece)) builder.add(*run.storage, run.first, run.count);
}

/// Collects what columns look at elsewhere, pulls it, and builds the columns again.
class Resolver {
 public:
  void look(const Column& column, std::size_t index);
  tl::expected<void, Unresolved> pull(PullMeter* meter, std::optional<Deadline> deadline);
  Column rebuild(const Column& column) const;

 private:
  std::vector<Wanted> wanted_;
  std::unordered_map<const ColumnLease*, std::size_t> places_;
};

void Resolver::look(const Column& column, std::size_t index) {
  for (const Run& run : ColumnAccess::runs(column)) {
    const Storage& storage = **run.storage;
    const ColumnLease* lease = storage.lease.get();
    if (lease == nullptr) continue;
    const auto [place, added] = places_.emplace(lease, wanted_.size());
    if (added) {
      wanted_.emplace_back();
      wanted_.back().lease = lease;
      wanted_.back().type = &column.type();
      wanted_.back().column = index;
    }
    const std::int64_t first = storage.lease_first + run.first;
    wanted_[place->second].seen.push_back({first, first + run.count, &storage});
  }
}

tl::expected<void, Unresolved> Resolver::pull(PullMeter* meter, std::optional<Deadline> deadline) {
  std::vector<ColumnSource*> sources;  // in the order of looking
  std::unordered_map<ColumnSource*, std::vector<std::size_t>> of_source;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    wanted_[i].join();
    ColumnSource* source = &wanted_[i].lease->source();
    if (of_source[source].empty()) sources.push_back(source);
    of_source[source].push_back(i);
  }
  for (ColumnSource* source : sources) {
    std::vector<RowsWanted> rows;
    std::vector<std::size_t> whose;
    for (const std::size_t i : of_source[source]) {
      Wanted& one = wanted_[i];
      for (std::size_t place = 0; place < one.rows.size(); ++place) {
        rows.push_back({.lease = one.lease,
                        .type = one.type,
                        .first = one.rows[place].first,
                        .rows = one.rows[place].end - one.rows[place].first,
                        .offsets = one.offsets(place)});
        whose.push_back(i);
      }
    }
    std::vector<result<Column>> pulled = source->pull(rows, deadline);
    TROUPE_CHECK(pulled.size() == rows.size(), "resolve: {} answers to {} wishes", pulled.size(),
                 rows.size());
    for (std::size_t k = 0; k < rows.size(); ++k) {
      Wanted& one = wanted_[whose[k]];
      if (!pulled[k]) return tl::unexpected(Unresolved{one.column, std::move(pulled[k]).error()});
      if (meter != nullptr) meter->add(pulled[k]->bytes());
      one.pulled.push_back(*std::move(pulled[k]));
    }
  }
  return {};
}

Column Resolver::rebuild(const Column& column) const {
  RopeBuilder builder(column.type());
  for (const Run& run : ColumnAccess::runs(column)) {
    const Storage& storage = **run.storage;
    if (!storage.lease)
      builder.add(*run.storage, run.first, run.count);
    else
      wanted_[places_.at(storage.lease.get())].give(builder, storage.lease_first + run.first,
                                                    run.count);
  }
  return std::move(builder).finish();
}

}  // namespace

tl::expected<std::vector<Column>, Unresolved> resolve_columns(
    std::span<const Column* const> columns, PullMeter* meter, std::optional<Deadline> deadline) {
  Resolver resolver;
  std::vector<bool> elsewhere(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    elsewhere[i] = columns[i]->is_reference();
    if (elsewhere[i]) resolver.look(*columns[i], i);
  }
  if (auto pulled = resolver.pull(meter, deadline); !pulled)
    return tl::unexpected(std::move(pulled).error());
  std::vector<Column> resolved;
  resolved.reserve(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i)
    resolved.push_back(elsewhere[i] ? resolver.rebuild(*columns[i]) : *columns[i]);
  return resolved;
}

result<Column> Column::resolve(PullMeter* meter, std::optional<Deadline> deadline) const {
  const Column* const columns[] = {this};
  auto resolved = resolve_columns(columns, meter, deadline);
  if (!resolved) return fail(std::move(resolved.error().error));
  return std::move(resolved->front());
}

}  // namespace troupe::runtime

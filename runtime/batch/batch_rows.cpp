// Operations that choose, repeat, split or pad rows.

#include "runtime/base/rng.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/column_storage.hpp"

#include <algorithm>
#include <numeric>

namespace troupe::runtime {
namespace {

result<void> check_rows(std::string_view place, std::span<const std::int64_t> rows,
                        std::int64_t count) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= count)
      return fail(ErrorCode::kInvalidArgument, "{}: entry {}: row {} of a batch of {} rows", place,
                  i, rows[i], count);
  }
  return {};
}

std::vector<std::int64_t> rows_marked(const Column& valid) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < valid.rows(); ++i) {
    if (valid.scalar<bool>(i)) rows.push_back(i);
  }
  return rows;
}

}  // namespace

Batch Batch::shell() const {
  Batch same;
  same.rows_ = rows_;
  same.metadata_ = metadata_;
  return same;
}

Batch Batch::window(std::int64_t first, std::int64_t count) const {
  Batch part = shell();
  part.rows_ = count;
  for (const auto& [name, column] : columns_)
    part.columns_.emplace_hint(part.columns_.end(), name, column.slice(first, count));
  return part;
}

Batch Batch::take(std::span<const std::int64_t> rows) const {
  // Columns that look through the same map get one composed map between them.
  struct Composed {
    const RowMap* from;
    std::int64_t first;
    std::shared_ptr<const RowMap> map;
  };
  std::vector<Composed> known;
  Batch taken = shell();
  taken.rows_ = static_cast<std::int64_t>(rows.size());
  for (const auto& [name, column] : columns_) {
    const RowMap* from = ColumnAccess::map(column).get();
    const std::int64_t first = ColumnAccess::first(column);
    auto place = std::find_if(known.begin(), known.end(), [&](const Composed& one) {
      return one.from == from && one.first == first;
    });
    if (place == known.end())
      place = known.insert(known.end(), {from, first, ColumnAccess::compose(column, rows)});
    taken.columns_.emplace_hint(taken.columns_.end(), name,
                                ColumnAccess::through(column, place->map));
  }
  return taken;
}

result<Batch> Batch::slice(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first > rows() || count > rows() - first)
    return fail(ErrorCode::kInvalidArgument, "slice: {} rows from row {} of a batch of {} rows",
                count, first, rows());
  return window(first, count);
}

result<Batch> Batch::index(std::span<const std::int64_t> rows) const {
  TROUPE_TRY_VOID(check_rows("index", rows, this->rows()));
  return take(rows);
}

result<Batch> Batch::mask(const std::vector<bool>& flags) const {
  if (static_cast<std::int64_t>(flags.size()) != rows())
    return fail(ErrorCode::kInvalidArgument, "mask: {} flags for a batch of {} rows", flags.size(),
                rows());
  std::vector<std::int64_t> chosen;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) chosen.push_back(static_cast<std::int64_t>(i));
  }
  return take(chosen);
}

result<Batch> Batch::reorder(std::span<const std::int64_t> order) const {
  if (static_cast<std::int64_t>(order.size()) != rows())
    return fail(ErrorCode::kInvalidArgument, "reorder: {} entries for a batch of {} rows",
                order.size(), rows());
  TROUPE_TRY_VOID(check_rows("reorder", order, rows()));
  std::vector<bool> seen(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto row = static_cast<std::size_t>(order[i]);
    if (seen[row])
      return fail(ErrorCode::kInvalidArgument, "reorder: entry {}: row {} comes twice", i, row);
    seen[row] = true;
  }
  Batch ordered = take(order);
  ordered.metrics_ = metrics_;
  return ordered;
}

Batch Batch::repeat(std::int64_t times, Repeat kind) const {
  TROUPE_CHECK(times >= 0 && (rows() == 0 || times <= kRowsMax / rows()),
               "repeat: {} rows {} times", rows(), times);
  const std::int64_t count = rows() * times;
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    chosen[static_cast<std::size_t>(i)] = kind == Repeat::kTiled ? i % rows() : i / times;
  Batch repeated = take(chosen);
  repeated.metrics_ = metrics_;
  return repeated;
}

std::vector<Batch> Batch::split(std::int64_t parts) const {
  TROUPE_CHECK(parts >= 1 && parts <= kRowsMax, "split: {} parts, wanted 1 or more", parts);
  const std::int64_t share = rows() / parts;
  const std::int64_t larger = rows() % parts;
  std::vector<Batch> all;
  all.reserve(static_cast<std::size_t>(parts));
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t count = share + (i < larger ? 1 : 0);
    all.push_back(window(first, count));
    first += count;
  }
  all.front().metrics_ = metrics_;
  return all;
}

std::vector<Batch> Batch::split_by(std::int64_t rows_per_part) const {
  TROUPE_CHECK(rows_per_part >= 1, "split_by: {} rows, wanted 1 or more", rows_per_part);
  std::vector<Batch> all;
  std::int64_t first = 0;
  do {
    const std::int64_t count = std::min(rows_per_part, rows() - first);
    all.push_back(window(first, count));
    first += count;
  } while (first < rows());
  all.front().metrics_ = metrics_;
  return all;
}

Batch Batch::pad_to_multiple(std::int64_t multiple) const {
  TROUPE_CHECK(multiple >= 1 && multiple <= kRowsMax, "pad: multiple {}, wanted 1 or more",
               multiple);
  const std::int64_t real = rows();
  const std::int64_t added = real == 0 ? 0 : (multiple - real % multiple) % multiple;
  const Column* before = find(kValidColumn);
  std::vector<bool> valid(static_cast<std::size_t>(real), true);
  for (std::int64_t i = 0; before != nullptr && i < real; ++i)
    valid[static_cast<std::size_t>(i)] = before->scalar<bool>(i);
  valid.resize(static_cast<std::size_t>(real + added), false);
  Batch padded = *this;
  if (added > 0) {
    std::vector<std::int64_t> filler(static_cast<std::size_t>(added));
    for (std::int64_t i = 0; i < added; ++i) filler[static_cast<std::size_t>(i)] = i % real;
    const Batch tail = take(filler);
    for (auto& [name, column] : padded.columns_) {
      const Column pieces[] = {column, tail.column(name)};
      column = Column::concat(pieces);
    }
  }
  padded.rows_ = real + added;
  padded.columns_.insert_or_assign(std::string(kValidColumn),
                                   Column::dense<bool>(std::move(valid)));
  return padded;
}

Batch Batch::strip_padding() const {
  const Column* valid = find(kValidColumn);
  if (valid == nullptr) return *this;
  const std::vector<std::int64_t> real = rows_marked(*valid);
  Batch stripped = *this;
  stripped.columns_.erase(stripped.columns_.find(kValidColumn));
  if (static_cast<std::int64_t>(real.size()) == rows()) return stripped;
  stripped = stripped.take(real);
  stripped.metrics_ = metrics_;
  return stripped;
}

result<Batch> Batch::strip_padding(const Column& valid) const {
  if (valid.rows() != rows())
    return fail(ErrorCode::kConflict, "strip padding: {} rows came back, {} were sent", rows(),
                valid.rows());
  Batch marked = *this;
  TROUPE_TRY_VOID(marked.set(std::string(kValidColumn), valid));
  return marked.strip_padding();
}

std::int64_t Batch::valid_rows() const {
  const Column* valid = find(kValidColumn);
  return valid == nullptr ? rows() : static_cast<std::int64_t>(rows_marked(*valid).size());
}

std::vector<Batch> Batch::minibatches(const MinibatchOptions& options) const {
  TROUPE_CHECK(options.rows >= 1, "minibatches: {} rows, wanted 1 or more", options.rows);
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows()));
  std::iota(order.begin(), order.end(), 0);
  if (options.shuffle) Rng(options.seed).shuffle(order);
  std::vector<Batch> all;
  for (std::int64_t first = 0; first < rows(); first += options.rows) {
    const std::int64_t count = std::min(options.rows, rows() - first);
    if (options.drop_last && count < options.rows) break;
    all.push_back(options.shuffle ? take(std::span(order).subspan(static_cast<std::size_t>(first),
                                                                  static_cast<std::size_t>(count)))
                                  : window(first, count));
  }
  return all;
}

}  // namespace troupe::runtime

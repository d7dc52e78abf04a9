#include "reshard/plan_cells.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace troupe::reshard {
namespace {

/// One distinct box of one side, and the ranks that have it: [begin, end) of `Boxes::holdings`.
struct OwnedBox {
  Box box = {};
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// The distinct boxes of one side of one tensor, by (row_begin, …).
struct Boxes {
  std::vector<OwnedBox> list;
  std::vector<std::pair<Box, Holding>> holdings;
  std::vector<std::size_t> open;  // indices of boxes that reach into the current band
  std::size_t next = 0;           // the first box that has not been opened

  template <class BoxOf>
  void fill(std::span<const Holding> from, BoxOf box_of) {
    holdings.clear();
    for (const Holding& holding : from) holdings.emplace_back(box_of(holding), holding);
    const auto less = [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second.rank < b.second.rank;
    };
    if (!std::is_sorted(holdings.begin(), holdings.end(), less))
      std::sort(holdings.begin(), holdings.end(), less);
    list.clear();
    for (std::size_t i = 0; i < holdings.size(); ++i) {
      if (list.empty() || list.back().box != holdings[i].first)
        list.push_back({holdings[i].first, i, i});
      list.back().end = i + 1;
    }
    open.clear();
    next = 0;
  }

  /// Moves on to the band that begins at `row`.
  void advance(std::int64_t row) {
    std::erase_if(open, [this, row](std::size_t i) { return list[i].box.row_end <= row; });
    while (next < list.size() && list[next].box.row_begin <= row) open.push_back(next++);
  }
};

void add_edges(const Boxes& boxes, std::vector<std::int64_t>& rows) {
  for (const OwnedBox& owned : boxes.list) {
    rows.push_back(owned.box.row_begin);
    rows.push_back(owned.box.row_end);
  }
}

void add_open_edges(const Boxes& boxes, std::vector<std::int64_t>& cols) {
  for (const std::size_t i : boxes.open) {
    cols.push_back(boxes.list[i].box.col_begin);
    cols.push_back(boxes.list[i].box.col_end);
  }
}

void sort_unique(std::vector<std::int64_t>& edges) {
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
}

class Sweep {
 public:
  Sweep(const PlanInput& input, const PlanOptions& options) : input_(input), options_(options) {}

  result<CellList> run() {
    for (std::size_t t = 0; t < input_.tensors.size(); ++t)
      TROUPE_TRY_VOID(sweep_tensor(static_cast<std::int32_t>(t)));
    return std::move(out_);
  }

 private:
  result<void> sweep_tensor(std::int32_t tensor) {
    const auto t = static_cast<std::size_t>(tensor);
    source_.fill(input_.source.of(input_.source_index[t]),
                 [this](const Holding& h) { return input_.source_box(h); });
    target_.fill(input_.target.of(input_.target_index[t]),
                 [this](const Holding& h) { return input_.target_box(h); });
    rows_.assign({0, input_.tensors[t].rows});
    add_edges(source_, rows_);
    add_edges(target_, rows_);
    sort_unique(rows_);
    for (std::size_t i = 0; i + 1 < rows_.size(); ++i) {
      source_.advance(rows_[i]);
      target_.advance(rows_[i]);
      // Only the columns of boxes in this band: a cut row of FSDP must not cut all others.
      cols_.assign({0, input_.tensors[t].cols});
      add_open_edges(source_, cols_);
      add_open_edges(target_, cols_);
      sort_unique(cols_);
      for (std::size_t j = 0; j + 1 < cols_.size(); ++j)
        TROUPE_TRY_VOID(add_cell(tensor, {rows_[i], rows_[i + 1], cols_[j], cols_[j + 1]}));
    }
    return {};
  }

  result<void> add_cell(std::int32_t tensor, const Box& box) {
    Cell cell{.tensor = tensor};
    std::tie(cell.holders_begin, cell.holders) = gather(source_, box);
    std::tie(cell.takers_begin, cell.takers) = gather(target_, box);
    const std::string& name = input_.tensors[static_cast<std::size_t>(tensor)].name;
    if (cell.takers == 0)
      return fail(ErrorCode::kNotFound, "tensor {}: box {}: no target rank holds it", name,
                  box_text(box));
    if (cell.holders == 0) {
      const Holding& taker = out_.takers_of(cell).front();
      return fail(ErrorCode::kNotFound,
                  "tensor {}: box {}: no source rank holds it, target rank {} needs it for its {}",
                  name, box_text(box), input_.rank(taker).rank, box_text(input_.target_box(taker)));
    }
    if (out_.pool.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      return fail(ErrorCode::kResourceExhausted, "plan: {} holders and takers of cells",
                  out_.pool.size());
    return split(cell, box);
  }

  /// The ranks whose box contains `box`, appended to the pool in rank order.
  std::pair<std::int32_t, std::int32_t> gather(const Boxes& boxes, const Box& box) {
    const std::size_t begin = out_.pool.size();
    int found = 0;
    for (const std::size_t i : boxes.open) {
      const OwnedBox& owned = boxes.list[i];
      if (!owned.box.contains(box)) continue;
      ++found;
      for (std::size_t h = owned.begin; h < owned.end; ++h)
        out_.pool.push_back(boxes.holdings[h].second);
    }
    if (found > 1)
      std::sort(out_.pool.begin() + static_cast<std::ptrdiff_t>(begin), out_.pool.end(),
                [](const Holding& a, const Holding& b) { return a.rank < b.rank; });
    return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(out_.pool.size() - begin)};
  }

  /// Whether a taker does not hold the cell itself.
  bool travels(const Cell& cell) const {
    const auto holders = out_.holders_of(cell);
    std::size_t h = 0;
    for (const Holding& taker : out_.takers_of(cell)) {
      while (h < holders.size() && holders[h].rank < taker.rank) ++h;
      if (h == holders.size() || holders[h].rank != taker.rank) return true;
    }
    return false;
  }

  result<void> split(Cell cell, const Box& box) {
    const auto dtype = input_.tensors[static_cast<std::size_t>(cell.tensor)].dtype;
    const std::int64_t most =
        std::max<std::int64_t>(1, options_.cell_bytes_max / element_bytes(dtype));
    std::int64_t row_step = box.rows();
    std::int64_t col_step = box.cols();
    if (box.elements() > most && travels(cell)) {
      // Even parts rather than full ones and a rest, which balances better.
      const auto even = [](std::int64_t total, std::int64_t parts) {
        return (total + parts - 1) / parts;
      };
      col_step = even(box.cols(), even(box.cols(), most));
      const std::int64_t rows_max = col_step < box.cols() ? 1 : most / box.cols();
      row_step = even(box.rows(), even(box.rows(), rows_max));
    }
    for (std::int64_t r = box.row_begin; r < box.row_end; r += row_step) {
      for (std::int64_t c = box.col_begin; c < box.col_end; c += col_step) {
        cell.row_begin = static_cast<std::int32_t>(r);
        cell.row_end = static_cast<std::int32_t>(std::min(r + row_step, box.row_end));
        cell.col_begin = static_cast<std::int32_t>(c);
        cell.col_end = static_cast<std::int32_t>(std::min(c + col_step, box.col_end));
        out_.cells.push_back(cell);
        ops_ += cell.takers;
        if (ops_ > options_.ops_max)
          return fail(ErrorCode::kResourceExhausted, "plan: tensor {}: more than {} operations",
                      input_.tensors[static_cast<std::size_t>(cell.tensor)].name, options_.ops_max);
      }
    }
    return {};
  }

  const PlanInput& input_;
  const PlanOptions& options_;
  CellList out_;
  std::int64_t ops_ = 0;
  // Kept between tensors for their memory.
  Boxes source_, target_;
  std::vector<std::int64_t> rows_, cols_;
};

}  // namespace

result<CellList> make_cells(const PlanInput& input, const PlanOptions& options) {
  return Sweep(input, options).run();
}

}  // namespace troupe::reshard

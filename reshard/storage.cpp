#include "reshard/storage.hpp"

#include "reshard/run_boxes.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace troupe::reshard {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Hands out room in the buffers of one rank.
class Buffers {
 public:
  Buffers(RankLayout& layout, const StorageOptions& options) : layout_(layout), options_(options) {}

  /// Buffer and offset of `elements` numbers of `dtype`.
  std::pair<std::int32_t, std::int64_t> take(DType dtype, std::int64_t elements) {
    auto [known, is_new] = buffer_of_.try_emplace(dtype, 0);
    if (is_new || options_.buffer_per_tensor) {
      known->second = static_cast<std::int32_t>(layout_.buffer_elements.size());
      layout_.buffer_elements.push_back(0);
    }
    std::int64_t& size = layout_.buffer_elements[static_cast<std::size_t>(known->second)];
    const std::int64_t offset = round_up(size, options_.alignment);
    size = offset + elements;
    return {known->second, offset};
  }

 private:
  RankLayout& layout_;
  const StorageOptions& options_;
  std::map<DType, std::int32_t> buffer_of_;
};

/// Local rows [begin, end) of `tensor`, stored from `offset`.
void add_rows(const LocalTensor& tensor, std::int64_t begin, std::int64_t end, std::int32_t buffer,
              std::int64_t offset, RankLayout& layout) {
  for (const Piece& piece : tensor.pieces) {
    const std::int64_t top = std::max(begin, piece.row);
    const std::int64_t bottom = std::min(end, piece.row + piece.box.rows());
    if (top >= bottom) continue;
    const std::int64_t shift = piece.box.row_begin - piece.row;  // from local to canonical rows
    layout.segments.push_back(
        {.tensor = piece.tensor,
         .box = {top + shift, bottom + shift, piece.box.col_begin, piece.box.col_end},
         .buffer = buffer,
         .offset = offset + (top - begin) * tensor.cols,
         .row_stride = tensor.cols});
  }
}

/// A run of the flat interval of one rank.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int32_t buffer = 0;
};

/// What of `piece` lies in `range`.
/// `start` is the flat position of row 0 of the local tensor.
void add_flat(const Piece& piece, std::int64_t start, const FlatRange& range, RankLayout& layout) {
  const std::int64_t cols = piece.box.cols();
  const std::int64_t first = start + piece.row * cols;
  std::int64_t at = std::max(range.begin, first) - first;  // inside the piece
  const std::int64_t end = std::min(range.end, first + piece.box.elements()) - first;
  for (const Box& box : run_boxes(piece.box, at, end - at)) {
    if (box.empty()) continue;
    layout.segments.push_back({.tensor = piece.tensor,
                               .box = box,
                               .buffer = range.buffer,
                               .offset = first + at - range.begin,
                               .row_stride = cols});
    at += box.elements();
  }
}

}  // namespace

RankLayout store_whole(const LocalModel& model, RankPlace place, const StorageOptions& options) {
  return store_rows(model, place, {.index = 0, .count = 1}, options);
}

RankLayout store_rows(const LocalModel& model, RankPlace place, Shard shard,
                      const StorageOptions& options) {
  TROUPE_CHECK(shard.count >= 1 && shard.index >= 0 && shard.index < shard.count,
               "storage: shard {} of {}", shard.index, shard.count);
  RankLayout layout{.rank = place.rank, .node = place.node, .segments = {}, .buffer_elements = {}};
  Buffers buffers(layout, options);
  for (const LocalTensor& tensor : model.tensors) {
    const std::int64_t part = (tensor.rows + shard.count - 1) / shard.count;
    const auto [buffer, offset] = buffers.take(tensor.dtype, part * tensor.cols);
    const std::int64_t begin = std::min(tensor.rows, part * shard.index);
    const std::int64_t end = std::min(tensor.rows, part * (shard.index + 1));
    add_rows(tensor, begin, end, buffer, offset, layout);
  }
  return layout;
}

RankLayout store_flat(const LocalModel& model, RankPlace place, Shard shard,
                      std::int64_t alignment) {
  TROUPE_CHECK(shard.count >= 1 && shard.index >= 0 && shard.index < shard.count,
               "storage: shard {} of {}", shard.index, shard.count);
  RankLayout layout{.rank = place.rank, .node = place.node, .segments = {}, .buffer_elements = {}};
  std::map<std::pair<std::int32_t, DType>, std::vector<const LocalTensor*>> units;
  for (const LocalTensor& tensor : model.tensors)
    units[{tensor.unit, tensor.dtype}].push_back(&tensor);
  for (const auto& [unit, tensors] : units) {
    std::vector<std::int64_t> starts;
    std::int64_t total = 0;
    for (const LocalTensor* tensor : tensors) {
      starts.push_back(round_up(total, alignment));
      total = starts.back() + tensor->rows * tensor->cols;
    }
    const std::int64_t part = round_up(total, shard.count) / shard.count;
    const FlatRange range{.begin = part * shard.index,
                          .end = part * (shard.index + 1),
                          .buffer = static_cast<std::int32_t>(layout.buffer_elements.size())};
    layout.buffer_elements.push_back(part);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (const Piece& piece : tensors[i]->pieces) add_flat(piece, starts[i], range, layout);
    }
  }
  return layout;
}

}  // namespace troupe::reshard

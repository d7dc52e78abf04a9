#include "actors/train/sharded_state.hpp"

#include "reshard/run_boxes.hpp"

#include <algorithm>
#include <unordered_map>

namespace troupe::actors {
namespace {

using reshard::Box;
using PiecesByName = std::unordered_map<std::string_view, std::vector<const StatePiece*>>;

result<PiecesByName> by_name(std::span<const StatePiece> source) {
  PiecesByName out;
  for (const StatePiece& piece : source) {
    const Box whole = whole_box(piece.whole);
    if (piece.box.empty() || !whole.contains(piece.box))
      return fail(ErrorCode::kCorrupt, "train state: tensor {}: box {} is not inside {}",
                  piece.name, box_text(piece.box), box_text(whole));
    if (static_cast<std::int64_t>(piece.data.size()) != piece.box.elements())
      return fail(ErrorCode::kCorrupt, "train state: tensor {}: {} numbers for box {}", piece.name,
                  piece.data.size(), box_text(piece.box));
    out[piece.name].push_back(&piece);
  }
  return out;
}

/// Checks that `parts` cover `target` exactly once.
result<void> check_cover(const StatePiece& target, std::span<const StatePiece* const> parts) {
  std::int64_t found = 0;
  std::vector<Box> taken;
  for (const StatePiece* part : parts) {
    if (part->whole != target.whole)
      return fail(ErrorCode::kConflict, "train state: tensor {} has shape {}, wanted {}",
                  target.name, shape_text(part->whole), shape_text(target.whole));
    const Box common = intersect(part->box, target.box);
    if (common.empty()) continue;
    for (const Box& other : taken)
      if (!intersect(common, other).empty())
        return fail(ErrorCode::kCorrupt, "train state: tensor {}: {} is given twice", target.name,
                    box_text(intersect(common, other)));
    taken.push_back(common);
    found += common.elements();
  }
  if (found == target.box.elements()) return {};
  return fail(ErrorCode::kNotFound,
              "train state: tensor {} {}: of box {} only {} of {} numbers are there", target.name,
              shape_text(target.whole), box_text(target.box), found, target.box.elements());
}

}  // namespace

Box whole_box(std::span<const std::int64_t> shape) {
  return {0, shape.empty() ? 1 : shape[0], 0, shape.size() > 1 ? shape[1] : 1};
}

bool is_state_shape(std::span<const std::int64_t> shape) {
  constexpr std::int64_t kElementsMax = std::int64_t{1} << 40;
  if (shape.empty() || shape.size() > 2) return false;
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size <= 0 || elements > kElementsMax / size) return false;
    elements *= size;
  }
  return true;
}

void copy_common(const Box& source_box, std::span<const float> source, const Box& target_box,
                 std::span<float> target) {
  const Box common = intersect(source_box, target_box);
  if (common.empty()) return;
  const auto at = [&common](const Box& box, std::int64_t row) {
    return (row - box.row_begin) * box.cols() + common.col_begin - box.col_begin;
  };
  for (std::int64_t row = common.row_begin; row < common.row_end; ++row)
    std::copy_n(source.data() + at(source_box, row), common.cols(),
                target.data() + at(target_box, row));
}

std::vector<RunBox> boxes_of(const LocalTensor& tensor, std::int64_t begin, std::int64_t count) {
  const std::int64_t rows = tensor.shape[0];
  const std::int64_t cols = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  const Box local{tensor.row_begin, tensor.row_begin + rows, tensor.col_begin,
                  tensor.col_begin + cols};
  std::vector<RunBox> out;
  std::int64_t at = 0;
  for (const Box& box : reshard::run_boxes(local, begin, count)) {
    if (box.empty()) continue;
    out.push_back({.box = box, .begin = at});
    at += box.elements();
  }
  return out;
}

std::vector<StatePiece> pieces_of(std::string_view prefix,
                                  std::span<const ParameterSegment> segments,
                                  std::span<const ParameterRun> runs,
                                  std::int64_t ParameterRun::*offset, std::span<const float> buffer,
                                  bool owned) {
  std::vector<StatePiece> out;
  for (const ParameterRun& run : runs) {
    const LocalTensor& tensor = segments[run.segment].tensor;
    if (owned && !tensor.owned) continue;
    for (const RunBox& part : boxes_of(tensor, run.begin, run.count))
      out.push_back({.name = std::string(prefix) + tensor.name,
                     .whole = tensor.whole,
                     .box = part.box,
                     .data = buffer.subspan(static_cast<std::size_t>(run.*offset + part.begin),
                                            static_cast<std::size_t>(part.box.elements()))});
  }
  return out;
}

std::vector<StateTarget> targets_of(std::string_view prefix,
                                    std::span<const ParameterSegment> segments,
                                    std::span<const ParameterRun> runs,
                                    std::int64_t ParameterRun::*offset, std::span<float> buffer) {
  std::vector<StateTarget> out;
  for (StatePiece& piece : pieces_of(prefix, segments, runs, offset, buffer, false)) {
    const std::span<float> data = buffer.subspan(
        static_cast<std::size_t>(piece.data.data() - buffer.data()), piece.data.size());
    out.push_back({.piece = std::move(piece), .data = data});
  }
  return out;
}

result<void> fill_pieces(std::span<const StateTarget> targets, std::span<const StatePiece> source) {
  TROUPE_TRY(const PiecesByName parts, by_name(source));
  const auto find = [&parts](const StatePiece& target) -> std::span<const StatePiece* const> {
    const auto found = parts.find(target.name);
    if (found == parts.end()) return {};
    return found->second;
  };
  for (const StateTarget& target : targets)
    TROUPE_TRY_VOID(check_cover(target.piece, find(target.piece)));
  for (const StateTarget& target : targets)
    for (const StatePiece* part : find(target.piece))
      copy_common(part->box, part->data, target.piece.box, target.data);
  return {};
}

}  // namespace troupe::actors

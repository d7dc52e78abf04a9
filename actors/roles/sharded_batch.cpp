#include "actors/roles/sharded_batch.hpp"

#include "actors/roles/tensor_batch.hpp"

#include <utility>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;

result<StatePiece> described_piece(const Batch& batch, std::int64_t row) {
  const Column& shapes = batch.column(kTensorShape);
  StatePiece piece;
  piece.name = std::string(batch.column(kTensorName).text(row));
  const auto shape = shapes.row<std::int64_t>(row);
  piece.whole.assign(shape.begin(), shape.end());
  if (!is_state_shape(piece.whole))
    return fail(ErrorCode::kCorrupt, "tensor {}: shape {}, wanted one or two positive sizes",
                piece.name, shape_text(piece.whole));
  piece.box = whole_box(piece.whole);
  if (!batch.has(kTensorBox)) return piece;
  const auto box = batch.column(kTensorBox).row<std::int64_t>(row);
  if (box.size() != 4)
    return fail(ErrorCode::kCorrupt, "tensor {}: a box of {} numbers, wanted 4", piece.name,
                box.size());
  const reshard::Box whole = piece.box;
  piece.box = {box[0], box[1], box[2], box[3]};
  if (piece.box.empty() || !whole.contains(piece.box))
    return fail(ErrorCode::kCorrupt, "tensor {}: box {} is not inside {}", piece.name,
                box_text(piece.box), box_text(whole));
  return piece;
}

result<void> check_column(const Batch& batch, std::string_view name,
                          const runtime::ColumnType& wanted) {
  TROUPE_TRY(const Column column, batch.require(name));
  if (column.type() == wanted) return {};
  return fail(ErrorCode::kCorrupt, "pieces: column {} is {}, wanted {}", name,
              column.type().to_string(), wanted.to_string());
}

}  // namespace

result<Batch> piece_batch(std::span<const StatePiece> pieces, std::shared_ptr<const void> keep) {
  std::vector<std::string> names;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::vector<std::int64_t>> boxes;
  std::vector<Column> data;
  for (const StatePiece& piece : pieces) {
    names.push_back(piece.name);
    shapes.push_back(piece.whole);
    boxes.push_back(
        {piece.box.row_begin, piece.box.row_end, piece.box.col_begin, piece.box.col_end});
    data.push_back(Column::jagged_view<float>(
        piece.data, {static_cast<std::int64_t>(piece.data.size())}, keep));
  }
  if (data.empty()) data.push_back(Column::jagged(std::vector<std::vector<float>>{}));
  Batch batch(static_cast<std::int64_t>(pieces.size()));
  TROUPE_TRY_VOID(batch.set(std::string(kTensorName), Column::strings(names)));
  TROUPE_TRY_VOID(batch.set(std::string(kTensorShape), Column::jagged(shapes)));
  TROUPE_TRY_VOID(batch.set(std::string(kTensorBox), Column::jagged(boxes)));
  TROUPE_TRY_VOID(batch.set(std::string(kTensorData), Column::concat(data)));
  return batch;
}

result<PieceRows> PieceRows::open(const Batch& batch, const Wanted& wanted,
                                  std::optional<Deadline> deadline) {
  const runtime::ColumnType integers{runtime::ColumnKind::kJagged, runtime::DType::kI64, {}};
  TROUPE_TRY_VOID(check_column(batch, kTensorShape, integers));
  TROUPE_TRY_VOID(
      check_column(batch, kTensorData, {runtime::ColumnKind::kJagged, runtime::DType::kF32, {}}));
  if (batch.has(kTensorBox)) TROUPE_TRY_VOID(check_column(batch, kTensorBox, integers));
  TROUPE_TRY(const Column names, batch.require(kTensorName));
  if (names.kind() != runtime::ColumnKind::kText)
    return fail(ErrorCode::kCorrupt, "pieces: column {} is {}, wanted text", kTensorName,
                names.type().to_string());
  PieceRows rows;
  TROUPE_TRY(const Batch described, batch.drop({std::string(kTensorData)}));
  TROUPE_TRY(const Batch small, described.resolve(nullptr, deadline));
  std::vector<std::int64_t> chosen;
  for (std::int64_t row = 0; row < small.rows(); ++row) {
    TROUPE_TRY(StatePiece piece, described_piece(small, row));
    if (wanted && !wanted(piece)) continue;
    chosen.push_back(row);
    rows.pieces_.push_back(std::move(piece));
  }
  TROUPE_TRY(const Batch numbers, batch.select({std::string(kTensorData)}));
  TROUPE_TRY(const Batch mine, numbers.index(chosen));
  TROUPE_TRY(rows.batch_, mine.resolve(nullptr, deadline));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    StatePiece& piece = rows.pieces_[i];
    piece.data = rows.batch_.column(kTensorData).row<float>(static_cast<std::int64_t>(i));
    if (static_cast<std::int64_t>(piece.data.size()) != piece.box.elements())
      return fail(ErrorCode::kCorrupt, "tensor {}: {} numbers for box {}", piece.name,
                  piece.data.size(), box_text(piece.box));
  }
  return rows;
}

}  // namespace troupe::actors

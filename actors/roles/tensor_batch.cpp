#include "actors/roles/tensor_batch.hpp"

#include <string>
#include <utility>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

result<Batch> tensor_batch(std::span<const NamedTensor> tensors, std::shared_ptr<const void> keep) {
  std::vector<std::string> names;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<Column> data;
  for (const NamedTensor& tensor : tensors) {
    names.push_back(tensor.name);
    shapes.push_back(tensor.shape);
    data.push_back(Column::jagged_view<float>(
        tensor.data, {static_cast<std::int64_t>(tensor.data.size())}, keep));
  }
  if (data.empty()) data.push_back(Column::jagged(std::vector<std::vector<float>>{}));
  Batch batch(static_cast<std::int64_t>(tensors.size()));
  TROUPE_TRY_VOID(batch.set(std::string(kTensorName), Column::strings(names)));
  TROUPE_TRY_VOID(batch.set(std::string(kTensorShape), Column::jagged(shapes)));
  TROUPE_TRY_VOID(batch.set(std::string(kTensorData), Column::concat(data)));
  return batch;
}

std::int64_t tensor_bytes(const Batch& batch) {
  const Column* const data = batch.find(kTensorData);
  return data == nullptr ? 0 : data->bytes();
}

result<TensorRows> TensorRows::open(const Batch& batch, std::optional<Deadline> deadline) {
  TensorRows rows;
  TROUPE_TRY(rows.batch_, batch.resolve(nullptr, deadline));
  TROUPE_TRY(const Column names, rows.batch_.require(kTensorName));
  TROUPE_TRY(const Column shapes, rows.batch_.require(kTensorShape));
  TROUPE_TRY(const Column data, rows.batch_.require(kTensorData));
  const bool text = names.kind() == runtime::ColumnKind::kText;
  const runtime::ColumnType integers{runtime::ColumnKind::kJagged, runtime::DType::kI64, {}};
  const runtime::ColumnType numbers{runtime::ColumnKind::kJagged, runtime::DType::kF32, {}};
  if (!text || shapes.type() != integers || data.type() != numbers)
    return fail(ErrorCode::kCorrupt, "tensors: columns {}, {}, {}, wanted text, {}, {}",
                names.type().to_string(), shapes.type().to_string(), data.type().to_string(),
                integers.to_string(), numbers.to_string());
  for (std::int64_t row = 0; row < rows.batch_.rows(); ++row) {
    NamedTensor tensor;
    tensor.name = std::string(names.text(row));
    const auto shape = shapes.row<std::int64_t>(row);
    tensor.shape.assign(shape.begin(), shape.end());
    tensor.data = data.row<float>(row);
    std::int64_t wanted = 1;
    for (const std::int64_t size : tensor.shape) {
      // Bounded by what is there, so that a wild shape does not overflow.
      if (size < 0 || (size > 0 && wanted > (std::int64_t{1} << 40) / size)) wanted = -1;
      if (wanted < 0) break;
      wanted *= size;
    }
    if (wanted != static_cast<std::int64_t>(tensor.data.size()))
      return fail(ErrorCode::kCorrupt, "tensor {}: {} elements for shape {}", tensor.name,
                  tensor.data.size(), shape_text(tensor.shape));
    rows.tensors_.push_back(std::move(tensor));
  }
  return rows;
}

}  // namespace troupe::actors

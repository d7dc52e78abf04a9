#include "runtime/group/exchange_context.hpp"

#include "runtime/exchange/column_exchange.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace troupe::runtime {
namespace {

/// Name of the column of a batch that carries one column alone.
const std::string kOnlyColumn = "column";

}  // namespace

result<std::vector<std::byte>> ExchangeContext::export_batch(const Batch& batch) {
  if (options_.exchange == nullptr) return batch.to_bytes();
  if (options_.give == Give::kGrant) return options_.exchange->export_batch(batch);
  TROUPE_TRY(Lent lent, options_.exchange->lend_batch(batch));
  keeps_.push_back(std::move(lent.keep));
  return std::move(lent.bytes);
}

result<Batch> ExchangeContext::import_batch(std::span<const std::byte> bytes) {
  if (options_.exchange == nullptr) return Batch::from_bytes(bytes);
  TROUPE_TRY(Batch batch, options_.exchange->import_batch(bytes));
  if (options_.resolve && batch.has_references()) return batch.resolve(options_.meter);
  return batch;
}

result<std::vector<std::byte>> ExchangeContext::export_column(const Column& column) {
  if (options_.exchange == nullptr) {
    Batch batch;
    TROUPE_TRY_VOID(batch.set(kOnlyColumn, column));
    return batch.to_bytes();
  }
  if (options_.give == Give::kGrant) return options_.exchange->export_column(column);
  TROUPE_TRY(Lent lent, options_.exchange->lend_column(column));
  keeps_.push_back(std::move(lent.keep));
  return std::move(lent.bytes);
}

result<Column> ExchangeContext::import_column(std::span<const std::byte> bytes) {
  if (options_.exchange == nullptr) {
    TROUPE_TRY(const Batch batch, Batch::from_bytes(bytes));
    return batch.require(kOnlyColumn);
  }
  TROUPE_TRY(Column column, options_.exchange->import_column(bytes));
  if (options_.resolve && column.is_reference()) return column.resolve(options_.meter);
  return column;
}

result<std::vector<std::byte>> ExchangeContext::hold(std::vector<std::byte> value) {
  if (options_.exchange == nullptr) {
    return fail(ErrorCode::kResourceExhausted,
                "{} bytes do not fit a frame, and the job has no column exchange", value.size());
  }
  std::vector<std::uint8_t> raw(value.size());
  std::memcpy(raw.data(), value.data(), value.size());
  return export_column(Column::dense<std::uint8_t>(std::move(raw)));
}

result<std::vector<std::byte>> ExchangeContext::fetch(std::span<const std::byte> held) {
  if (options_.exchange == nullptr)
    return fail(ErrorCode::kCorrupt, "a held value came, and the job has no column exchange");
  TROUPE_TRY(Column column, options_.exchange->import_column(held));
  TROUPE_TRY(column, column.resolve(options_.meter));
  if (column.kind() != ColumnKind::kDense || column.dtype() != DType::kU8 ||
      !column.type().row_shape.empty()) {
    return fail(ErrorCode::kCorrupt, "a held value is a column of {}", column.type().to_string());
  }
  const auto raw = column.values<std::uint8_t>();
  std::vector<std::byte> value(raw.size());
  if (!raw.empty()) std::memcpy(value.data(), raw.data(), raw.size());
  return value;
}

}  // namespace troupe::runtime

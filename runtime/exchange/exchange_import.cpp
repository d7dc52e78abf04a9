// Importing: columns over what a frame refers to.

#include "runtime/base/check.hpp"
#include "runtime/batch/checksum.hpp"
#include "runtime/exchange/exchange_core.hpp"

namespace troupe::runtime {
namespace {

using LeasePointer = std::shared_ptr<const ColumnLease>;

StoragePointer storage_of(const ExchangePiece& piece, const ColumnType& type, LeasePointer lease) {
  auto storage = std::make_shared<Storage>();
  storage->rows = piece.rows;
  storage->element_bytes = dtype_bytes(type.dtype);
  storage->row_elements = type.kind == ColumnKind::kDense ? row_elements(type.row_shape) : 0;
  storage->offsets = piece.offsets;
  storage->lease = std::move(lease);
  storage->lease_first = piece.first_row;
  return storage;
}

Column column_of(const ExchangeColumn& column, const std::vector<StoragePointer>& storages) {
  RopeBuilder builder(column.type);
  for (const ExchangeRun& run : *column.runs)
    builder.add(storages[run.piece], run.first, run.count);
  return std::move(builder).finish();
}

}  // namespace

result<Batch> ColumnExchange::Core::decode(std::span<const std::byte> bytes) {
  const ExchangeLimits limits{.batch = options_.limits};
  TROUPE_TRY(ExchangeFrame frame, decode_exchange(bytes, limits));
  if (const auto* held = std::get_if<ExchangeHeld>(&frame)) {
    TROUPE_TRY(LeasePointer lease, lease_for(held->owner, held->column, held->granted));
    const ExchangePiece piece{.owner = 0,
                              .column = held->column,
                              .first_row = 0,
                              .rows = held->bytes,
                              .offsets = nullptr,
                              .granted = held->granted};
    const ColumnType type{ColumnKind::kDense, DType::kU8, {}};
    const Column reference = ColumnAccess::make(type, storage_of(piece, type, std::move(lease)));
    TROUPE_TRY(const Column whole, reference.resolve());
    const auto inner = whole.contiguous<std::uint8_t>();
    if (!inner || crc32c(std::as_bytes(*inner)) != held->checksum)
      return fail(ErrorCode::kCorrupt, "exchange frame: held frame of {} bytes at {}: checksum",
                  held->bytes, owner_name(held->owner.owner));
    TROUPE_TRY(frame, decode_exchange(std::as_bytes(*inner), limits));
    if (std::holds_alternative<ExchangeHeld>(frame))
      return fail(ErrorCode::kCorrupt, "exchange frame: a held frame inside another");
  }
  auto& batch = std::get<ExchangeBatch>(frame);
  for (const ExchangeColumn& column : batch.columns) {
    std::vector<StoragePointer> storages;
    for (const ExchangePiece& piece : column.pieces) {
      result<LeasePointer> lease =
          lease_for(batch.owners[piece.owner], piece.column, piece.granted);
      if (!lease) {
        Error error = std::move(lease).error();
        error.message = fmt::format("column {}: {}", column.name, error.message);
        return fail(std::move(error));
      }
      storages.push_back(storage_of(piece, column.type, *std::move(lease)));
    }
    TROUPE_TRY_VOID(batch.inlined.set(column.name, column_of(column, storages)));
  }
  return std::move(batch.inlined);
}

}  // namespace troupe::runtime

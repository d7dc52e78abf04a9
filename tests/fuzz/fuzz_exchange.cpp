// No bytes crash the decoders of exported batches and lease notices, nor build more than their
// bounds; what they accept encodes to bytes that decode to the same.

#include "runtime/exchange/exchange_codec.hpp"
#include "tests/fuzz/frame_patch.hpp"

#include <cstdlib>

namespace {

using namespace troupe::runtime;

void must(bool held) {
  if (!held) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  ExchangeLimits limits;
  limits.batch.rows_max = 1 << 14;
  limits.batch.checksums = false;
  limits.table_rows_max = 1 << 14;
  (void)decode_exchange(bytes, {});
  (void)decode_lease_notice(bytes);
  const auto frame = decode_exchange(with_true_size(bytes), limits);
  if (!frame) return 0;
  if (const auto* held = std::get_if<ExchangeHeld>(&*frame)) {
    must(encode_exchange(*held).has_value());
    return 0;
  }
  const auto& batch = std::get<ExchangeBatch>(*frame);
  for (const ExchangeColumn& column : batch.columns) {
    std::int64_t rows = 0;
    for (const ExchangeRun& run : *column.runs) {
      must(run.piece < column.pieces.size());
      const ExchangePiece& piece = column.pieces[run.piece];
      must(run.first >= 0 && run.count > 0 && run.first + run.count <= piece.rows);
      if (piece.offsets) must(static_cast<std::int64_t>(piece.offsets->size()) == piece.rows + 1);
      rows += run.count;
    }
    must(rows == batch.inlined.rows());
  }
  const auto again = encode_exchange(batch);
  must(again.has_value());
  const auto back = decode_exchange(*again, limits);
  must(back.has_value() && *encode_exchange(std::get<ExchangeBatch>(*back)) == *again);
  return 0;
}

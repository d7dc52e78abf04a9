#include "reshard/execution/piece_sums.hpp"

#include "reshard/execution/checksum.hpp"
#include "runtime/base/check.hpp"
#include "runtime/batch/checksum.hpp"

#include <algorithm>

namespace troupe::reshard {
namespace {

/// Bytes that are summed twice while they are in the first cache.
constexpr std::int64_t kBlockBytes = std::int64_t{16} << 10;

}  // namespace

PieceSums sums_of(const PublicationPlan& plan, const OpPiece& piece,
                  std::span<const std::span<const std::byte>> memory, const Checks& checks) {
  const Op& op = plan.op(piece.op);
  const TensorInfo& tensor = plan.tensor_of(op);
  const std::int64_t element = element_bytes(tensor.dtype);
  const std::int64_t cols = op.col_end - op.col_begin;
  const bool full_rows = cols == tensor.cols;
  PieceSums sums;
  std::int64_t at = piece.first;  // in the box
  for (const std::span<const std::byte> span : memory) {
    const std::byte* data = span.data();
    std::int64_t left = static_cast<std::int64_t>(span.size()) / element;
    while (left > 0) {
      const std::int64_t row = op.row_begin + at / cols;
      const std::int64_t col = at % cols;
      // Whole rows of the tensor follow one another in its flat index; others do not.
      std::int64_t count = std::min(left, kBlockBytes / element);
      if (!full_rows) count = std::min(count, cols - col);
      if (checks.chunk_crc)
        sums.crc = runtime::crc32c({data, static_cast<std::size_t>(count * element)}, sums.crc);
      if (checks.tensor_sums)
        sums.tensor += sum_elements(data, element, row * tensor.cols + op.col_begin + col, count);
      data += count * element;
      at += count;
      left -= count;
    }
  }
  TROUPE_CHECK(at == piece.first + piece.count, "sums: {} elements, the piece has {}",
               at - piece.first, piece.count);
  return sums;
}

}  // namespace troupe::reshard

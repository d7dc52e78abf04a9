#include "reshard/execution/piece_sums.hpp"

#include "reshard/execution/checksum.hpp"
#include "reshard/execution/checksum_paths.hpp"
#include "runtime/base/check.hpp"
#include "runtime/batch/checksum.hpp"

#include <algorithm>

namespace troupe::reshard {
namespace {

/// Bytes that are walked over twice while they are in the first cache.
constexpr std::int64_t kBlockBytes = std::int64_t{16} << 10;

/// Calls `run(element of the piece, element of the tensor, count)` for runs that lie dense in the
/// tensor, none longer than `most` elements.
template <class Run>
void for_each_tensor_run(const Op& op, const TensorInfo& tensor, const OpPiece& piece,
                         std::int64_t most, Run run) {
  const std::int64_t cols = op.col_end - op.col_begin;
  const bool full_rows = cols == tensor.cols;
  for (std::int64_t done = 0; done < piece.count;) {
    const std::int64_t row = op.row_begin + (piece.first + done) / cols;
    const std::int64_t col = (piece.first + done) % cols;
    // Whole rows of the tensor follow one another in its flat index; others do not.
    std::int64_t count = std::min(piece.count - done, most);
    if (!full_rows) count = std::min(count, cols - col);
    run(done, row * tensor.cols + op.col_begin + col, count);
    done += count;
  }
}

}  // namespace

PieceSums sums_of(const PublicationPlan& plan, const OpPiece& piece,
                  std::span<const std::span<const std::byte>> memory, const Checks& checks) {
  const Op& op = plan.op(piece.op);
  const TensorInfo& tensor = plan.tensor_of(op);
  const std::int64_t element = element_bytes(tensor.dtype);
  PieceSums sums{.known = 1};
  OpPiece part = piece;
  for (const std::span<const std::byte> span : memory) {
    part.count = static_cast<std::int64_t>(span.size()) / element;
    for_each_tensor_run(
        op, tensor, part, checks.chunk_crc ? kBlockBytes / element : part.count,
        [&](std::int64_t at, std::int64_t index, std::int64_t count) {
          const std::byte* data = span.data() + at * element;
          if (checks.chunk_crc)
            sums.crc = runtime::crc32c({data, static_cast<std::size_t>(count * element)}, sums.crc);
          if (checks.tensor_sums) sums.tensor += sum_elements(data, element, index, count);
        });
    part.first += part.count;
  }
  TROUPE_CHECK(part.first == piece.first + piece.count, "sums: {} elements, the piece has {}",
               part.first - piece.first, piece.count);
  return sums;
}

std::uint64_t sum_bytes_of(const Op& op, const TensorInfo& tensor, const OpPiece& piece,
                           std::int64_t first_byte, std::span<const std::byte> bytes,
                           std::byte* to) {
  const std::int64_t element = element_bytes(tensor.dtype);
  const std::int64_t row_bytes = (op.col_end - op.col_begin) * element;
  const std::int64_t tensor_row_bytes = tensor.cols * element;
  const bool full_rows = row_bytes == tensor_row_bytes;
  std::int64_t at = piece.first * element + first_byte;  // in the box
  // The rest of the piece comes, or has come, the same way.
  const std::int64_t piece_bytes = piece.count * element;
  const bool stream =
      to != nullptr && copies_around_caches(full_rows ? piece_bytes : row_bytes, piece_bytes);
  std::uint64_t sum = 0;
  while (!bytes.empty()) {
    const std::int64_t in_row = at % row_bytes;
    auto some = static_cast<std::int64_t>(bytes.size());
    if (!full_rows) some = std::min(some, row_bytes - in_row);
    const std::int64_t position =
        (op.row_begin + at / row_bytes) * tensor_row_bytes + op.col_begin * element + in_row;
    if (to == nullptr) {
      sum += sum_elements(bytes.data(), 1, position, some);
    } else {
      sum += copy_and_sum(to, bytes.data(), 1, position, some, stream);
      to += some;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(some));
    at += some;
  }
  if (stream) end_stream();
  return sum;
}

PieceSums scatter_and_sum(const PublicationPlan& plan, const OpPiece& piece,
                          std::span<const std::byte> dense, std::span<std::byte> buffer,
                          const Region& region, const Checks& checks) {
  const Op& op = plan.op(piece.op);
  const TensorInfo& tensor = plan.tensor_of(op);
  const std::int64_t element = element_bytes(tensor.dtype);
  PieceSums sums{.known = 1};
  if (!checks.tensor_sums) {
    if (checks.chunk_crc) sums.crc = runtime::crc32c(dense, 0);
    scatter_piece(dense, buffer, region, element, piece.first, piece.count);
    return sums;
  }
  const bool stream =
      copies_around_caches(region.cols * element, piece.count * element) && !region.contiguous();
  // A run ends with its row: rows are apart in the buffer.
  std::int64_t most = region.contiguous() ? piece.count : region.cols;
  if (checks.chunk_crc) most = std::min(most, kBlockBytes / element);
  const auto copy = [&](std::int64_t at, std::int64_t index, std::int64_t count) {
    const std::byte* data = dense.data() + at * element;
    if (checks.chunk_crc)
      sums.crc = runtime::crc32c({data, static_cast<std::size_t>(count * element)}, sums.crc);
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t in_piece = piece.first + at + done;
      const std::int64_t col = in_piece % region.cols;
      const std::int64_t take =
          region.contiguous() ? count : std::min(count - done, region.cols - col);
      const std::int64_t place =
          region.contiguous() ? in_piece : in_piece / region.cols * region.row_stride + col;
      sums.tensor += copy_and_sum(buffer.data() + (region.offset + place) * element,
                                  data + done * element, element, index + done, take, stream);
      done += take;
    }
  };
  check_region(buffer.size(), region, element, piece.first, piece.count);
  for_each_tensor_run(op, tensor, piece, most, copy);
  if (stream) end_stream();
  return sums;
}

std::uint64_t copy_box_and_sum(const Op& op, const TensorInfo& tensor, std::byte* to,
                               std::int64_t to_stride, const std::byte* data,
                               std::int64_t data_stride) {
  const std::int64_t element = element_bytes(tensor.dtype);
  std::int64_t cols = op.col_end - op.col_begin;
  std::int64_t rows = op.row_end - op.row_begin;
  const std::int64_t step = tensor.cols;
  if (cols == tensor.cols && to_stride == cols && data_stride == cols) {
    cols *= rows;
    rows = 1;
  }
  const bool stream = copies_around_caches(cols * element, rows * cols * element);
  std::uint64_t sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    sum += copy_and_sum(to + row * to_stride * element, data + row * data_stride * element, element,
                        (op.row_begin + row) * step + op.col_begin, cols, stream);
  }
  if (stream) end_stream();
  return sum;
}

}  // namespace troupe::reshard

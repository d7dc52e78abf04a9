// Receiver: what happens to a piece once its bytes are here.

#include "reshard/execution/checksum.hpp"
#include "reshard/execution/delta.hpp"
#include "reshard/execution/piece.hpp"
#include "reshard/execution/receiver.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::reshard {
namespace {

/// Rows copied and summed together, so that the second walk finds them in a cache.
constexpr std::int64_t kBlockBytes = std::int64_t{64} << 10;

std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

std::int64_t Receiver::element_of(const Op& op) const {
  return element_bytes(plan_.tensor_of(op).dtype);
}

Region Receiver::region_here(const Op& op) const {
  return target_region(op, *plan_.target_layout(job_.rank));
}

std::string Receiver::piece_text(const OpPiece& piece) const {
  const Op& op = plan_.op(piece.op);
  return fmt::format("tensor {} {}", plan_.tensor_of(op).name, box_text(op.box()));
}

/// Where the bytes of a piece land, row-major.
std::span<std::byte> Receiver::place_of(const Flight& flight, std::size_t index) const {
  const BucketPiece& one = flight.bucket->pieces[index];
  const Op& op = plan_.op(one.piece.op);
  const std::int64_t bytes = one.piece.count * element_of(op);
  if (one.route == Route::kStaged || job_.id.base)
    return std::span(*flight.claims->memory).subspan(size(one.slot_offset), size(bytes));
  const Region region = region_here(op);
  return job_.sink->buffer(region.buffer)
      .subspan(size((region.offset + one.piece.first) * element_of(op)), size(bytes));
}

result<void> Receiver::check_piece(const Flight& flight, std::size_t index,
                                   std::span<const std::span<const std::byte>> memory) {
  const OpPiece& piece = flight.bucket->pieces[index].piece;
  const Op& op = plan_.op(piece.op);
  const PieceSums& claimed = flight.claims->sums[index];
  const PieceSums found = sums_of(plan_, piece, memory, job_.checks);
  if (job_.checks.chunk_crc && found.crc != claimed.crc)
    return fail(ErrorCode::kCorrupt,
                "target rank {}: {}: elements {}+{} from rank {}: crc32c {:08x}, sent as {:08x}",
                job_.rank, piece_text(piece), piece.first, piece.count, op.source_rank, found.crc,
                claimed.crc);
  if (found.tensor != claimed.tensor)
    return fail(
        ErrorCode::kCorrupt,
        "target rank {}: {}: elements {}+{} from rank {}: checksum {:016x}, sent as {:016x}",
        job_.rank, piece_text(piece), piece.first, piece.count, op.source_rank, found.tensor,
        claimed.tensor);
  TensorSums& sums = sums_[op.tensor];
  sums.claimed += claimed.tensor;
  sums.found += found.tensor;
  sums.elements += piece.count;
  return {};
}

result<void> Receiver::unpack(Flight& flight, std::size_t index) {
  const BucketPiece& one = flight.bucket->pieces[index];
  const OpPiece& piece = one.piece;
  const Op& op = plan_.op(piece.op);
  const std::span<const std::byte> dense = place_of(flight, index);
  if (flight.claims->delta_bytes[index] >= 0) return apply_delta(flight, index);
  TROUPE_TRY_VOID(check_piece(flight, index, std::span(&dense, 1)));
  if (one.route == Route::kInPlace && !job_.id.base) return {};
  const Region region = region_here(op);
  if (const std::span<std::byte> buffer = job_.sink->buffer(region.buffer); !buffer.empty()) {
    scatter_piece(dense, buffer, region, element_of(op), piece.first, piece.count);
    return {};
  }
  const std::byte* data = dense.data();
  for (const Box& box : piece_boxes(op.box(), piece.first, piece.count)) {
    if (box.empty()) continue;
    TROUPE_TRY_VOID(job_.sink->write(plan_.tensor_of(op), box, data, box.cols()));
    data += box.elements() * element_of(op);
  }
  return {};
}

result<void> Receiver::apply_delta(Flight& flight, std::size_t index) {
  const OpPiece& piece = flight.bucket->pieces[index].piece;
  const Op& op = plan_.op(piece.op);
  const std::int64_t element = element_of(op);
  const Region region = region_here(op);
  const std::span<std::byte> buffer = job_.sink->buffer(region.buffer);
  const auto bytes = size(flight.claims->delta_bytes[index]);
  TROUPE_TRY(const std::vector<DeltaRun> runs,
             decode_delta(place_of(flight, index).first(bytes), piece.count * element));
  for (const DeltaRun& run : runs) {
    // In bytes, since a run may begin inside an element.
    Region narrow = region;
    narrow.offset *= element;
    narrow.row_stride *= element;
    narrow.cols *= element;
    scatter_piece(run.bytes, buffer, narrow, 1, piece.first * element + run.at,
                  static_cast<std::int64_t>(run.bytes.size()));
  }
  statistics_.unchanged_bytes += piece.count * element - static_cast<std::int64_t>(bytes);
  return check_piece(flight, index, piece_spans(buffer, region, element, piece.first, piece.count));
}

/// Reads a box where it lies in this process.
result<void> Receiver::take_local(const BucketPiece& one) {
  const Op& op = plan_.op(one.piece.op);
  const Op& root = plan_.root_of(one.piece.op);
  const TensorInfo& tensor = plan_.tensor_of(op);
  const std::int64_t element = element_of(op);
  const auto giver = job_.port->giver(job_.id.epoch, {Side::kSource, root.source_rank});
  const std::int32_t root_index = [&] {
    std::int32_t index = one.piece.op;
    while (plan_.op(index).after >= 0) index = plan_.op(index).after;
    return index;
  }();
  const std::optional<MemoryView> view = giver == nullptr ? std::nullopt : giver->view(root_index);
  if (!view)
    return fail(ErrorCode::kAborted, "target rank {}: {}: source rank {} gives it out no longer",
                job_.rank, piece_text(one.piece), root.source_rank);
  const std::int64_t bytes = op.elements() * element;
  statistics_.local_bytes += bytes;
  sums_[op.tensor].elements += op.elements();
  if (job_.permit_views && job_.sink->adopt(tensor, op.box(), view->data, view->row_stride)) {
    statistics_.viewed_bytes += bytes;
    return {};
  }
  const Region region = region_here(op);
  const std::span<std::byte> buffer = job_.sink->buffer(region.buffer);
  if (buffer.empty()) return job_.sink->write(tensor, op.box(), view->data, view->row_stride);
  std::byte* target = buffer.data() + region.offset * element;
  const std::int64_t row_bytes = region.cols * element;
  if (!job_.checks.tensor_sums) {
    copy_rows(target, region.row_stride * element, view->data, view->row_stride * element,
              region.rows, row_bytes);
    return {};
  }
  const std::int64_t step = std::max<std::int64_t>(1, kBlockBytes / row_bytes);
  for (std::int64_t row = 0; row < region.rows; row += step) {
    const std::int64_t rows = std::min(step, region.rows - row);
    std::byte* to = target + row * region.row_stride * element;
    const std::byte* from = view->data + row * view->row_stride * element;
    copy_rows(to, region.row_stride * element, from, view->row_stride * element, rows, row_bytes);
    const Box box{op.row_begin + row, op.row_begin + row + rows, op.col_begin, op.col_end};
    sums_[op.tensor].claimed += sum_box(box, tensor.cols, from, view->row_stride, element);
    sums_[op.tensor].found += sum_box(box, tensor.cols, to, region.row_stride, element);
  }
  return {};
}

void Receiver::count(const Flight& flight, std::size_t index) {
  const BucketPiece& one = flight.bucket->pieces[index];
  const Op& op = plan_.op(one.piece.op);
  const std::int64_t delta = flight.claims->delta_bytes[index];
  const std::int64_t bytes = delta >= 0 ? delta : one.piece.count * element_of(op);
  statistics_.pulled_bytes += bytes;
  if (op.crosses_network()) statistics_.network_bytes += bytes;
  if (one.route == Route::kInPlace && !job_.id.base) statistics_.in_place_bytes += bytes;
  if (!op.hands_on()) return;
  statistics_.relayed_bytes += bytes;
  Sender& sender = senders_[op.source_rank];
  sender.done += one.piece.count;
  if (sender.done == op.elements()) {
    ++sender.next;
    sender.done = 0;
  }
}

result<void> Receiver::check_tensors() const {
  std::map<std::int32_t, std::int64_t> wanted;
  for (const std::int32_t index : plan_.receive_order(job_.rank).ops)
    wanted[plan_.op(index).tensor] += plan_.op(index).elements();
  for (const auto& [tensor, elements] : wanted) {
    const std::string& name = plan_.plan().tensors[size(tensor)].name;
    const auto place = sums_.find(tensor);
    const TensorSums found = place == sums_.end() ? TensorSums() : place->second;
    if (found.elements != elements)
      return fail(ErrorCode::kCorrupt, "target rank {}: tensor {}: {} elements came, wanted {}",
                  job_.rank, name, found.elements, elements);
    if (found.claimed != found.found)
      return fail(ErrorCode::kCorrupt,
                  "target rank {}: tensor {}: checksum {:016x}, sent as {:016x}", job_.rank, name,
                  found.found, found.claimed);
  }
  return {};
}

}  // namespace troupe::reshard

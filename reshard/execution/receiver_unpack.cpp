// Receiver: what happens to a piece once its bytes are here.

#include "reshard/execution/delta.hpp"
#include "reshard/execution/piece.hpp"
#include "reshard/execution/piece_summer.hpp"
#include "reshard/execution/receiver.hpp"
#include "reshard/run_boxes.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace troupe::reshard {
namespace {

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

result<void> Receiver::found(const Flight& flight, std::size_t index, const PieceSums& sums) {
  const OpPiece& piece = flight.bucket->pieces[index].piece;
  elements_[plan_.op(piece.op).tensor] += piece.count;
  return is_checked() ? proofs_.found(flight.proofs[index], sums) : result<void>();
}

/// Of bytes that landed where they stay: known already, where whoever brought them has told.
PieceSums Receiver::sums_in_place(const Flight& flight, std::size_t index,
                                  std::span<const std::byte> place) const {
  if (const auto& landing = flight.landing[index]) {
    if (const std::optional<std::uint64_t> sum = landing->take(place))
      return {.tensor = *sum, .crc = 0, .known = 1};
  }
  return sums_of(plan_, flight.bucket->pieces[index].piece, std::span(&place, 1), job_.checks);
}

result<void> Receiver::unpack(Flight& flight, std::size_t index) {
  const BucketPiece& one = flight.bucket->pieces[index];
  const OpPiece& piece = one.piece;
  const Op& op = plan_.op(piece.op);
  const std::span<const std::byte> dense = place_of(flight, index);
  if (flight.claims->delta_bytes[index] >= 0) return apply_delta(flight, index);
  if (one.route == Route::kInPlace && !job_.id.base) {
    return found(flight, index, sums_in_place(flight, index, dense));
  }
  const Region region = region_here(op);
  if (const std::span<std::byte> buffer = job_.sink->buffer(region.buffer); !buffer.empty())
    return found(flight, index, scatter_and_sum(plan_, piece, dense, buffer, region, job_.checks));
  const PieceSums sums = sums_of(plan_, piece, std::span(&dense, 1), job_.checks);
  const std::byte* data = dense.data();
  for (const Box& box : run_boxes(op.box(), piece.first, piece.count)) {
    if (box.empty()) continue;
    TROUPE_TRY_VOID(job_.sink->write(plan_.tensor_of(op), box, data, box.cols()));
    data += box.elements() * element_of(op);
  }
  return found(flight, index, sums);
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
  const auto memory = piece_spans(buffer, region, element, piece.first, piece.count);
  return found(flight, index, sums_of(plan_, piece, memory, job_.checks));
}

std::int32_t Receiver::root_index(std::int32_t op) const {
  while (plan_.op(op).after >= 0) op = plan_.op(op).after;
  return op;
}

/// Whether a box of this process is copied here, so that both ends can sum it.
bool Receiver::sums_locally(const BucketPiece& one) const {
  return job_.checks.tensor_sums && one.route == Route::kLocal &&
         !job_.sink->buffer(region_here(plan_.op(one.piece.op)).buffer).empty();
}

/// Reads a box where it lies in this process.
result<void> Receiver::take_local(const BucketPiece& one) {
  const Op& op = plan_.op(one.piece.op);
  const std::int32_t root = root_index(one.piece.op);
  const Member from{Side::kSource, plan_.op(root).source_rank};
  const TensorInfo& tensor = plan_.tensor_of(op);
  const std::int64_t element = element_of(op);
  const auto giver = job_.port->giver(job_.id.epoch, from);
  const std::optional<MemoryView> view = giver == nullptr ? std::nullopt : giver->view(root);
  if (!view)
    return fail(ErrorCode::kAborted, "target rank {}: {}: {} gives it out no longer", job_.rank,
                piece_text(one.piece), member_text(from));
  const std::int64_t bytes = op.elements() * element;
  statistics_.local_bytes += bytes;
  elements_[op.tensor] += op.elements();
  if (job_.permit_views && job_.sink->adopt(tensor, op.box(), view->data, view->row_stride)) {
    statistics_.viewed_bytes += bytes;
    return {};
  }
  const Region region = region_here(op);
  const std::span<std::byte> buffer = job_.sink->buffer(region.buffer);
  if (buffer.empty()) return job_.sink->write(tensor, op.box(), view->data, view->row_stride);
  std::byte* target = buffer.data() + region.offset * element;
  if (!sums_locally(one)) {
    copy_rows(target, region.row_stride * element, view->data, view->row_stride * element,
              region.rows, region.cols * element);
    return {};
  }
  const PieceSums sums{.tensor = copy_box_and_sum(op, tensor, target, region.row_stride, view->data,
                                                  view->row_stride),
                       .crc = 0,
                       .known = 1};
  OpPiece piece = one.piece;
  piece.op = root;
  // Who reads a box of a version first says what its sum is, on its way; all others must agree.
  const Proofs::Id proof = proofs_.expect_here(giver, from, piece);
  if (const std::optional<PieceSums> known = job_.port->summer().offer(*giver, piece, sums))
    TROUPE_TRY_VOID(proofs_.claim(proof, *known));
  return proofs_.found(proof, sums);
}

result<void> Receiver::prove_all() {
  while (!proofs_.empty()) {
    TROUPE_TRY_VOID(stopped());
    TROUPE_TRY(const bool moved, proofs_.advance());
    if (moved) continue;
    if (job_.deadline.passed()) {
      waited_for_ = proofs_.first_member();
      return fail(ErrorCode::kDeadline, "target rank {}: {} did not come", job_.rank,
                  proofs_.first_open());
    }
    constexpr Duration kLook = std::chrono::microseconds(200);
    if (const runtime::pending<void>* answer = proofs_.answer())
      runtime::block_on(*answer->shared(), Deadline::in(kLook));
    else
      std::this_thread::sleep_for(kLook);
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
    const auto place = elements_.find(tensor);
    const std::int64_t found = place == elements_.end() ? 0 : place->second;
    if (found != elements)
      return fail(ErrorCode::kCorrupt, "target rank {}: tensor {}: {} elements came, wanted {}",
                  job_.rank, name, found, elements);
  }
  return {};
}

}  // namespace troupe::reshard

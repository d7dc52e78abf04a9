#include "reshard/execution/weight_port.hpp"

#include "reshard/execution/delta.hpp"
#include "reshard/execution/piece_columns.hpp"
#include "reshard/execution/piece_summer.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace troupe::reshard {
namespace {

/// Bytes that were made for one answer.
template <class T>
runtime::Pinned pin_value(const T& value) {
  auto bytes = std::make_shared<T>(value);
  const auto span = std::as_bytes(std::span<const T, 1>(bytes.get(), 1));
  return {.spans = {span}, .keep = std::move(bytes)};
}

}  // namespace

PieceGiver::PieceGiver() {
  static std::atomic<std::uint64_t> last{0};
  number_ = ++last;
}

result<runtime::Pinned> PieceGiver::read_base(const OpPiece& /*piece*/) {
  return runtime::Pinned{};
}

WeightPort::WeightPort() : summer_(std::make_unique<PieceSummer>()) {}

std::unique_ptr<WeightPort> WeightPort::local() {
  return std::unique_ptr<WeightPort>(new WeightPort());
}

result<std::unique_ptr<WeightPort>> WeightPort::open(WeightPortOptions options) {
  TROUPE_CHECK(!options.transport.source, "weight port of {}: its transport has a source already",
               options.transport.name);
  return open([&options](runtime::PullSource source) {
    runtime::TransportOptions transport = std::move(options.transport);
    transport.source = std::move(source);
    return runtime::open_ucx_transport(std::move(transport));
  });
}

result<std::unique_ptr<WeightPort>> WeightPort::open(const OpenTransport& open) {
  std::unique_ptr<WeightPort> port(new WeightPort());
  TROUPE_TRY(port->transport_,
             open([self = port.get()](ColumnId column, std::int64_t first, std::int64_t rows) {
               return self->answer(column, first, rows);
             }));
  return port;
}

WeightPort::~WeightPort() {
  transport_.reset();  // before what its thread reads
}

std::vector<std::byte> WeightPort::address() const {
  return transport_ == nullptr ? std::vector<std::byte>() : transport_->address();
}

result<void> WeightPort::give(std::uint64_t epoch, Member member,
                              std::shared_ptr<PieceGiver> giver) {
  const std::lock_guard lock(mutex_);
  const bool fresh = givers_.emplace(Key{epoch, member}, std::move(giver)).second;
  if (!fresh)
    return fail(ErrorCode::kAlreadyExists, "weight port: {} gives under epoch {} already",
                member_text(member), epoch);
  return {};
}

void WeightPort::stop_giving(std::uint64_t epoch, Member member) {
  std::shared_ptr<PieceGiver> last;
  {
    const std::lock_guard lock(mutex_);
    const auto place = givers_.find(Key{epoch, member});
    if (place == givers_.end()) return;
    last = std::move(place->second);
    givers_.erase(place);
  }
  last->close();
  summer_->forget(*last);
  if (member.side == Side::kTarget) summer_->drain(*last);
}

std::shared_ptr<PieceGiver> WeightPort::giver(std::uint64_t epoch, Member member) const {
  const std::lock_guard lock(mutex_);
  const auto place = givers_.find(Key{epoch, member});
  return place == givers_.end() ? nullptr : place->second;
}

void WeightPort::peer_lost(const std::vector<std::byte>& address, Error cause) {
  if (transport_ != nullptr) transport_->peer_lost(address, std::move(cause));
}

result<std::shared_ptr<PieceGiver>> WeightPort::giver_of(std::uint64_t epoch,
                                                         std::int32_t op) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, giver] : givers_) {
    if (short_epoch(key.epoch) != epoch) continue;
    const PublicationPlan& plan = giver->plan();
    if (op < 0 || op >= static_cast<std::int32_t>(plan.plan().ops.size())) continue;
    const Op& one = plan.op(op);
    const Side side = one.hands_on() ? Side::kTarget : Side::kSource;
    if (key.member == Member{side, one.source_rank}) return giver;
    // What is handed on may as well come from the weights themselves when they are here.
    const Op& root = plan.root_of(op);
    if (key.member == Member{Side::kSource, root.source_rank}) return giver;
  }
  return fail(ErrorCode::kNotFound, "weights: operation {} of epoch {} is not given out here", op,
              epoch);
}

result<runtime::Pinned> WeightPort::answer(ColumnId column, std::int64_t first,
                                           std::int64_t rows) const {
  const PieceColumn wanted = decode_column(column);
  if (wanted.kind == ColumnKind::kProgress) {
    const auto [rank, taker] = progress_ranks(wanted);
    const std::shared_ptr<PieceGiver> one = [&, this, rank = rank] {
      const std::lock_guard lock(mutex_);
      for (const auto& [key, giver] : givers_) {
        if (short_epoch(key.epoch) == wanted.epoch && key.member == Member{Side::kTarget, rank})
          return giver;
      }
      return std::shared_ptr<PieceGiver>();
    }();
    if (one == nullptr)
      return fail(ErrorCode::kNotFound, "weights: target rank {} hands on nothing in epoch {}",
                  rank, wanted.epoch);
    return pin_value(one->progress(taker, first));
  }
  TROUPE_TRY(const std::shared_ptr<PieceGiver> one, giver_of(wanted.epoch, wanted.op));
  const std::int64_t elements = one->plan().op(wanted.op).elements();
  if (first < 0 || rows <= 0 || first > elements || rows > elements - first)
    return fail(ErrorCode::kInvalidArgument, "weights: elements {}+{} of operation {}, it has {}",
                first, rows, wanted.op, elements);
  const OpPiece piece{.op = wanted.op, .first = first, .count = rows};
  switch (wanted.kind) {
    case ColumnKind::kBytes:
      return one->read(piece);
    case ColumnKind::kSums:
    case ColumnKind::kCrc:
    case ColumnKind::kTensorSum: {
      const Checks checks{.chunk_crc = wanted.kind != ColumnKind::kTensorSum,
                          .tensor_sums = wanted.kind != ColumnKind::kCrc};
      const std::optional<result<PieceSums>> sums = summer_->look(one, piece, checks);
      if (!sums) return pin_value(PieceSums());
      if (!*sums) return fail(sums->error());
      return pin_value(**sums);
    }
    case ColumnKind::kDeltaSize: {
      TROUPE_TRY(const runtime::Pinned now, one->read(piece));
      TROUPE_TRY(const runtime::Pinned base, one->read_base(piece));
      return pin_value(delta_bytes(now.spans, base.spans));
    }
    case ColumnKind::kDelta: {
      TROUPE_TRY(const runtime::Pinned now, one->read(piece));
      TROUPE_TRY(const runtime::Pinned base, one->read_base(piece));
      auto bytes = std::make_shared<std::vector<std::byte>>(encode_delta(now.spans, base.spans));
      const std::span<const std::byte> span = *bytes;
      return runtime::Pinned{.spans = {span}, .keep = std::move(bytes)};
    }
    case ColumnKind::kProgress:
      break;
  }
  return fail(ErrorCode::kInvalidArgument, "weights: column of kind {}",
              static_cast<int>(wanted.kind));
}

}  // namespace troupe::reshard

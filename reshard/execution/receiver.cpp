#include "reshard/execution/receiver.hpp"

#include "reshard/execution/piece.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace troupe::reshard {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(20);
constexpr Duration kPollFirst = std::chrono::microseconds(200);
constexpr Duration kPollMost = std::chrono::milliseconds(4);

template <class T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span<T, 1>(&value, 1));
}

Deadline soon(Duration span, Deadline end) { return std::min(Deadline::in(span), end); }

}  // namespace

Receiver::Receiver(ReceiveJob job) : job_(std::move(job)), plan_(*job_.plan) { flights_.resize(2); }

result<ReceiveStatistics> Receiver::run() {
  find_senders();
  const std::vector<Bucket>& buckets = *job_.buckets;
  for (const auto& [rank, sender] : senders_) {
    // Also tells those whom we do not need after all, since the weights are here.
    TROUPE_TRY_VOID(poll({Side::kTarget, rank}));
  }
  if (!buckets.empty()) TROUPE_TRY_VOID(depart(0));
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (i + 1 < buckets.size()) TROUPE_TRY_VOID(depart(i + 1));
    TROUPE_TRY_VOID(arrive(flights_[i % 2]));
    announce(i + 1);
  }
  TROUPE_TRY_VOID(check_tensors());
  statistics_.buckets = static_cast<std::int64_t>(buckets.size());
  for (const BucketMemory& memory : job_.memory)
    statistics_.staging_bytes += memory == nullptr ? 0 : static_cast<std::int64_t>(memory->size());
  return statistics_;
}

void Receiver::find_senders() {
  for (const std::int32_t index : plan_.receive_order(job_.rank).ops) {
    const Op& op = plan_.op(index);
    if (!op.hands_on()) continue;
    Sender& sender = senders_[op.source_rank];
    const Member root{Side::kSource, plan_.root_of(index).source_rank};
    if (job_.port->giver(job_.id.epoch, root) == nullptr) sender.ops.push_back(index);
  }
}

/// Asks for what can be asked for already.
result<void> Receiver::depart(std::size_t index) {
  const Bucket& bucket = (*job_.buckets)[index];
  Flight& flight = flights_[index % 2];
  const BucketMemory& memory = job_.memory[index % 2];
  if (index >= 2) {
    // Its memory may still be handed on.
    const std::int64_t end = (*job_.buckets)[index - 2].end;
    while (!job_.hand_on->wait_taken(end, soon(kLook, job_.deadline))) {
      TROUPE_TRY_VOID(stopped());
      if (job_.deadline.passed())
        return fail(ErrorCode::kDeadline, "target rank {}: peers have not taken bucket {} from it",
                    job_.rank, index - 2);
    }
  }
  flight = Flight();
  flight.bucket = &bucket;
  flight.claims = std::make_shared<Claims>();
  flight.claims->sums.resize(bucket.pieces.size());
  flight.claims->delta_bytes.assign(bucket.pieces.size(), -1);
  flight.claims->memory = memory;
  flight.claims->landing = job_.landing;
  std::map<Member, std::size_t> groups;
  for (std::size_t i = 0; i < bucket.pieces.size(); ++i) {
    if (bucket.pieces[i].route == Route::kLocal) continue;
    const Op& op = plan_.op(bucket.pieces[i].piece.op);
    const Member from{op.hands_on() ? Side::kTarget : Side::kSource, op.source_rank};
    const auto [place, fresh] = groups.emplace(from, flight.groups.size());
    if (fresh) {
      flight.groups.emplace_back();
      flight.groups.back().from = from;
      flight.groups.back().handed_on = op.hands_on();
    }
    flight.groups[place->second].pieces.push_back(i);
  }
  for (Group& group : flight.groups) {
    if (job_.port->giver(job_.id.epoch, group.from) != nullptr) continue;  // copied on arrival
    if (!group.handed_on) {
      TROUPE_TRY_VOID(ask(flight, group, group.pieces.size()));
      continue;
    }
    const OpPiece& last = bucket.pieces[group.pieces.back()].piece;
    const std::int64_t end = plan_.begin_at_sender(last.op) + last.first + last.count;
    if (senders_[group.from.rank].known >= end)
      TROUPE_TRY_VOID(ask(flight, group, group.pieces.size()));
  }
  return {};
}

result<void> Receiver::arrive(Flight& flight) {
  TROUPE_TRY_VOID(stopped());
  for (const BucketPiece& one : flight.bucket->pieces) {
    if (one.route == Route::kLocal) TROUPE_TRY_VOID(take_local(one));
  }
  for (Group& group : flight.groups) {
    TROUPE_TRY_VOID(gather_group(flight, group));
    if (is_delta(group)) TROUPE_TRY_VOID(ask_deltas(flight, group));
    for (const std::size_t index : group.pieces) {
      TROUPE_TRY_VOID(unpack(flight, index));
      count(flight, index);
    }
  }
  job_.hand_on->delivered(*flight.bucket, flight.claims->memory);
  for (const Group& group : flight.groups) {
    // So that it can let go of what we have.
    if (group.handed_on) TROUPE_TRY_VOID(poll(group.from));
  }
  return {};
}

/// Waits for a group; one that is handed on is asked for as it gets ready.
result<void> Receiver::gather_group(Flight& flight, Group& group) {
  const std::shared_ptr<PieceGiver> here = job_.port->giver(job_.id.epoch, group.from);
  Duration nap = kPollFirst;
  for (;;) {
    if (group.answer.valid()) TROUPE_TRY_VOID(wait(group.answer, group, *flight.bucket));
    if (group.asked == group.pieces.size()) return {};
    std::size_t ready = group.pieces.size() - group.asked;
    if (group.handed_on) {
      const Sender& sender = senders_[group.from.rank];
      ready = 0;
      while (group.asked + ready < group.pieces.size()) {
        const OpPiece& next = flight.bucket->pieces[group.pieces[group.asked + ready]].piece;
        if (plan_.begin_at_sender(next.op) + next.first + next.count > sender.known) break;
        ++ready;
      }
    }
    if (ready == 0) {
      TROUPE_TRY_VOID(pause(nap));
      nap = std::min(nap * 3 / 2, kPollMost);
      TROUPE_TRY_VOID(poll(group.from));
      continue;
    }
    nap = kPollFirst;
    if (here != nullptr)
      TROUPE_TRY_VOID(copy_from_here(flight, group, *here, ready));
    else
      TROUPE_TRY_VOID(ask(flight, group, ready));
  }
}

result<void> Receiver::ask(Flight& flight, Group& group, std::size_t count) {
  std::vector<LanePart> parts;
  const std::span<const std::size_t> pieces = std::span(group.pieces).subspan(group.asked, count);
  for (const std::size_t index : pieces) {
    const OpPiece& piece = flight.bucket->pieces[index].piece;
    if (is_delta(group))
      parts.push_back({ColumnKind::kDeltaSize, piece, bytes_of(flight.claims->delta_bytes[index])});
    else
      parts.push_back({ColumnKind::kBytes, piece, place_of(flight, index)});
  }
  if (job_.checks.chunk_crc || job_.checks.tensor_sums) {
    const ColumnKind kind = !job_.checks.tensor_sums ? ColumnKind::kCrc
                            : job_.checks.chunk_crc  ? ColumnKind::kSums
                                                     : ColumnKind::kTensorSum;
    for (const std::size_t index : pieces)
      parts.push_back(
          {kind, flight.bucket->pieces[index].piece, bytes_of(flight.claims->sums[index])});
  }
  if (job_.lane == nullptr)
    return fail(ErrorCode::kNotFound,
                "target rank {}: {} is not in this process, and there is no "
                "transport",
                job_.rank, member_text(group.from));
  group.asked += count;
  group.answer =
      job_.lane->fetch(job_.id.epoch, address_of(group.from), parts, flight.claims, job_.deadline);
  return {};
}

result<void> Receiver::ask_deltas(Flight& flight, Group& group) {
  std::vector<LanePart> parts;
  for (const std::size_t index : group.pieces) {
    const OpPiece& piece = flight.bucket->pieces[index].piece;
    const std::int64_t bytes = flight.claims->delta_bytes[index];
    const std::span<std::byte> place = place_of(flight, index);
    if (bytes > static_cast<std::int64_t>(place.size()) || bytes < -1)
      return fail(ErrorCode::kCorrupt, "target rank {}: {} from {}: delta of {} bytes for {}",
                  job_.rank, piece_text(piece), member_text(group.from), bytes, place.size());
    if (bytes == -1) parts.push_back({ColumnKind::kBytes, piece, place});
    if (bytes > 0)
      parts.push_back({ColumnKind::kDelta, piece, place.first(static_cast<std::size_t>(bytes))});
  }
  if (parts.empty()) return {};
  group.answer =
      job_.lane->fetch(job_.id.epoch, address_of(group.from), parts, flight.claims, job_.deadline);
  return wait(group.answer, group, *flight.bucket);
}

/// From another rank of this process, which hands on.
result<void> Receiver::copy_from_here(Flight& flight, Group& group, PieceGiver& giver,
                                      std::size_t count) {
  for (const std::size_t index : std::span(group.pieces).subspan(group.asked, count)) {
    const OpPiece& piece = flight.bucket->pieces[index].piece;
    TROUPE_TRY(const runtime::Pinned memory, giver.read(piece));
    std::span<std::byte> into = place_of(flight, index);
    for (const auto& span : memory.spans) {
      std::copy(span.begin(), span.end(), into.begin());
      into = into.subspan(span.size());
    }
    flight.claims->sums[index] = sums_of(plan_, piece, memory.spans, job_.checks);
  }
  group.asked += count;
  return {};
}

/// Tells `from` what we have of it, and learns how far it is.
result<void> Receiver::poll(const Member& from) {
  TROUPE_TRY_VOID(stopped());
  Sender& sender = senders_[from.rank];
  const std::int64_t taken = sender.next == sender.ops.size()
                                 ? plan_.receive_order(from.rank).total()
                                 : plan_.begin_at_sender(sender.ops[sender.next]) + sender.done;
  if (const auto here = job_.port->giver(job_.id.epoch, from)) {
    sender.known = std::max(sender.known, here->progress(job_.rank, taken));
    return {};
  }
  if (job_.lane == nullptr)
    return fail(ErrorCode::kNotFound,
                "target rank {}: {} is not in this process, and there is no "
                "transport",
                job_.rank, member_text(from));
  const auto known = std::make_shared<std::int64_t>(0);
  const std::array<LanePart, 1> part{
      LanePart{.kind = ColumnKind::kProgress,
               .piece = {.op = progress_op(from.rank, job_.rank), .first = taken, .count = 1},
               .into = bytes_of(*known)}};
  Group group;
  group.from = from;
  group.answer = job_.lane->fetch(job_.id.epoch, address_of(from), part, known, job_.deadline);
  TROUPE_TRY_VOID(wait(group.answer, group, Bucket()));
  sender.known = std::max(sender.known, *known);
  return {};
}

result<void> Receiver::wait(runtime::pending<void>& answer, const Group& group,
                            const Bucket& bucket) {
  while (!answer.ready()) {
    TROUPE_TRY_VOID(stopped());
    // The lane ends it at the deadline by itself, and knows more about why.
    runtime::block_on(*answer.shared(), Deadline::in(kLook));
  }
  result<void> outcome = answer.wait(job_.deadline);
  if (outcome) return outcome;
  const std::string what = group.pieces.empty()
                               ? std::string("progress")
                               : piece_text(bucket.pieces[group.pieces.front()].piece);
  const ErrorCode code = outcome.error().code;
  return fail(
      std::move(outcome).error().wrap(code, fmt::format("target rank {}: {} from {} did not come",
                                                        job_.rank, what, member_text(group.from))));
}

result<void> Receiver::pause(Duration span) const {
  if (job_.deadline.passed())
    return fail(ErrorCode::kDeadline, "target rank {}: the deadline passed while peers receive",
                job_.rank);
  std::this_thread::sleep_for(span);
  return stopped();
}

result<void> Receiver::stopped() const {
  if (job_.stop != nullptr && job_.stop->load())
    return fail(ErrorCode::kAborted, "target rank {}: the publication was aborted", job_.rank);
  return {};
}

void Receiver::announce(std::size_t next_bucket) {
  const std::vector<Bucket>& buckets = *job_.buckets;
  const auto layer_at = [&](const Bucket& bucket, bool last) {
    const BucketPiece& one = last ? bucket.pieces.back() : bucket.pieces.front();
    return plan_.tensor_of(plan_.op(one.piece.op)).layer;
  };
  const std::int32_t done = next_bucket == buckets.size()
                                ? layer_at(buckets.back(), true)
                                : layer_at(buckets[next_bucket], false) - 1;
  const std::int32_t first = layer_at(buckets.front(), false);
  for (std::int32_t layer = announced_ ? *announced_ + 1 : first; layer <= done; ++layer) {
    job_.sink->layer_ready(layer);
    announced_ = layer;
  }
}

const MemberAddress& Receiver::address_of(const Member& member) const {
  static const MemberAddress nowhere;
  const auto place = job_.members.find(member);
  return place == job_.members.end() ? nowhere : place->second;
}

}  // namespace troupe::reshard

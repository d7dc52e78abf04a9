#include "reshard/execution/receiver.hpp"

#include "reshard/execution/error_of.hpp"
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

/// What somebody says, or what is said of them, who has stopped because others did.
bool follows(ErrorCode code) {
  return code == ErrorCode::kDeadline || code == ErrorCode::kAborted ||
         code == ErrorCode::kNotFound;
}

}  // namespace

Receiver::Receiver(ReceiveJob job)
    : job_(std::move(job)),
      plan_(*job_.plan),
      proofs_({.plan = job_.plan.get(),
               .rank = job_.rank,
               .port = job_.port,
               .lane = job_.lane,
               .epoch = job_.id.epoch,
               .checks = job_.checks,
               .deadline = job_.deadline}) {
  flights_.resize(2);
}

result<ReceiveStatistics> Receiver::run() {
  result<ReceiveStatistics> outcome = receive();
  if (outcome || !follows(outcome.error().code)) return outcome;
  if (!waited_for_) waited_for_ = proofs_.failed_member();
  if (outcome.error().code != ErrorCode::kDeadline) return outcome;
  return fail(blame(std::move(outcome).error()));
}

Error Receiver::blame(Error error) {
  const auto late = [&](const Member& source, const std::string& what) {
    if (waited_for_ == source) return error;
    waited_for_ = source;
    return error_of(ErrorCode::kDeadline, "target rank {}: {} from {} did not come; {}", job_.rank,
                    what, member_text(source), error.message);
  };
  for (const Flight& flight : flights_) {
    for (const Group& group : flight.groups) {
      if (group.handed_on || !group.is_out()) continue;
      if (group.answer.ready() && !group.answer.shared()->error()) continue;
      return late(group.from, piece_text(flight.bucket->pieces[group.pieces[group.here]].piece));
    }
  }
  if (const std::optional<Member> source = proofs_.late_source()) return late(*source, "sums");
  return error;
}

result<ReceiveStatistics> Receiver::receive() {
  find_senders();
  const std::vector<Bucket>& buckets = *job_.buckets;
  for (const auto& [rank, sender] : senders_) {
    // Also tells those whom we do not need after all, since the weights are here.
    TROUPE_TRY_VOID(poll({Side::kTarget, rank}));
  }
  std::size_t departed = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (departed == i) TROUPE_TRY_VOID(depart(departed++));
    // Never waits for the memory of the next before this one is handed on: peers may need it.
    if (i + 1 < buckets.size() && can_depart(i + 1, Duration(0)))
      TROUPE_TRY_VOID(depart(departed++));
    TROUPE_TRY_VOID(arrive(flights_[i % 2]));
    announce(i + 1);
  }
  TROUPE_TRY_VOID(prove_all());
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

bool Receiver::can_depart(std::size_t index, Duration span) {
  if (index < 2) return true;
  return job_.hand_on->wait_taken((*job_.buckets)[index - 2].end, soon(span, job_.deadline));
}

/// Asks for what can be asked for already.
result<void> Receiver::depart(std::size_t index) {
  const Bucket& bucket = (*job_.buckets)[index];
  Flight& flight = flights_[index % 2];
  while (!can_depart(index, kLook)) {
    TROUPE_TRY_VOID(stopped());
    if (!job_.deadline.passed()) continue;
    const std::int32_t behind = job_.hand_on->last_taker();
    waited_for_ = Member{Side::kTarget, behind};
    return fail(ErrorCode::kDeadline, "target rank {}: target rank {} has not taken bucket {}",
                job_.rank, behind, index - 2);
  }
  flight = Flight();
  flight.bucket = &bucket;
  flight.end = bucket.begin;
  flight.here.assign(bucket.pieces.size(), false);
  flight.claims = std::make_shared<Claims>();
  flight.proofs.resize(bucket.pieces.size());
  flight.landing.resize(bucket.pieces.size());
  flight.claims->delta_bytes.assign(bucket.pieces.size(), -1);
  flight.claims->memory = job_.memory[index % 2];
  flight.claims->landing = job_.landing;
  std::map<Member, std::size_t> groups;
  for (std::size_t i = 0; i < bucket.pieces.size(); ++i) {
    flight.here[i] = bucket.pieces[i].route == Route::kLocal;
    if (flight.here[i]) continue;
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
    const std::size_t count = ready(flight, group);
    const bool elsewhere = job_.port->giver(job_.id.epoch, group.from) == nullptr;
    if (elsewhere && count > 0) TROUPE_TRY_VOID(ask(flight, group, count));
  }
  return {};
}

/// How many more pieces the group may ask for.
std::size_t Receiver::ready(const Flight& flight, const Group& group) const {
  const std::size_t left = group.pieces.size() - group.asked;
  if (!group.handed_on) return left;
  const std::int64_t known = senders_.at(group.from.rank).known;
  std::size_t count = 0;
  while (count < left) {
    const OpPiece& next = flight.bucket->pieces[group.pieces[group.asked + count]].piece;
    if (plan_.begin_at_sender(next.op) + next.first + next.count > known) break;
    ++count;
  }
  return count;
}

/// Pieces are unpacked, and with that handed on, in order and as they come: somebody whom we wait
/// for may wait for an earlier piece of the same bucket.
result<void> Receiver::arrive(Flight& flight) {
  Duration nap = kPollFirst;
  while (flight.unpacked < flight.bucket->pieces.size()) {
    TROUPE_TRY_VOID(stopped());
    bool moved = false;
    for (Group& group : flight.groups) {
      TROUPE_TRY(const bool some, look(flight, group));
      moved = moved || some;
    }
    TROUPE_TRY_VOID(proofs_.advance());
    TROUPE_TRY(const bool some, unpack_prefix(flight));
    if (moved || some)
      nap = kPollFirst;
    else
      TROUPE_TRY_VOID(linger(flight, nap));
  }
  return acknowledge(flight);
}

result<bool> Receiver::look(Flight& flight, Group& group) {
  bool moved = false;
  if (group.answer.valid() && group.answer.ready()) {
    TROUPE_TRY_VOID(outcome_of(group.answer, group, *flight.bucket));
    moved = true;
  }
  if (moved && !group.is_out() && is_delta(group) && !group.has_sizes) {
    group.has_sizes = true;
    TROUPE_TRY_VOID(ask_deltas(flight, group));
  }
  if (!group.is_out()) take_here(flight, group);
  if (group.is_out() || group.asked == group.pieces.size()) return moved;
  const std::size_t count = ready(flight, group);
  if (count == 0) return moved;
  if (const auto here = job_.port->giver(job_.id.epoch, group.from)) {
    TROUPE_TRY_VOID(copy_from_here(flight, group, *here, count));
    take_here(flight, group);
  } else {
    TROUPE_TRY_VOID(ask(flight, group, count));
  }
  return true;
}

void Receiver::take_here(Flight& flight, Group& group) const {
  for (; group.here < group.asked; ++group.here) {
    const std::size_t index = group.pieces[group.here];
    // Who hands on forgets what its takers have: not before its sum is known.
    if (group.handed_on && is_checked() && !proofs_.is_claimed(flight.proofs[index])) return;
    flight.here[index] = true;
  }
}

result<bool> Receiver::unpack_prefix(Flight& flight) {
  const std::vector<BucketPiece>& pieces = flight.bucket->pieces;
  bool some = false;
  for (; flight.unpacked < pieces.size() && flight.here[flight.unpacked]; ++flight.unpacked) {
    const BucketPiece& one = pieces[flight.unpacked];
    if (one.route == Route::kLocal) {
      TROUPE_TRY_VOID(take_local(one));
    } else {
      TROUPE_TRY_VOID(unpack(flight, flight.unpacked));
      count(flight, flight.unpacked);
    }
    job_.hand_on->delivered(one, flight.end, flight.claims->memory);
    flight.end += one.piece.count;
    some = true;
  }
  return some;
}

/// Nothing moves: waits for an answer, or asks those who hand on how far they are.
result<void> Receiver::linger(Flight& flight, Duration& nap) {
  const runtime::pending<void>* waiting = nullptr;
  const Group* stalled = nullptr;
  for (const Group& group : flight.groups) {
    if (group.answer.valid()) waiting = &group.answer;
    if (!group.is_out() && group.here < group.pieces.size()) stalled = &group;
  }
  if (job_.deadline.passed() && waiting == nullptr) {
    TROUPE_CHECK(stalled != nullptr, "target rank {}: waits for nobody", job_.rank);
    waited_for_ = stalled->from;
    return fail(ErrorCode::kDeadline, "target rank {}: {} is not received by {} yet", job_.rank,
                piece_text(flight.bucket->pieces[stalled->pieces[stalled->here]].piece),
                member_text(stalled->from));
  }
  const Duration most = stalled != nullptr || !senders_.empty() ? nap : kLook;
  if (waiting != nullptr)
    runtime::block_on(*waiting->shared(), Deadline::in(most));
  else
    std::this_thread::sleep_for(most);
  nap = std::min(nap * 3 / 2, kPollMost);
  for (const Group& group : flight.groups) {
    if (group.handed_on && !group.is_out() && group.asked < group.pieces.size())
      TROUPE_TRY_VOID(poll(group.from));
  }
  return acknowledge(flight);
}

result<void> Receiver::acknowledge(const Flight& flight) {
  for (const Group& group : flight.groups) {
    if (!group.handed_on) continue;
    const Sender& sender = senders_.at(group.from.rank);
    if (taken_of(sender, group.from.rank) != sender.told) TROUPE_TRY_VOID(poll(group.from));
  }
  return {};
}

result<void> Receiver::ask(Flight& flight, Group& group, std::size_t count) {
  if (job_.lane == nullptr)
    return fail(ErrorCode::kNotFound,
                "target rank {}: {} is not in this process, and there is no transport", job_.rank,
                member_text(group.from));
  std::vector<LanePart> parts;
  const std::span<const std::size_t> pieces = std::span(group.pieces).subspan(group.asked, count);
  for (const std::size_t index : pieces) {
    const OpPiece& piece = flight.bucket->pieces[index].piece;
    if (is_delta(group))
      parts.push_back({ColumnKind::kDeltaSize, piece, bytes_of(flight.claims->delta_bytes[index])});
    else
      parts.push_back({ColumnKind::kBytes, piece, place_of(flight, index)});
  }
  group.asked += count;
  const MemberAddress& from = address_of(group.from);
  std::shared_ptr<LandingSums> landing;
  if (job_.checks.tensor_sums && !job_.checks.chunk_crc && !job_.id.base) {
    landing = std::make_shared<LandingSums>(job_.plan);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const BucketPiece& one = flight.bucket->pieces[pieces[i]];
      if (one.route == Route::kInPlace) landing->add(one.piece, parts[i].into);
      flight.landing[pieces[i]] = landing;
    }
  }
  group.answer =
      job_.lane->fetch(job_.id.epoch, from, parts, flight.claims, job_.deadline, landing);
  if (!is_checked()) return {};
  for (const std::size_t index : pieces)
    flight.proofs[index] = proofs_.expect(from, flight.bucket->pieces[index].piece);
  proofs_.ask(group.from);
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
    if (!is_checked()) continue;
    flight.proofs[index] = proofs_.expect({.member = group.from, .address = {}}, piece);
    TROUPE_TRY_VOID(
        proofs_.claim(flight.proofs[index], sums_of(plan_, piece, memory.spans, job_.checks)));
  }
  group.asked += count;
  return {};
}

std::int64_t Receiver::taken_of(const Sender& sender, std::int32_t rank) const {
  if (sender.next == sender.ops.size()) return plan_.receive_order(rank).total();
  return plan_.begin_at_sender(sender.ops[sender.next]) + sender.done;
}

/// Tells `from` what we have of it, and learns how far it is.
result<void> Receiver::poll(const Member& from) {
  TROUPE_TRY_VOID(stopped());
  Sender& sender = senders_[from.rank];
  const std::int64_t taken = taken_of(sender, from.rank);
  sender.told = taken;
  if (const auto here = job_.port->giver(job_.id.epoch, from)) {
    sender.known = std::max(sender.known, here->progress(job_.rank, taken));
    return {};
  }
  if (job_.lane == nullptr)
    return fail(ErrorCode::kNotFound,
                "target rank {}: {} is not in this process, and there is no transport", job_.rank,
                member_text(from));
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
  return outcome_of(answer, group, bucket);
}

result<void> Receiver::outcome_of(runtime::pending<void>& answer, const Group& group,
                                  const Bucket& bucket) {
  result<void> outcome = answer.wait(job_.deadline);
  if (outcome) return outcome;
  const std::string what = group.pieces.empty()
                               ? std::string("progress")
                               : piece_text(bucket.pieces[group.pieces[group.here]].piece);
  const ErrorCode code = outcome.error().code;
  if (follows(code)) waited_for_ = group.from;
  return fail(
      std::move(outcome).error().wrap(code, fmt::format("target rank {}: {} from {} did not come",
                                                        job_.rank, what, member_text(group.from))));
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

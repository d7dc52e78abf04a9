#include "runtime/comm/group_gloo.hpp"

#include "runtime/base/index.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/rng.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace troupe::runtime {
namespace {

/// How long a rank waits for word from rank 0 before it goes by what it has seen itself.
constexpr Duration kWordWait = std::chrono::milliseconds(50);
/// The same where payload's connection to a peer closed, which is not yet that peer's death.
constexpr Duration kCauseWait = std::chrono::seconds(1);
constexpr Duration kFlushWait = std::chrono::seconds(5);
/// The same after a failure, when some peer may be stopped.
constexpr Duration kLastWordWait = std::chrono::milliseconds(200);

using Kind = GroupFrame::Kind;

}  // namespace

GlooSession::~GlooSession() {
  if (!links_) return;
  // What was said last, e.g. that a rank leaves, still arrives.
  links_->flush(Deadline::in(broken_.load() ? kLastWordWait : kFlushWait));
  links_->stop();
}

std::vector<std::shared_ptr<GlooGroup>> GlooSession::groups() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<GlooGroup>> alive;
  for (const auto& [id, group] : groups_) {
    if (auto held = group.lock()) alive.push_back(std::move(held));
  }
  return alive;
}

void GlooSession::add(std::uint64_t id, const std::shared_ptr<GlooGroup>& group) {
  std::vector<std::pair<int, GroupFrame>> early;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [peer, frame] : orphans_) {
      if (frame.group == id) early.emplace_back(peer, std::move(frame));
    }
    std::erase_if(orphans_, [id](const auto& orphan) { return orphan.second.group == id; });
  }
  // In order: what comes meanwhile waits for the map, which is filled under the same lock.
  for (auto& [peer, frame] : early) group->on_frame(peer, std::move(frame));
  const std::lock_guard lock(mutex_);
  for (auto& [peer, frame] : orphans_) {
    if (frame.group == id) group->on_frame(peer, std::move(frame));
  }
  std::erase_if(orphans_, [id](const auto& orphan) { return orphan.second.group == id; });
  groups_[id] = group;
}

void GlooSession::remove(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  groups_.erase(id);
}

void GlooSession::send(int peer, GroupFrame frame) {
  frame.received = links_->received(peer);
  links_->send(peer, encode_group_frame(frame));
}

void GlooSession::break_off(const Error& cause) {
  if (links_ && !broken_.exchange(true)) links_->break_off();
  for (const auto& group : groups()) group->fail_all(cause);
}

void GlooSession::on_frame(int peer, std::span<const std::byte> bytes) {
  auto frame = decode_group_frame(bytes);
  if (!frame) {
    log::error("collective: from peer {}: {}", peer, frame.error().message);
    break_off(frame.error());
    return;
  }
  links_->acknowledge(peer, frame->received);
  std::shared_ptr<GlooGroup> group;
  {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(frame->group);
    if (found != groups_.end()) group = found->second.lock();
    if (found == groups_.end()) {
      // A peer that is ahead with a split; or behind, about a group that is no more.
      orphans_.emplace_back(peer, std::move(*frame));
      if (orphans_.size() > kOrphansMax) orphans_.pop_front();
    }
  }
  if (group) group->on_frame(peer, std::move(*frame));
}

void GlooSession::on_closed(int peer, const std::string& why) {
  for (const auto& group : groups()) {
    if (group->has_peer(peer)) group->on_closed(peer, why);
  }
}

GlooGroup::GlooGroup(Place place, GlooSession& session)
    : place_(std::move(place)),
      session_(session),
      departed_(place_.labels.ranks.size(), 0),
      closed_at_(place_.labels.ranks.size()),
      unread_(place_.labels.ranks.size(), 0) {
  if (place_.rank == 0) meeting_.emplace(place_.labels);
}

std::optional<Error> GlooGroup::present_failure() const { return failure_ ? failure_ : departure_; }

std::optional<Error> GlooGroup::failure() const {
  const std::lock_guard lock(mutex_);
  return present_failure();
}

bool GlooGroup::has_peer(int peer) const {
  return std::find(place_.peers.begin(), place_.peers.end(), peer) != place_.peers.end();
}

bool GlooGroup::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return departed_[index(rank)] != 0;
}

void GlooGroup::send_to(int rank, GroupFrame frame) {
  frame.group = place_.id;
  session_.send(place_.peers[index(rank)], std::move(frame));
}

/// Called with meeting_mutex_ held, so that all ranks hear verdicts in one order.
void GlooGroup::tell(std::optional<Verdict> verdict) {
  if (!verdict) return;
  GroupFrame frame{.operation = verdict->operation, .rank = verdict->rank, .call = {}};
  frame.kind = verdict->kind == Verdict::Kind::kGo       ? Kind::kGo
               : verdict->kind == Verdict::Kind::kFailed ? Kind::kFailed
                                                         : Kind::kGone;
  frame.error = verdict->error;
  for (int rank = 1; rank < size(); ++rank) send_to(rank, frame);
  apply(*verdict);
}

void GlooGroup::apply(const Verdict& verdict) {
  switch (verdict.kind) {
    case Verdict::Kind::kGo: {
      const std::lock_guard lock(mutex_);
      begun_ = std::max(begun_, verdict.operation);
      break;
    }
    case Verdict::Kind::kFailed:
      fail_here(*verdict.error);
      return;
    case Verdict::Kind::kGone: {
      const std::lock_guard lock(mutex_);
      departed_[index(verdict.rank)] = 1;
      if (!departure_) departure_ = labels().gone(verdict.rank);
      break;
    }
  }
  changed_.notify_all();
}

void GlooGroup::fail_here(Error error) {
  std::vector<std::weak_ptr<GlooGroup>> children;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    if (active_) active_->stop();
    children = children_;
  }
  changed_.notify_all();
  for (const auto& child : children) {
    if (auto group = child.lock())
      group->fail_here(group->labels().inherited(error, labels().name));
  }
}

void GlooGroup::fail_all(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
  }
  send_failure(error);
  fail_here(error);
}

void GlooGroup::send_failure(const Error& error) {
  if (!meeting_) return send_to(0, {.kind = Kind::kFail, .call = {}, .error = error});
  const std::lock_guard lock(meeting_mutex_);
  tell(meeting_->fail(error));
}

Error GlooGroup::request_failure(Error error) {
  send_failure(error);
  if (!meeting_) {
    Lock lock(mutex_);
    // Rank 0's word, so that all ranks keep the same first cause; its silence changes nothing.
    changed_.wait_for(lock, kWordWait, [this] { return failure_.has_value(); });
    lock.unlock();
    fail_here(std::move(error));
  }
  const std::lock_guard lock(mutex_);
  return failure_ ? *failure_ : *departure_;
}

result<void> GlooGroup::arrive(const PostedCall& call, Deadline deadline) {
  if (auto failed = failure()) return fail(std::move(*failed));
  if (call.bad_argument) {
    return fail(request_failure(
        labels().error(ErrorCode::kInvalidArgument, rank(),
                       fmt::format("{}: {}", labels().describe(rank()), *call.bad_argument))));
  }
  std::uint64_t operation = 0;
  {
    const std::lock_guard lock(mutex_);
    operation = ++called_;
  }
  if (meeting_) {
    const std::lock_guard lock(meeting_mutex_);
    tell(meeting_->arrive(rank(), operation, call));
  } else {
    send_to(0, {.kind = Kind::kArrive, .operation = operation, .call = call});
  }
  TROUPE_TRY(const bool began, await_go(operation, deadline));
  if (began) return {};
  if (meeting_) {
    const std::lock_guard lock(meeting_mutex_);
    tell(meeting_->withdraw(rank(), operation));
  } else {
    send_to(0, {.kind = Kind::kWithdraw, .operation = operation, .call = {}});
  }
  TROUPE_TRY(const bool answered, await_go(operation, Deadline::in(place_.answer_wait)));
  if (answered) return {};
  const Error silent = labels().error(
      ErrorCode::kDeadline, 0,
      fmt::format("{}, operation {}: deadline passed, missing {}, which does not answer",
                  call.describe(), operation, labels().describe(0)));
  abandon(operation, silent);
  fail_here(silent);
  return fail(*failure());
}

/// True once the operation has begun on this rank, false when the deadline passes before.
result<bool> GlooGroup::await_go(std::uint64_t operation, Deadline deadline) {
  std::optional<Error> failed;
  bool rank0_left = false;
  {
    Lock lock(mutex_);
    changed_.wait_until(lock, deadline.at,
                        [&] { return begun_ >= operation || present_failure(); });
    // Having met comes first: an operation that began does so on every rank, but for those that
    // rank 0 died before telling.
    const bool began = begun_ >= operation;
    if (began && !(abandoned_ && abandoned_->first <= operation)) return true;
    failed = began ? abandoned_->second : present_failure();
    rank0_left = !began && !failure_ && departed_[0] != 0;
  }
  if (!failed) return false;
  if (rank0_left) abandon(operation, *failed);
  return fail(std::move(*failed));
}

void GlooGroup::abandon(std::uint64_t operation, const Error& error) {
  for (int peer = 1; peer < size(); ++peer) {
    if (peer != rank())
      send_to(peer, {.kind = Kind::kAbandon, .operation = operation, .call = {}, .error = error});
  }
}

/// A peer that waits in the payload of this operation, or a later one, would wait for ever.
void GlooGroup::on_abandoned(std::uint64_t operation, Error error) {
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_ && abandoned_->first <= operation) return;
    abandoned_.emplace(operation, error);
    if (begun_ < operation || called_ < operation) return;
  }
  fail_here(std::move(error));
}

std::uint64_t GlooGroup::slot(std::uint64_t operation, std::uint64_t phase) const {
  // Apart from the slots of frames, which are small.
  return mix_seed(place_.id, mix_seed(operation, phase)) | (std::uint64_t{1} << 63);
}

TransferPart GlooGroup::outgoing(int peer, std::uint64_t phase, const void* data,
                                 std::size_t bytes) const {
  return {.peer = place_.peers[index(peer)],
          .slot = slot(called_, phase),
          .outgoing = true,
          .data = const_cast<void*>(data),
          .bytes = bytes};
}

TransferPart GlooGroup::incoming(int peer, std::uint64_t phase, void* data,
                                 std::size_t bytes) const {
  return {.peer = place_.peers[index(peer)],
          .slot = slot(called_, phase),
          .outgoing = false,
          .data = data,
          .bytes = bytes};
}

/// What to report for a transfer that did not get through; rank 0's word comes first.
Error GlooGroup::end_error(const TransferEnd& end) {
  {
    Lock lock(mutex_);
    const Duration wait = end.kind == TransferEnd::Kind::kLost ? kCauseWait : kWordWait;
    changed_.wait_for(lock, wait, [this] { return present_failure().has_value(); });
    if (auto failed = present_failure()) return *failed;
  }
  const auto found = std::find(place_.peers.begin(), place_.peers.end(), end.peer);
  const int peer = static_cast<int>(found - place_.peers.begin());
  if (end.kind == TransferEnd::Kind::kLate) {
    return labels().error(ErrorCode::kDeadline, peer,
                          fmt::format("deadline passed, payload to or from {} stands still",
                                      labels().describe(peer)));
  }
  return labels().error(
      ErrorCode::kRankDead, peer,
      fmt::format("{} is gone: its connection broke: {}", labels().describe(peer), end.why));
}

result<void> GlooGroup::wait_for(const std::shared_ptr<Transfer>& transfer, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    active_ = transfer;
    if (failure_) transfer->stop();
  }
  const TransferEnd end = transfer->wait(deadline);
  {
    const std::lock_guard lock(mutex_);
    active_ = nullptr;
  }
  if (end.kind == TransferEnd::Kind::kDone) return {};
  const Error error = request_failure(end_error(end));
  // Bytes may be half through: nothing more can be told apart on these connections, and memory
  // that peers may write to is about to go.
  session_.break_off(error);
  return fail(error);
}

result<void> GlooGroup::transfer(std::vector<TransferPart> parts, Deadline deadline) {
  std::erase_if(parts, [](const TransferPart& part) { return part.bytes == 0; });
  if (parts.empty()) return {};
  TransferEnd lost;
  const auto started = session_.links().start_transfer(std::move(parts), lost);
  if (started) return wait_for(started, std::max(deadline, Deadline::in(place_.stall_wait)));
  const Error error = request_failure(end_error(lost));
  session_.break_off(error);
  return fail(error);
}

result<std::shared_ptr<GlooGroup>> GlooGroup::split(int colour, int key, Deadline deadline) {
  struct Wish {
    std::int32_t colour;
    std::int32_t key;
  };
  std::vector<Wish> wishes(index(size()));
  wishes[index(rank())] = {colour, key};
  std::vector<TransferPart> parts;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    parts.push_back(outgoing(peer, 0, &wishes[index(rank())], sizeof(Wish)));
    parts.push_back(incoming(peer, 0, &wishes[index(peer)], sizeof(Wish)));
  }
  TROUPE_TRY_VOID(transfer(std::move(parts), deadline));
  if (colour < 0) return std::shared_ptr<GlooGroup>{};
  std::vector<int> members;
  for (int peer = 0; peer < size(); ++peer) {
    if (wishes[index(peer)].colour == colour) members.push_back(peer);
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return wishes[index(a)].key < wishes[index(b)].key; });
  Place place = place_;
  place.labels = {.name = fmt::format("{}/{}", labels().name, colour), .ranks = {}};
  place.peers.clear();
  for (std::size_t i = 0; i < members.size(); ++i) {
    place.labels.ranks.push_back(labels().ranks[index(members[i])]);
    place.peers.push_back(place_.peers[index(members[i])]);
    if (members[i] == rank()) place.rank = static_cast<int>(i);
  }
  place.id = mix_seed(mix_seed(place_.id, called_), static_cast<std::uint64_t>(colour));
  auto group = std::make_shared<GlooGroup>(std::move(place), session_);
  add_child(group);
  session_.add(group->place().id, group);
  return group;
}

void GlooGroup::add_child(const std::shared_ptr<GlooGroup>& child) {
  std::optional<Error> failed;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(children_, [](const auto& old) { return old.expired(); });
    children_.push_back(child);
    failed = failure_;
  }
  if (failed) child->fail_here(child->labels().inherited(*failed, labels().name));
}

void GlooGroup::leave() {
  // A rank that leaves because of a failure, perhaps one that only reached it, is not the cause.
  std::optional<Error> failed;
  {
    const std::lock_guard lock(mutex_);
    if (left_) return;
    left_ = true;
    failed = failure_;
  }
  if (meeting_) {
    const std::lock_guard lock(meeting_mutex_);
    if (failed) tell(meeting_->fail(std::move(*failed)));
    tell(meeting_->depart(0));
  } else {
    if (failed) send_to(0, {.kind = Kind::kFail, .call = {}, .error = std::move(*failed)});
    send_to(0, {.kind = Kind::kDepart, .call = {}});
  }
  const Deadline flushed = Deadline::in(kFlushWait);
  // Payload of messages, to peers and unread ones here, gets through before its memory goes.
  std::map<std::pair<int, std::uint64_t>, Sent> sent;
  std::map<std::pair<int, int>, std::deque<Message>> unread;
  {
    const std::lock_guard lock(mutex_);
    sent.swap(sent_);
    unread.swap(mailbox_);
  }
  bool through = true;
  const auto finish = [&](const std::shared_ptr<Transfer>& transfer) {
    if (transfer) through = through && transfer->wait(flushed).kind == TransferEnd::Kind::kDone;
  };
  for (const auto& [where, one] : sent) finish(one.transfer);
  for (const auto& [where, queue] : unread) {
    for (const Message& message : queue) finish(message.transfer);
  }
  session_.remove(place_.id);
  if (!through) session_.break_off(labels().gone(rank()));
}

void GlooGroup::on_closed(int peer, const std::string& /*why*/) {
  const auto found = std::find(place_.peers.begin(), place_.peers.end(), peer);
  const int gone = static_cast<int>(found - place_.peers.begin());
  if (meeting_) {
    const std::lock_guard lock(meeting_mutex_);
    tell(meeting_->depart(gone));
    return;
  }
  if (gone == 0) return apply({.kind = Verdict::Kind::kGone, .rank = 0});
  {
    // For messages only, and if rank 0 says nothing: whether an operation began is its business.
    const std::lock_guard lock(mutex_);
    closed_at_[index(gone)] = std::chrono::steady_clock::now();
  }
  changed_.notify_all();
}

void GlooGroup::on_frame(int peer, GroupFrame frame) {
  const auto found = std::find(place_.peers.begin(), place_.peers.end(), peer);
  if (found == place_.peers.end()) return;
  const int from = static_cast<int>(found - place_.peers.begin());
  if (meeting_ && from != 0) {
    const std::lock_guard lock(meeting_mutex_);
    if (frame.kind == Kind::kArrive)
      return tell(meeting_->arrive(from, frame.operation, std::move(frame.call)));
    if (frame.kind == Kind::kWithdraw) return tell(meeting_->withdraw(from, frame.operation));
    if (frame.kind == Kind::kFail && frame.error)
      return tell(meeting_->fail(std::move(*frame.error)));
    if (frame.kind == Kind::kDepart) return tell(meeting_->depart(from));
  }
  if (!meeting_ && from == 0) {
    if (frame.kind == Kind::kGo)
      return apply({.kind = Verdict::Kind::kGo, .operation = frame.operation});
    if (frame.kind == Kind::kFailed && frame.error)
      return apply({.kind = Verdict::Kind::kFailed, .error = std::move(frame.error)});
    if (frame.kind == Kind::kGone && frame.rank >= 0 && frame.rank < size())
      return apply({.kind = Verdict::Kind::kGone, .rank = frame.rank});
  }
  if (frame.kind == Kind::kAbandon && frame.error)
    return on_abandoned(frame.operation, std::move(*frame.error));
  if (frame.kind == Kind::kMessage) return put_message(from, std::move(frame));
  if (frame.kind == Kind::kTaken) {
    {
      const std::lock_guard lock(mutex_);
      const auto sent = sent_.find({from, frame.id});
      if (sent != sent_.end()) sent_.erase(sent);
      unread_[index(from)] -= std::min<std::size_t>(unread_[index(from)], frame.call.count);
    }
    changed_.notify_all();
  }
}

}  // namespace troupe::runtime

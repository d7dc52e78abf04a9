// Messages between two ranks of a group between processes. Small ones travel in the frame that
// announces them; bigger ones follow it in a transfer, into memory that the receiver makes when it
// hears of them. The sender counts what each receiver has not read and waits when that is too much.

#include "runtime/base/index.hpp"
#include "runtime/base/rng.hpp"
#include "runtime/comm/group_gloo.hpp"

#include <algorithm>
#include <cstring>

namespace troupe::runtime {
namespace {

constexpr std::size_t kMessageBytesMax = std::size_t{1} << 36;

std::uint64_t message_slot(std::uint64_t group, int from, int to, std::uint64_t id) {
  const auto way = (static_cast<std::uint64_t>(from) << 32) | static_cast<std::uint64_t>(to);
  return mix_seed(mix_seed(group, ~way), id) | (std::uint64_t{1} << 63);
}

/// A peer whose connection is closed counts as gone once rank 0 has had this long to say why.
constexpr Duration kWordOfLossWait = std::chrono::seconds(1);

}  // namespace

/// Waits until `ready`, a failure, or the peer is gone; false at the deadline.
bool GlooGroup::wait_on_peer(Lock& lock, int peer, Deadline deadline,
                             const std::function<bool()>& ready) {
  const auto over = [&] { return failure_ || departed_[index(peer)] != 0 || ready(); };
  while (!over()) {
    const auto& closed = closed_at_[index(peer)];
    if (closed &&
        (departed_[0] != 0 || std::chrono::steady_clock::now() >= *closed + kWordOfLossWait)) {
      departed_[index(peer)] = 1;
      return true;
    }
    if (deadline.passed()) return false;
    changed_.wait_until(lock,
                        closed ? std::min(deadline.at, *closed + kWordOfLossWait) : deadline.at);
  }
  return true;
}

result<void> GlooGroup::send(ConstBuffer data, int peer, int tag, Deadline deadline) {
  if (peer < 0 || peer >= size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: send to rank {}: group has {} ranks",
                labels().name, peer, size());
  }
  std::vector<std::byte> bytes(data.bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), data.data, bytes.size());
  GroupFrame frame{.kind = GroupFrame::Kind::kMessage, .tag = tag, .call = {}};
  frame.call.type = data.type;
  frame.call.count = data.count;
  {
    Lock lock(mutex_);
    std::size_t& unread = unread_[index(peer)];
    const auto has_room = [&] {
      return unread == 0 || unread + bytes.size() <= place_.mailbox_bytes;
    };
    const auto gone = [&] { return departed_[index(peer)] != 0; };
    const bool woken =
        changed_.wait_until(lock, deadline.at, [&] { return failure_ || gone() || has_room(); });
    if (failure_) return fail(*failure_);
    if (gone()) return fail(labels().gone(peer));
    if (!woken) {
      return fail(labels().error(
          ErrorCode::kDeadline, peer,
          fmt::format("send of {} bytes, tag {}, from {} to {}: deadline passed, {} unread bytes "
                      "of {} in its mailbox",
                      bytes.size(), tag, labels().describe(rank()), labels().describe(peer), unread,
                      place_.mailbox_bytes)));
    }
    unread += bytes.size();
    frame.id = ++messages_;
  }
  if (peer == rank()) {
    frame.bytes = std::move(bytes);
    put_message(peer, std::move(frame));
    return {};
  }
  if (bytes.size() <= kInlineBytesMax) {
    frame.bytes = std::move(bytes);
    send_to(peer, std::move(frame));
    return {};
  }
  Sent sent{std::move(bytes), nullptr};
  TransferEnd lost;
  sent.transfer =
      session_.links().start_transfer({{.peer = place_.peers[index(peer)],
                                        .slot = message_slot(place_.id, rank(), peer, frame.id),
                                        .outgoing = true,
                                        .data = sent.bytes.data(),
                                        .bytes = sent.bytes.size()}},
                                      lost);
  if (!sent.transfer) return fail(end_error(lost));
  {
    const std::lock_guard lock(mutex_);
    sent_.emplace(std::pair(peer, frame.id), std::move(sent));
  }
  send_to(peer, std::move(frame));
  return {};
}

/// On the session's thread, or the sender's own when it sends to itself.
void GlooGroup::put_message(int from, GroupFrame frame) {
  Message message{.id = frame.id,
                  .type = frame.call.type,
                  .count = frame.call.count,
                  .bytes = std::move(frame.bytes),
                  .transfer = nullptr};
  if (message.count > kMessageBytesMax / element_bytes(message.type)) {
    fail_here(
        labels().error(ErrorCode::kCorrupt, from,
                       fmt::format("{} announces a message of {} × {}", labels().describe(from),
                                   element_type_name(message.type), message.count)));
    return;
  }
  const std::size_t size_wanted = message.count * element_bytes(message.type);
  if (message.bytes.size() != size_wanted) {
    message.bytes.resize(size_wanted);
    TransferEnd lost;
    message.transfer =
        session_.links().start_transfer({{.peer = place_.peers[index(from)],
                                          .slot = message_slot(place_.id, from, rank(), frame.id),
                                          .outgoing = false,
                                          .data = message.bytes.data(),
                                          .bytes = message.bytes.size()}},
                                        lost);
    if (!message.transfer) return;  // the peer is gone, and is told of as gone
  }
  {
    const std::lock_guard lock(mutex_);
    mailbox_[{from, frame.tag}].push_back(std::move(message));
  }
  changed_.notify_all();
}

result<void> GlooGroup::receive(Buffer data, int peer, int tag, Deadline deadline) {
  if (peer < 0 || peer >= size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: recv from rank {}: group has {} ranks",
                labels().name, peer, size());
  }
  Message message;
  {
    Lock lock(mutex_);
    const auto has_message = [&] { return mailbox_.contains({peer, tag}); };
    const auto gone = [&] { return departed_[index(peer)] != 0; };
    wait_on_peer(lock, peer, deadline, has_message);
    if (failure_) return fail(*failure_);
    // A rank that sent and then left in good order is still heard.
    if (!has_message()) {
      if (gone()) return fail(labels().gone(peer));
      return fail(labels().error(
          ErrorCode::kDeadline, peer,
          fmt::format("recv of {} × {}, tag {}: deadline passed, {} sent nothing to {}",
                      element_type_name(data.type), data.count, tag, labels().describe(peer),
                      labels().describe(rank()))));
    }
    const auto queue = mailbox_.find({peer, tag});
    message = std::move(queue->second.front());
    queue->second.pop_front();
    if (queue->second.empty()) mailbox_.erase(queue);
  }
  return take(peer, tag, std::move(message), data, deadline);
}

result<void> GlooGroup::take(int peer, int tag, Message message, Buffer data, Deadline deadline) {
  if (message.transfer)
    TROUPE_TRY_VOID(
        wait_for(message.transfer, std::max(deadline, Deadline::in(place_.stall_wait))));
  message.transfer = nullptr;
  if (peer == rank()) {
    const std::lock_guard lock(mutex_);
    unread_[index(peer)] -= std::min(unread_[index(peer)], message.bytes.size());
  } else {
    GroupFrame taken{.kind = GroupFrame::Kind::kTaken, .id = message.id, .call = {}};
    taken.call.count = message.bytes.size();
    send_to(peer, std::move(taken));
  }
  if (message.type != data.type || message.count != data.count) {
    return fail(request_failure(labels().error(
        ErrorCode::kConflict, peer,
        fmt::format("tag {}: {} sent {} × {} but {} receives {} × {}", tag, labels().describe(peer),
                    element_type_name(message.type), message.count, labels().describe(rank()),
                    element_type_name(data.type), data.count))));
  }
  if (!message.bytes.empty()) std::memcpy(data.data, message.bytes.data(), message.bytes.size());
  return {};
}

}  // namespace troupe::runtime

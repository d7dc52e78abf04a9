// Point-to-point messages of an in-process group: one bounded mailbox per receiver.

#include "runtime/comm/local_group.hpp"

#include <cstring>

namespace troupe::runtime {

result<void> LocalGroup::send(int rank, ConstBuffer data, int peer, int tag, Deadline deadline) {
  if (peer < 0 || peer >= size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: send to rank {}: group has {} ranks",
                labels_.name, peer, size());
  }
  Message message{data.type, data.count, {}};
  message.bytes.resize(data.bytes());
  if (data.bytes() > 0) std::memcpy(message.bytes.data(), data.data, data.bytes());

  Lock lock(mutex_);
  Mailbox& mailbox = *mailboxes_[static_cast<std::size_t>(peer)];
  const auto has_room = [&] {
    return mailbox.bytes == 0 || mailbox.bytes + data.bytes() <= mailbox_bytes_;
  };
  const auto gone = [&] { return departed_[static_cast<std::size_t>(peer)] != 0; };
  const bool woken = mailbox.changed.wait_until(lock, deadline.at,
                                                [&] { return failure_ || gone() || has_room(); });
  if (failure_) return fail(*failure_);
  if (gone()) return fail(labels_.gone(peer));
  if (!woken) {
    return fail(
        labels_.error(ErrorCode::kDeadline, peer,
                      fmt::format("send of {} bytes, tag {}, from {} to {}: deadline passed, "
                                  "{} unread bytes of {} in its mailbox",
                                  data.bytes(), tag, labels_.describe(rank), labels_.describe(peer),
                                  mailbox.bytes, mailbox_bytes_)));
  }
  mailbox.bytes += data.bytes();
  mailbox.queues[{rank, tag}].push_back(std::move(message));
  mailbox.changed.notify_all();
  return {};
}

result<void> LocalGroup::receive(int rank, Buffer data, int peer, int tag, Deadline deadline) {
  if (peer < 0 || peer >= size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: recv from rank {}: group has {} ranks",
                labels_.name, peer, size());
  }
  Lock lock(mutex_);
  Mailbox& mailbox = *mailboxes_[static_cast<std::size_t>(rank)];
  const auto has_message = [&] { return mailbox.queues.contains({peer, tag}); };
  const auto gone = [&] { return departed_[static_cast<std::size_t>(peer)] != 0; };
  mailbox.changed.wait_until(lock, deadline.at,
                             [&] { return failure_ || gone() || has_message(); });
  if (failure_) return fail(*failure_);
  // A rank that sent and then left in good order is still heard.
  if (!has_message()) {
    if (gone()) return fail(labels_.gone(peer));
    return fail(
        labels_.error(ErrorCode::kDeadline, peer,
                      fmt::format("recv of {} × {}, tag {}: deadline passed, {} sent nothing to {}",
                                  element_type_name(data.type), data.count, tag,
                                  labels_.describe(peer), labels_.describe(rank))));
  }
  const auto queue = mailbox.queues.find({peer, tag});
  const Message message = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) mailbox.queues.erase(queue);
  mailbox.bytes -= message.bytes.size();
  mailbox.changed.notify_all();
  if (message.type != data.type || message.count != data.count) {
    fail_group(lock,
               labels_.error(ErrorCode::kConflict, peer,
                             fmt::format("tag {}: {} sent {} × {} but {} receives {} × {}", tag,
                                         labels_.describe(peer), element_type_name(message.type),
                                         message.count, labels_.describe(rank),
                                         element_type_name(data.type), data.count)));
    return fail(*failure_);
  }
  lock.unlock();
  if (!message.bytes.empty()) std::memcpy(data.data, message.bytes.data(), message.bytes.size());
  return {};
}

}  // namespace troupe::runtime

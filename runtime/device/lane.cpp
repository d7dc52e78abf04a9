#include "runtime/device/lane.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::runtime {

result<std::uint64_t> LaneQueue::enter(LaneRequest request, TimePoint now) {
  if (holder_ && static_cast<int>(waiting_.size()) >= waiting_max_) {
    return fail(ErrorCode::kResourceExhausted, "{} asks for phase {}: {} already wait, limit {}",
                request.owner, request.phase, waiting_.size(), waiting_max_);
  }
  LaneEntry entry{.request = std::move(request), .since = now, .ticket = ++last_ticket_};
  if (!holder_) {
    holder_ = std::move(entry);
    ++turns_taken_;
  } else {
    waiting_.push_back(std::move(entry));
  }
  return last_ticket_;
}

std::optional<std::uint64_t> LaneQueue::leave(std::uint64_t ticket, TimePoint now) {
  if (!holds(ticket)) {
    std::erase_if(waiting_, [&](const LaneEntry& entry) { return entry.ticket == ticket; });
    return std::nullopt;
  }
  holder_.reset();
  if (waiting_.empty()) return std::nullopt;
  holder_ = std::move(waiting_.front());
  waiting_.pop_front();
  holder_->since = now;
  ++turns_taken_;
  return holder_->ticket;
}

LaneStatus LaneQueue::status() const {
  return {.holder = holder_,
          .waiting = {waiting_.begin(), waiting_.end()},
          .turns_taken = turns_taken_};
}

DeviceLane::Turn& DeviceLane::Turn::operator=(Turn&& other) noexcept {
  if (this != &other) {
    release();
    lane_ = std::exchange(other.lane_, nullptr);
    ticket_ = other.ticket_;
  }
  return *this;
}

void DeviceLane::Turn::release() {
  if (lane_ != nullptr) std::exchange(lane_, nullptr)->leave(ticket_);
}

result<DeviceLane::Turn> DeviceLane::acquire(LaneRequest request, Deadline deadline) {
  const SteadyClock clock;
  const LaneRequest asked = request;
  std::unique_lock lock(mutex_);
  if (closed_) return fail(*closed_);
  const TimePoint asked_at = clock.now();
  auto ticket = queue_.enter(std::move(request), asked_at);
  if (!ticket) {
    return fail(std::move(ticket).error().wrap(
        ErrorCode::kResourceExhausted, fmt::format("device {}: lane is full", device().value)));
  }
  turn_changed_.wait_until(lock, deadline.at, [&] { return closed_ || queue_.holds(*ticket); });
  if (queue_.holds(*ticket)) return Turn(this, *ticket);
  const LaneStatus status = queue_.status();
  queue_.leave(*ticket, clock.now());
  if (closed_) return fail(*closed_);
  TROUPE_CHECK(status.holder, "device {}: lane has waiters but no holder", device().value);
  const TimePoint now = clock.now();
  return fail(
      ErrorCode::kDeadline,
      "device {}: {} waited {:.3f} s for phase {}; held by {} in phase {} for {:.3f} s, {} wait",
      device().value, asked.owner, seconds(now - asked_at), asked.phase,
      status.holder->request.owner, status.holder->request.phase,
      seconds(now - status.holder->since), status.waiting.size());
}

void DeviceLane::leave(std::uint64_t ticket) {
  const SteadyClock clock;
  const std::scoped_lock lock(mutex_);
  if (queue_.leave(ticket, clock.now())) turn_changed_.notify_all();
}

void DeviceLane::close(Error reason) {
  const std::scoped_lock lock(mutex_);
  if (!closed_) closed_ = std::move(reason);
  turn_changed_.notify_all();
}

LaneStatus DeviceLane::status() const {
  const std::scoped_lock lock(mutex_);
  return queue_.status();
}

result<std::vector<DeviceLane::Turn>> acquire_all(std::span<DeviceLane* const> lanes,
                                                  const LaneRequest& request, Deadline deadline) {
  std::vector<DeviceLane*> ordered(lanes.begin(), lanes.end());
  std::sort(ordered.begin(), ordered.end(),
            [](const DeviceLane* a, const DeviceLane* b) { return a->device() < b->device(); });
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    TROUPE_CHECK(ordered[i - 1]->device() != ordered[i]->device(), "device {} is named twice",
                 ordered[i]->device().value);
  }
  std::vector<DeviceLane::Turn> turns;
  for (DeviceLane* lane : ordered) {
    TROUPE_TRY(auto turn, lane->acquire(request, deadline));
    turns.push_back(std::move(turn));
  }
  return turns;
}

}  // namespace troupe::runtime

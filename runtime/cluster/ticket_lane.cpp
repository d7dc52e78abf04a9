#include "runtime/cluster/ticket_lane.hpp"

#include <algorithm>
#include <utility>

namespace troupe::runtime {

result<void> TicketLane::wait(TicketPlace place) {
  const std::uint64_t number = place.number;
  if (number == 0) return fail(ErrorCode::kInvalidArgument, "ticket 0: tickets count from 1");
  if (over(number)) {
    return fail(ErrorCode::kCancelled, "ticket {} of {} is over; the line is at {}", number,
                place.rank, next_);
  }
  if (holder_ && holder_->number == number) {
    return fail(ErrorCode::kAlreadyExists, "ticket {} of {}: {} holds the turn with it", number,
                place.rank, holder_->rank);
  }
  if (number - next_ > options_.ahead_max) {
    return fail(ErrorCode::kResourceExhausted, "ticket {} of {} is {} ahead of the line, limit {}",
                number, place.rank, number - next_, options_.ahead_max);
  }
  if (waiting_.contains(number)) {
    return fail(ErrorCode::kAlreadyExists, "ticket {} of {}: {} waits with it", number, place.rank,
                waiting_.at(number).rank);
  }
  if (waiting_.size() >= options_.waiting_max) {
    return fail(ErrorCode::kResourceExhausted, "ticket {} of {}: {} already wait, limit {}", number,
                place.rank, waiting_.size(), options_.waiting_max);
  }
  waiting_.emplace(number, std::move(place));
  return {};
}

result<bool> TicketLane::finish(std::uint64_t number) {
  if (number == 0 || over(number)) return false;
  if (number - next_ > options_.ahead_max) {
    return fail(ErrorCode::kResourceExhausted, "ticket {} is {} ahead of the line, limit {}",
                number, number - next_, options_.ahead_max);
  }
  if (holder_ && holder_->number == number) holder_.reset();
  waiting_.erase(number);
  over_.insert(number);
  advance();
  return true;
}

std::vector<std::uint64_t> TicketLane::settle(std::uint64_t floor) {
  std::vector<std::uint64_t> waited;
  floor_ = std::max(floor_, floor);
  while (!waiting_.empty() && waiting_.begin()->first < floor_) {
    waited.push_back(waiting_.begin()->first);
    waiting_.erase(waiting_.begin());
  }
  advance();
  return waited;
}

void TicketLane::advance() {
  if (next_ < floor_) next_ = holder_ ? std::max(next_, std::min(floor_, holder_->number)) : floor_;
  over_.erase(over_.begin(), over_.lower_bound(next_));
  while (!over_.empty() && *over_.begin() == next_) {
    over_.erase(over_.begin());
    ++next_;
  }
}

std::optional<TicketPlace> TicketLane::grant(TimePoint now) {
  if (holder_) return std::nullopt;
  const auto first = waiting_.find(next_);
  if (first == waiting_.end()) return std::nullopt;
  holder_ = std::move(first->second);
  waiting_.erase(first);
  holder_->since = now;
  ++turns_taken_;
  return holder_;
}

std::vector<std::uint64_t> TicketLane::tickets_of(const std::string& rank) const {
  std::vector<std::uint64_t> numbers;
  if (holder_ && holder_->rank == rank) numbers.push_back(holder_->number);
  for (const auto& [number, place] : waiting_) {
    if (place.rank == rank) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace troupe::runtime

#include "runtime/group/lane_gate.hpp"

#include <utility>

namespace troupe::runtime {

class OrderedLane::Place final : public LaneGate::Turn {
 public:
  Place(OrderedLane& lane, std::uint64_t ticket, LaneRequest request)
      : lane_(lane), ticket_(ticket), request_(std::move(request)) {}
  ~Place() override {
    {
      const std::lock_guard lock(lane_.mutex_);
      lane_.queue_.leave(ticket_, steady_now());
    }
    lane_.changed_.notify_all();
  }
  result<void> wait(Deadline deadline) override {
    std::unique_lock lock(lane_.mutex_);
    const bool mine = lane_.changed_.wait_until(lock, deadline.at,
                                                [this] { return lane_.queue_.holds(ticket_); });
    if (mine) return {};
    const auto holder = lane_.queue_.status().holder;
    return fail(ErrorCode::kDeadline, "lane: {} did not get its turn for {}; {} holds it for {}",
                request_.owner, request_.phase, holder ? holder->request.owner : "nobody",
                holder ? holder->request.phase : "nothing");
  }

 private:
  OrderedLane& lane_;
  std::uint64_t ticket_;
  LaneRequest request_;
};

result<std::unique_ptr<LaneGate::Turn>> OrderedLane::reserve(const LaneRequest& request) {
  const std::lock_guard lock(mutex_);
  TROUPE_TRY(const std::uint64_t ticket, queue_.enter(request, steady_now()));
  return std::make_unique<Place>(*this, ticket, request);
}

LaneStatus OrderedLane::status() const {
  const std::lock_guard lock(mutex_);
  return queue_.status();
}

}  // namespace troupe::runtime

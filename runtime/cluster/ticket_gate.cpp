#include "runtime/cluster/ticket_gate.hpp"

#include "runtime/base/log.hpp"
#include "runtime/cluster/lane_messages.hpp"
#include "runtime/task/when_done.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::runtime {
namespace {

/// In one request: 8 bytes each, far below a frame.
constexpr std::size_t kTicketsPerRequestMax = 16'384;

}  // namespace

struct TicketOutbox::State : std::enable_shared_from_this<TicketOutbox::State> {
  State(ActorSystem& actors, Options outbox_options)
      : system(actors), options(std::move(outbox_options)) {}

  void flush();
  void answered(std::deque<LaneTicket> tickets, const result<std::vector<std::byte>>& answer);
  void again_locked();

  ActorSystem& system;
  const Options options;
  std::mutex mutex;  // guards what follows
  std::deque<LaneTicket> queued;
  std::size_t sent = 0;  // in the request in flight
  bool in_flight = false;
  bool closed = false;
  std::optional<CallTimer::Id> timer;
};

TicketOutbox::TicketOutbox(ActorSystem& system, Options options)
    : state_(std::make_shared<State>(system, std::move(options))) {}

TicketOutbox::~TicketOutbox() {
  std::unique_lock lock(state_->mutex);
  state_->closed = true;
  const auto timer = std::exchange(state_->timer, std::nullopt);
  lock.unlock();
  if (timer) state_->system.timer().remove(*timer);
}

void TicketOutbox::skip(LaneTicket ticket) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->queued.push_back(std::move(ticket));
    if (state_->timer) return;  // the agent cannot be told at present
  }
  state_->flush();
}

bool TicketOutbox::full() const { return unconfirmed() >= state_->options.tickets_max; }

std::size_t TicketOutbox::unconfirmed() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->queued.size() + state_->sent;
}

void TicketOutbox::State::again_locked() {
  if (closed || timer) return;
  const TimePoint at = steady_now() + options.again_after;
  timer = system.timer().add(at, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    {
      const std::scoped_lock lock(self->mutex);
      self->timer.reset();
    }
    self->flush();
  });
}

void TicketOutbox::State::flush() {
  const Ref<Channel> channel = options.channel();
  std::deque<LaneTicket> tickets;
  std::map<std::string, LaneSkip> by_lane;
  {
    const std::scoped_lock lock(mutex);
    if (closed || in_flight || queued.empty()) return;
    if (!channel || channel->failure()) return again_locked();
    while (!queued.empty() && tickets.size() < kTicketsPerRequestMax) {
      LaneSkip& lane = by_lane[queued.front().lane];
      lane.numbers.push_back(queued.front().number);
      lane.floor = std::max(lane.floor, queued.front().floor);
      tickets.push_back(std::move(queued.front()));
      queued.pop_front();
    }
    sent = tickets.size();
    in_flight = true;
  }
  LaneSkips skips;
  for (auto& [lane, skip] : by_lane) {
    skip.lane = lane;
    skips.lanes.push_back(std::move(skip));
  }
  auto bytes = encode_value(skips);
  if (!bytes) return answered(std::move(tickets), fail(bytes.error()));
  const auto kept = std::make_shared<std::deque<LaneTicket>>(std::move(tickets));
  when_done<std::vector<std::byte>>(
      channel->request("lane.skip", std::move(*bytes), Deadline::in(options.answer_within)),
      [self = shared_from_this(), kept](const result<std::vector<std::byte>>& answer) {
        self->answered(std::move(*kept), answer);
      });
}

void TicketOutbox::State::answered(std::deque<LaneTicket> tickets,
                                   const result<std::vector<std::byte>>& answer) {
  {
    const std::scoped_lock lock(mutex);
    in_flight = false;
    sent = 0;
    // What the agent refuses for good (a lane that it does not keep) holds nobody up there.
    const bool refused = !answer && (answer.error().code == ErrorCode::kConflict ||
                                     answer.error().code == ErrorCode::kNotFound);
    if (refused) log::warn("lane tickets: {}", answer.error().to_string());
    if (!answer && !refused) {
      while (!tickets.empty()) {
        queued.push_front(std::move(tickets.back()));
        tickets.pop_back();
      }
      return again_locked();
    }
  }
  flush();
}

/// A place in line: a number that the agent will be told is over.
class TicketGate::Place final : public LaneGate::Turn {
 public:
  Place(LaneTicket ticket, std::shared_ptr<Numbers> numbers, std::shared_ptr<TicketOutbox> outbox)
      : ticket_(std::move(ticket)), numbers_(std::move(numbers)), outbox_(std::move(outbox)) {}
  ~Place() override {
    LaneTicket over = ticket_;
    {
      const std::scoped_lock lock(numbers_->mutex);
      numbers_->alive.erase(ticket_.number);
      over.floor = numbers_->floor_locked();
    }
    outbox_->skip(std::move(over));
  }
  result<void> wait(Deadline /*deadline*/) override {
    return fail(ErrorCode::kUnsupported, "lane {}: ticket {} is waited for at the rank's agent",
                ticket_.lane, ticket_.number);
  }
  std::optional<LaneTicket> ticket() const override { return ticket_; }

 private:
  const LaneTicket ticket_;
  const std::shared_ptr<Numbers> numbers_;
  const std::shared_ptr<TicketOutbox> outbox_;
};

result<std::unique_ptr<LaneGate::Turn>> TicketGate::reserve(const LaneRequest& request) {
  if (outbox_->full()) {
    return fail(ErrorCode::kResourceExhausted,
                "lane {}: {} asks for phase {}: the agent has not confirmed {} tickets", lane_,
                request.owner, request.phase, outbox_->unconfirmed());
  }
  LaneTicket ticket{lane_};
  {
    const std::scoped_lock lock(numbers_->mutex);
    ticket.number = ++numbers_->last;
    numbers_->alive.insert(ticket.number);
    ticket.floor = numbers_->floor_locked();
  }
  return std::make_unique<Place>(std::move(ticket), numbers_, outbox_);
}

}  // namespace troupe::runtime

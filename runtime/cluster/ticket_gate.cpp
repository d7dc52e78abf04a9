#include "runtime/cluster/ticket_gate.hpp"

#include "runtime/base/log.hpp"
#include "runtime/cluster/lane_messages.hpp"
#include "runtime/task/when_done.hpp"

#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace troupe::runtime {
namespace {

/// In one request: 8 bytes each, far below a frame.
constexpr std::size_t kTicketsPerRequestMax = 16'384;

}  // namespace

struct TicketOutbox::State : std::enable_shared_from_this<TicketOutbox::State> {
  explicit State(Options outbox_options) : options(outbox_options) {}

  void flush();
  void answered(std::deque<LaneTicket> tickets, const result<std::vector<std::byte>>& answer);

  const Options options;
  std::mutex mutex;  // guards what follows
  Ref<Channel> agent;
  std::deque<LaneTicket> queued;
  std::size_t sent = 0;  // in the request in flight
  bool in_flight = false;
};

TicketOutbox::TicketOutbox(Options options) : state_(std::make_shared<State>(options)) {}

TicketOutbox::~TicketOutbox() { set_channel(nullptr); }

void TicketOutbox::set_channel(Ref<Channel> agent) {
  {
    const std::scoped_lock lock(state_->mutex);
    std::swap(state_->agent, agent);  // the old one is dropped outside the lock
  }
  state_->flush();
}

void TicketOutbox::skip(LaneTicket ticket) {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->queued.push_back(std::move(ticket));
  }
  state_->flush();
}

bool TicketOutbox::full() const { return unconfirmed() >= state_->options.tickets_max; }

std::size_t TicketOutbox::unconfirmed() const {
  const std::scoped_lock lock(state_->mutex);
  return state_->queued.size() + state_->sent;
}

void TicketOutbox::State::flush() {
  Ref<Channel> channel;
  std::deque<LaneTicket> tickets;
  std::map<std::string, std::vector<std::uint64_t>> by_lane;
  {
    const std::scoped_lock lock(mutex);
    if (in_flight || !agent || agent->failure() || queued.empty()) return;
    while (!queued.empty() && tickets.size() < kTicketsPerRequestMax) {
      by_lane[queued.front().lane].push_back(queued.front().number);
      tickets.push_back(std::move(queued.front()));
      queued.pop_front();
    }
    sent = tickets.size();
    in_flight = true;
    channel = agent;
  }
  LaneSkips skips;
  for (auto& [lane, numbers] : by_lane) skips.lanes.push_back({lane, std::move(numbers)});
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
  bool go_on = true;
  {
    const std::scoped_lock lock(mutex);
    in_flight = false;
    sent = 0;
    // What the agent refuses for good (a lane that it does not keep) holds nobody up there.
    const bool refused = !answer && (answer.error().code == ErrorCode::kConflict ||
                                     answer.error().code == ErrorCode::kNotFound);
    if (!answer) log::warn("lane tickets: {}", answer.error().to_string());
    if (!answer && !refused) {
      while (!tickets.empty()) {
        queued.push_front(std::move(tickets.back()));
        tickets.pop_back();
      }
      // Again when the channel is back, or with the next ticket: never in a loop.
      go_on = answer.error().code == ErrorCode::kDeadline;
    }
  }
  if (go_on) flush();
}

/// A place in line: a number that the agent will be told is over.
class TicketGate::Place final : public LaneGate::Turn {
 public:
  Place(LaneTicket ticket, std::shared_ptr<TicketOutbox> outbox)
      : ticket_(std::move(ticket)), outbox_(std::move(outbox)) {}
  ~Place() override { outbox_->skip(ticket_); }
  result<void> wait(Deadline /*deadline*/) override {
    return fail(ErrorCode::kUnsupported, "lane {}: ticket {} is waited for at the rank's agent",
                ticket_.lane, ticket_.number);
  }
  std::optional<LaneTicket> ticket() const override { return ticket_; }

 private:
  const LaneTicket ticket_;
  const std::shared_ptr<TicketOutbox> outbox_;
};

result<std::unique_ptr<LaneGate::Turn>> TicketGate::reserve(const LaneRequest& request) {
  if (outbox_->full()) {
    return fail(ErrorCode::kResourceExhausted,
                "lane {}: {} asks for phase {}: the agent has not confirmed {} tickets", lane_,
                request.owner, request.phase, outbox_->unconfirmed());
  }
  return std::make_unique<Place>(LaneTicket{lane_, last_.fetch_add(1) + 1}, outbox_);
}

}  // namespace troupe::runtime

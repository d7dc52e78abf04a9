#include "runtime/cluster/agent_lanes.hpp"

#include "runtime/base/log.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace troupe::runtime {
namespace {

/// How much later than the wait itself the request for it ends.
constexpr Duration kAnswerGrace = std::chrono::seconds(1);
constexpr std::size_t kMovesQueuedMax = 64;

using Reply = std::vector<std::byte>;

template <class T>
result<Reply> ask(Channel& agent, std::string_view method, const T& message, Deadline deadline) {
  TROUPE_TRY(auto bytes, encode_value(message));
  return agent.request(method, std::move(bytes), deadline).wait(deadline);
}

}  // namespace

struct AgentLanes::State {
  struct Needs {
    std::vector<std::string> resident;
    Bytes scratch;
  };
  struct Move {
    MemoryMoveOrder order;
    Responder responder;
  };

  State(Ref<Channel> channel, Options lane_options)
      : agent(std::move(channel)),
        options(std::move(lane_options)),
        lane(lane_name(options.job, options.device)) {}

  void queue(Move move);
  void mover_main();
  result<void> run(const MemoryMoveOrder& order);
  /// Forgets how to move an entry, and waits for a move of it that runs.
  void forget(const std::string& what);
  /// Ends the mover; what is queued is answered kCancelled.
  void stop();

  const Ref<Channel> agent;
  const Options options;
  const std::string lane;
  std::thread mover;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::map<std::string, Needs> phases;
  std::map<std::string, MemoryActions> actions;
  std::deque<Move> moves;
  std::string moving;  // what the mover is at; empty: nothing
  bool stopped = false;
};

/// Serves `memory.move` for as long as somebody holds it; after the rank's end it refuses.
class MoveService final : public ChannelService {
 public:
  explicit MoveService(std::shared_ptr<AgentLanes::State> state) : state_(std::move(state)) {}
  void on_request(Channel& /*channel*/, std::string_view method, std::span<const std::byte> payload,
                  Deadline /*deadline*/, Responder responder) override {
    if (method != "memory.move")
      return responder.reply(fail(ErrorCode::kNotFound, "rank memory: no method '{}'", method));
    auto order = decode_value<MemoryMoveOrder>(payload);
    if (!order) return responder.reply(fail(order.error()));
    state_->queue({std::move(*order), std::move(responder)});
  }

 private:
  std::shared_ptr<AgentLanes::State> state_;
};

void AgentLanes::State::queue(Move move) {
  const std::scoped_lock lock(mutex);
  if (stopped)
    return move.responder.reply(fail(ErrorCode::kCancelled, "rank memory: the rank is ending"));
  if (moves.size() >= kMovesQueuedMax) {
    return move.responder.reply(fail(ErrorCode::kResourceExhausted,
                                     "rank memory: {} moves are queued, limit {}", moves.size(),
                                     kMovesQueuedMax));
  }
  moves.push_back(std::move(move));
  changed.notify_all();
}

void AgentLanes::State::mover_main() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopped || !moves.empty(); });
    if (stopped) return;
    Move move = std::move(moves.front());
    moves.pop_front();
    moving = move.order.what;
    lock.unlock();
    const auto done = run(move.order);
    move.responder.reply(done ? result<Reply>(Reply()) : fail(done.error()));
    lock.lock();
    moving.clear();
    changed.notify_all();
  }
}

result<void> AgentLanes::State::run(const MemoryMoveOrder& order) {
  MemoryActions known;
  {
    const std::scoped_lock lock(mutex);
    const auto found = actions.find(order.what);
    if (found == actions.end())
      return fail(ErrorCode::kNotFound, "rank memory: no entry {}", order.what);
    known = found->second;
  }
  const auto kind = static_cast<MoveKind>(order.kind);
  if (kind != MoveKind::kLoad && kind != MoveKind::kOffload && kind != MoveKind::kDrop)
    return fail(ErrorCode::kCorrupt, "rank memory: {}: move of kind {}", order.what, order.kind);
  const auto& action = kind == MoveKind::kLoad      ? known.load
                       : kind == MoveKind::kOffload ? known.offload
                                                    : known.drop;
  if (!action) return {};
  try {
    return action();
  } catch (...) {  // a door: the callbacks are the worker's, on a thread of ours
    return fail(error_of_current_exception());
  }
}

void AgentLanes::State::forget(const std::string& what) {
  std::unique_lock lock(mutex);
  actions.erase(what);
  changed.wait(lock, [&] { return moving != what; });
}

void AgentLanes::State::stop() {
  std::deque<Move> left;
  {
    const std::scoped_lock lock(mutex);
    stopped = true;
    left.swap(moves);
    changed.notify_all();
  }
  for (Move& move : left)
    move.responder.reply(fail(ErrorCode::kCancelled, "rank memory: the rank is ending"));
  if (mover.joinable()) mover.join();
}

/// Holds the turn; the agent hears of its end.
class AgentLanes::HeldTurn final : public LaneGate::Turn {
 public:
  HeldTurn(Ref<Channel> agent, LaneTicket ticket)
      : agent_(std::move(agent)), ticket_(std::move(ticket)) {}
  ~HeldTurn() override { release(*agent_, ticket_); }
  result<void> wait(Deadline /*deadline*/) override { return {}; }
  std::optional<LaneTicket> ticket() const override { return ticket_; }

  static void release(Channel& agent, const LaneTicket& ticket) {
    const auto bytes = encode_value(LaneRelease{ticket.lane, ticket.number});
    const auto told = bytes ? agent.notify("lane.release", *bytes) : fail(bytes.error());
    if (told || agent.failure()) return;  // an agent that is gone frees everything itself
    // A turn that is never given back would stop every rank of the device.
    log::error("lane {}: ticket {} cannot be released: {}", ticket.lane, ticket.number,
               told.error().to_string());
    agent.close(told.error());
  }

 private:
  const Ref<Channel> agent_;
  const LaneTicket ticket_;
};

AgentLanes::AgentLanes(Ref<Channel> agent, Options options)
    : state_(std::make_shared<State>(std::move(agent), std::move(options))) {
  state_->mover = std::thread([state = state_.get()] { state->mover_main(); });
}

AgentLanes::~AgentLanes() { state_->stop(); }

std::shared_ptr<ChannelService> AgentLanes::service() const {
  return std::make_shared<MoveService>(state_);
}

void AgentLanes::declare(const std::string& phase, std::vector<std::string> resident,
                         Bytes scratch) {
  const std::scoped_lock lock(state_->mutex);
  state_->phases.insert_or_assign(phase, State::Needs{std::move(resident), scratch});
}

result<std::unique_ptr<LaneGate::Turn>> AgentLanes::wait(const LaneTicket& ticket,
                                                         const std::string& phase,
                                                         Deadline deadline) {
  LaneWait wanted{.lane = ticket.lane,
                  .number = ticket.number,
                  .floor = ticket.floor,
                  .phase = phase,
                  .declared = false,
                  .resident = {},
                  .scratch_bytes = 0,
                  .within = deadline.at - steady_now()};
  {
    const std::scoped_lock lock(state_->mutex);
    if (const auto needs = state_->phases.find(phase); needs != state_->phases.end()) {
      wanted.declared = true;
      wanted.resident = needs->second.resident;
      wanted.scratch_bytes = needs->second.scratch.value;
    }
  }
  Channel& agent = *state_->agent;
  const auto turn = ask(agent, "lane.wait", wanted, Deadline{deadline.at + kAnswerGrace});
  if (!turn) {
    // Refused by the agent, the ticket is over already; after a lost answer it is given back.
    HeldTurn::release(agent, ticket);
    return fail(turn.error());
  }
  return std::make_unique<HeldTurn>(state_->agent, ticket);
}

result<void> AgentLanes::add(MemoryEntry entry, MemoryActions actions) {
  const std::string what = entry.key.what;
  {
    const std::scoped_lock lock(state_->mutex);
    if (!state_->actions.try_emplace(what, std::move(actions)).second) {
      return fail(ErrorCode::kAlreadyExists, "lane {}: {} is already in the ledger", state_->lane,
                  what);
    }
  }
  const MemoryAdd message{.lane = state_->lane,
                          .what = what,
                          .bytes = entry.bytes.value,
                          .eviction = static_cast<std::int32_t>(entry.eviction),
                          .residency = static_cast<std::int32_t>(entry.residency)};
  const auto added =
      ask(*state_->agent, "memory.add", message, Deadline::in(state_->options.answer_within));
  if (added) return {};
  state_->forget(what);
  return fail(added.error());
}

result<void> AgentLanes::remove(const MemoryKey& key) {
  const MemoryChange message{.lane = state_->lane, .what = key.what, .bytes = 0};
  const auto removed =
      ask(*state_->agent, "memory.remove", message, Deadline::in(state_->options.answer_within));
  state_->forget(key.what);
  if (!removed) return fail(removed.error());
  return {};
}

result<void> AgentLanes::resize(const MemoryKey& key, Bytes bytes) {
  const MemoryChange message{.lane = state_->lane, .what = key.what, .bytes = bytes.value};
  const auto resized =
      ask(*state_->agent, "memory.resize", message, Deadline::in(state_->options.answer_within));
  if (!resized) return fail(resized.error());
  return {};
}

result<Bytes> AgentLanes::room_in(const Phase& phase) const {
  MemoryRoom message{.lane = state_->lane,
                     .phase = phase.name,
                     .resident = {},
                     .scratch_bytes = phase.scratch.value};
  for (const MemoryKey& key : phase.resident) message.resident.push_back(key.what);
  TROUPE_TRY(const Reply reply, ask(*state_->agent, "memory.room", message,
                                    Deadline::in(state_->options.answer_within)));
  TROUPE_TRY(const auto bytes, decode_value<std::int64_t>(reply));
  return Bytes{bytes};
}

std::shared_ptr<AgentLanes> make_agent_lanes(Ref<Channel> agent, const RankRecord& record) {
  if (record.devices.empty()) return nullptr;
  AgentLanes::Options options;
  options.job = record.job;
  options.device = record.devices.front();
  return std::make_shared<AgentLanes>(std::move(agent), std::move(options));
}

}  // namespace troupe::runtime

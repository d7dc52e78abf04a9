#include "runtime/cluster/lanes.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/task/when_done.hpp"

#include <charconv>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::size_t kTurnsPerAnswerMax = 1000;
constexpr std::size_t kEntriesPerRankMax = 1024;
constexpr std::size_t kGoneKept = 1024;

std::string job_of(std::string_view name) { return std::string(name.substr(0, name.find('/'))); }

std::string residency_name(Residency residency) {
  switch (residency) {
    case Residency::kResident:
      return "resident";
    case Residency::kOffloaded:
      return "offloaded";
    case Residency::kDropped:
      return "dropped";
  }
  return "?";
}

void reply_error(Responder& responder, const Error& error) { responder.reply(fail(error)); }

void reply_done(Responder& responder, const result<void>& done) {
  if (!done) return reply_error(responder, done.error());
  responder.reply(std::vector<std::byte>());
}

/// Answers with a value, or with why there is none.
template <class T>
void reply_value(Responder& responder, const result<T>& value) {
  if (!value) return reply_error(responder, value.error());
  responder.reply(encode_value(*value));
}

LanePlaceReport report_of(const TicketPlace& place, TimePoint now) {
  return {.number = place.number,
          .rank = place.rank,
          .phase = place.phase,
          .since_s = seconds(now - place.since)};
}

LaneReport report_of(const LaneCore& core, TimePoint now) {
  LaneReport report{.lane = core.name(),
                    .next = core.lane().next(),
                    .next_since_s = seconds(now - core.next_since()),
                    .turns_taken = core.lane().turns_taken(),
                    .holder = std::nullopt,
                    .waiting = {},
                    .capacity_bytes = core.memory().capacity().value,
                    .used_bytes = core.memory().used().value,
                    .entries = {}};
  if (core.lane().holder()) report.holder = report_of(*core.lane().holder(), now);
  for (const auto& [number, place] : core.lane().waiting())
    report.waiting.push_back(report_of(place, now));
  for (const MemoryEntry& entry : core.memory().entries()) {
    report.entries.push_back({.owner = entry.key.owner,
                              .what = entry.key.what,
                              .bytes = entry.bytes.value,
                              .residency = residency_name(entry.residency)});
  }
  return report;
}

}  // namespace

struct LaneService::State : std::enable_shared_from_this<LaneService::State> {
  State(ActorSystem& actors, LaneServiceOptions service_options)
      : system(actors), options(std::move(service_options)) {}

  /// A wait that has not been answered.
  struct Asking {
    std::string lane;
    const Channel* channel = nullptr;  ///< compared only
    Responder responder;
    std::optional<CallTimer::Id> timer;
  };
  /// What is to be done once the lock is gone.
  struct Effects {
    std::vector<std::pair<Responder, std::optional<Error>>> answers;
    std::vector<CallTimer::Id> timers;
    struct Move {
      std::string lane;
      MoveWanted wanted;
      Ref<Channel> owner;
    };
    std::vector<Move> moves;
  };

  void wait(Channel& channel, const LaneWait& wanted, Deadline deadline, Responder responder);
  result<void> release(Channel& channel, const LaneRelease& over);
  result<void> skip(Channel& channel, const LaneSkips& skips);
  result<void> add(Channel& channel, const MemoryAdd& wanted);
  result<Bytes> room(Channel& channel, const MemoryRoom& wanted);
  result<LaneTurns> turns(Channel& channel, const LaneTurnsRequest& wanted);
  void memory_request(Channel& channel, std::string_view method, std::span<const std::byte> payload,
                      Responder responder);

  /// The lane, made if it is new; only those of the job that the peer belongs to.
  result<LaneCore*> lane_locked(const Channel& channel, const std::string& name);
  void end_rank_locked(const std::string& rank, const Error& cause, Effects& effects);
  void step_locked(LaneCore& core, const LaneEvent& event, Effects& effects);
  void take_locked(const std::string& lane, LaneEffect& effect, Effects& effects);
  void perform(Effects effects);
  void order(Effects::Move move);
  void expire(LaneRequestId request);
  void move_ended(const std::string& lane, std::uint64_t move, std::optional<Error> failure);

  ActorSystem& system;
  const LaneServiceOptions options;

  mutable std::mutex mutex;  // guards what follows
  std::map<std::string, LaneCore> lanes;
  std::map<LaneRequestId, Asking> asking;
  LaneRequestId last_request = 0;
  std::map<std::string, Ref<Channel>> ranks;  // those with entries, by peer name
  std::deque<std::string> gone;               // ended, and their channel was not down yet
  std::deque<std::pair<std::uint64_t, TurnOver>> over;
  std::map<std::uint64_t, std::string> over_lanes;  // lane of each kept turn
  std::uint64_t last_over = 0;
};

std::shared_ptr<LaneService> LaneService::make(ActorSystem& system, LaneServiceOptions options) {
  return std::shared_ptr<LaneService>(
      new LaneService(std::make_shared<State>(system, std::move(options))));
}

LaneService::LaneService(std::shared_ptr<State> state) : state_(std::move(state)) {}

LaneService::~LaneService() {
  State::Effects effects;
  {
    const std::scoped_lock lock(state_->mutex);
    for (auto& [request, asking] : state_->asking) {
      if (asking.timer) effects.timers.push_back(*asking.timer);
      effects.answers.emplace_back(std::move(asking.responder), Error{.code = ErrorCode::kCancelled,
                                                                      .message = "the agent stops",
                                                                      .origin = {},
                                                                      .causes = {}});
    }
    state_->asking.clear();
    state_->lanes.clear();
    state_->ranks.clear();
  }
  state_->perform(std::move(effects));
}

void LaneService::on_request(Channel& channel, std::string_view method,
                             std::span<const std::byte> payload, Deadline deadline,
                             Responder responder) {
  if (method.starts_with("memory."))
    return state_->memory_request(channel, method, payload, std::move(responder));
  if (method == "lane.wait") {
    const auto wanted = decode_value<LaneWait>(payload);
    if (!wanted) return reply_error(responder, wanted.error());
    return state_->wait(channel, *wanted, deadline, std::move(responder));
  }
  if (method == "lane.release") {
    const auto over = decode_value<LaneRelease>(payload);
    return reply_done(responder,
                      over ? state_->release(channel, *over) : result<void>(fail(over.error())));
  }
  if (method == "lane.skip") {
    const auto skips = decode_value<LaneSkips>(payload);
    return reply_done(responder,
                      skips ? state_->skip(channel, *skips) : result<void>(fail(skips.error())));
  }
  if (method == "lane.turns") {
    const auto wanted = decode_value<LaneTurnsRequest>(payload);
    if (!wanted) return reply_error(responder, wanted.error());
    return reply_value(responder, state_->turns(channel, *wanted));
  }
  if (method == "lane.status")
    return reply_value(responder, result<std::vector<LaneReport>>(report()));
  responder.reply(fail(ErrorCode::kNotFound, "lanes: no method '{}'", method));
}

void LaneService::on_notify(Channel& channel, std::string_view method,
                            std::span<const std::byte> payload) {
  result<void> done = fail(ErrorCode::kNotFound, "lanes: no notice '{}'", method);
  if (method == "lane.release") {
    const auto over = decode_value<LaneRelease>(payload);
    done = over ? state_->release(channel, *over) : result<void>(fail(over.error()));
  }
  if (!done) log::warn("{}: {}", channel.peer().to_string(), done.error().to_string());
}

void LaneService::on_down(Channel& channel, const Error& cause) {
  if (channel.peer().role != PeerRole::kRank) return;
  const std::string& rank = channel.peer().name;
  State::Effects effects;
  {
    const std::scoped_lock lock(state_->mutex);
    // Waits can no longer be answered. A turn that it has stays: the process may still be at work
    // on the device, and the agent says when it is over (rank_gone).
    std::vector<std::pair<LaneRequestId, std::string>> unanswerable;
    for (const auto& [request, asking] : state_->asking) {
      if (asking.channel == &channel) unanswerable.emplace_back(request, asking.lane);
    }
    for (const auto& [request, lane] : unanswerable) {
      if (const auto core = state_->lanes.find(lane); core != state_->lanes.end())
        state_->step_locked(core->second, AskExpired{request}, effects);
    }
    const auto known = state_->ranks.find(rank);
    if (known != state_->ranks.end() && known->second.get() == &channel) state_->ranks.erase(known);
    // The process was reaped before its last words were read: they must have no effect.
    if (std::erase(state_->gone, rank) > 0) state_->end_rank_locked(rank, cause, effects);
  }
  state_->perform(std::move(effects));
}

void LaneService::State::end_rank_locked(const std::string& rank, const Error& cause,
                                         Effects& effects) {
  const std::string prefix = job_of(rank) + "/";
  for (auto at = lanes.lower_bound(prefix); at != lanes.end() && at->first.starts_with(prefix);
       ++at)
    step_locked(at->second, RankGone{rank, cause}, effects);
  ranks.erase(rank);
}

void LaneService::rank_gone(const std::string& rank, const Error& cause) {
  State::Effects effects;
  {
    const std::scoped_lock lock(state_->mutex);
    state_->end_rank_locked(rank, cause, effects);
    state_->gone.push_back(rank);
    if (state_->gone.size() > kGoneKept) state_->gone.pop_front();
  }
  state_->perform(std::move(effects));
}

void LaneService::job_gone(const std::string& job, const Error& cause) {
  State::Effects effects;
  {
    const std::scoped_lock lock(state_->mutex);
    const std::string prefix = job + "/";
    std::erase_if(state_->lanes, [&](const auto& lane) { return lane.first.starts_with(prefix); });
    std::erase_if(state_->ranks, [&](const auto& rank) { return rank.first.starts_with(prefix); });
    for (auto at = state_->asking.begin(); at != state_->asking.end();) {
      State::Asking& asking = at->second;
      if (!asking.lane.starts_with(prefix)) {
        ++at;
        continue;
      }
      if (asking.timer) effects.timers.push_back(*asking.timer);
      effects.answers.emplace_back(std::move(asking.responder), cause);
      at = state_->asking.erase(at);
    }
  }
  state_->perform(std::move(effects));
}

std::vector<LaneReport> LaneService::report() const {
  const TimePoint now = steady_now();
  std::vector<LaneReport> reports;
  const std::scoped_lock lock(state_->mutex);
  for (const auto& [name, core] : state_->lanes) reports.push_back(report_of(core, now));
  return reports;
}

result<LaneCore*> LaneService::State::lane_locked(const Channel& channel, const std::string& name) {
  const PeerName& peer = channel.peer();
  const bool member = peer.role == PeerRole::kRank || peer.role == PeerRole::kController;
  if (!member || job_of(peer.name) != job_of(name)) {
    return fail(ErrorCode::kConflict, "{}: lane {} belongs to another job", peer.to_string(), name);
  }
  if (const auto found = lanes.find(name); found != lanes.end()) return &found->second;
  const std::size_t slash = name.find('/');
  int device = -1;
  if (slash != std::string::npos) {
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + slash + 1, end, device);
    if (parsed.ec != std::errc() || parsed.ptr != end) device = -1;
  }
  const auto devices = static_cast<int>(options.device_capacity.size());
  if (device < 0 || device >= devices) {
    return fail(ErrorCode::kNotFound, "lane {}: this node has devices 0..{}", name, devices - 1);
  }
  if (lanes.size() >= options.lanes_max) {
    return fail(ErrorCode::kResourceExhausted, "lane {}: {} lanes are kept, limit {}", name,
                lanes.size(), options.lanes_max);
  }
  const Bytes capacity = options.device_capacity[static_cast<std::size_t>(device)];
  const auto made = lanes.try_emplace(name, name, DeviceId{device}, capacity);
  return &made.first->second;
}

void LaneService::State::wait(Channel& channel, const LaneWait& wanted, Deadline deadline,
                              Responder responder) {
  if (channel.peer().role != PeerRole::kRank) {
    return responder.reply(
        fail(ErrorCode::kConflict, "{}: only ranks take turns", channel.peer().to_string()));
  }
  const std::string& rank = channel.peer().name;
  AskTurn ask{.request = 0,
              .number = wanted.number,
              .floor = wanted.floor,
              .rank = rank,
              .phase = {.name = wanted.phase, .resident = {}, .scratch = {wanted.scratch_bytes}},
              .declared = wanted.declared};
  for (const std::string& what : wanted.resident) ask.phase.resident.push_back({rank, what});
  Effects effects;
  {
    const std::scoped_lock lock(mutex);
    const auto core = lane_locked(channel, wanted.lane);
    if (!core) return reply_error(responder, core.error());
    ask.request = ++last_request;
    const TimePoint until = std::min(deadline.at, steady_now() + wanted.within);
    const auto timer = system.timer().add(until, [weak = weak_from_this(), id = ask.request] {
      if (const auto self = weak.lock()) self->expire(id);
    });
    asking.emplace(ask.request, Asking{wanted.lane, &channel, std::move(responder), timer});
    step_locked(**core, ask, effects);
  }
  perform(std::move(effects));
}

result<void> LaneService::State::release(Channel& channel, const LaneRelease& over_turn) {
  Effects effects;
  {
    const std::scoped_lock lock(mutex);
    if (!lanes.contains(over_turn.lane)) return {};  // it went with its job
    TROUPE_TRY(LaneCore * core, lane_locked(channel, over_turn.lane));
    step_locked(*core, EndTurn{over_turn.number, channel.peer().name}, effects);
  }
  perform(std::move(effects));
  return {};
}

result<void> LaneService::State::skip(Channel& channel, const LaneSkips& skips) {
  if (channel.peer().role != PeerRole::kController)
    return fail(ErrorCode::kConflict, "{}: only controllers skip tickets",
                channel.peer().to_string());
  Effects effects;
  result<void> done;
  {
    const std::scoped_lock lock(mutex);
    for (const LaneSkip& one : skips.lanes) {
      const auto core = lane_locked(channel, one.lane);
      if (!core) {
        done = fail(core.error());
        continue;
      }
      const std::uint64_t last = std::max(one.floor, (*core)->lane().next()) + kTicketsAheadMax;
      for (const std::uint64_t number : one.numbers) {
        if (number > last)
          done = fail(ErrorCode::kResourceExhausted, "lane {}: ticket {} is beyond {}", one.lane,
                      number, last);
      }
      step_locked(**core, SkipTickets{one.numbers, one.floor}, effects);
    }
  }
  perform(std::move(effects));
  return done;
}

void LaneService::State::memory_request(Channel& channel, std::string_view method,
                                        std::span<const std::byte> payload, Responder responder) {
  if (channel.peer().role != PeerRole::kRank) {
    return responder.reply(fail(ErrorCode::kConflict, "{}: only ranks keep device memory",
                                channel.peer().to_string()));
  }
  if (method == "memory.add") {
    const auto wanted = decode_value<MemoryAdd>(payload);
    return reply_done(responder,
                      wanted ? add(channel, *wanted) : result<void>(fail(wanted.error())));
  }
  if (method == "memory.room") {
    const auto wanted = decode_value<MemoryRoom>(payload);
    if (!wanted) return reply_error(responder, wanted.error());
    const auto bytes = room(channel, *wanted);
    return reply_value(responder, bytes ? result<std::int64_t>(bytes->value) : fail(bytes.error()));
  }
  if (method == "memory.remove" || method == "memory.resize") {
    const auto wanted = decode_value<MemoryChange>(payload);
    if (!wanted) return reply_error(responder, wanted.error());
    const MemoryKey key{channel.peer().name, wanted->what};
    const std::scoped_lock lock(mutex);
    const auto core = lane_locked(channel, wanted->lane);
    if (!core) return reply_error(responder, core.error());
    return reply_done(responder, method == "memory.remove"
                                     ? (*core)->remove(key)
                                     : (*core)->resize(key, Bytes{wanted->bytes}));
  }
  responder.reply(fail(ErrorCode::kNotFound, "lanes: no method '{}'", method));
}

result<void> LaneService::State::add(Channel& channel, const MemoryAdd& wanted) {
  const std::string& rank = channel.peer().name;
  if (wanted.eviction < 0 || wanted.eviction > static_cast<int>(Eviction::kDrop) ||
      wanted.residency < 0 || wanted.residency > static_cast<int>(Residency::kDropped)) {
    return fail(ErrorCode::kCorrupt, "memory.add: {}: eviction {} and residency {}", wanted.what,
                wanted.eviction, wanted.residency);
  }
  const std::scoped_lock lock(mutex);
  TROUPE_TRY(LaneCore * core, lane_locked(channel, wanted.lane));
  std::size_t own = 0;
  for (const MemoryEntry& entry : core->memory().entries()) own += entry.key.owner == rank ? 1 : 0;
  if (own >= kEntriesPerRankMax) {
    return fail(ErrorCode::kResourceExhausted, "{}: {} entries in lane {}, limit {}", rank, own,
                wanted.lane, kEntriesPerRankMax);
  }
  TROUPE_TRY_VOID(core->add({.key = {rank, wanted.what},
                             .bytes = Bytes{wanted.bytes},
                             .eviction = static_cast<Eviction>(wanted.eviction),
                             .residency = static_cast<Residency>(wanted.residency),
                             .last_needed = 0}));
  ranks.insert_or_assign(rank, Ref<Channel>(&channel));
  return {};
}

result<Bytes> LaneService::State::room(Channel& channel, const MemoryRoom& wanted) {
  Phase phase{.name = wanted.phase, .resident = {}, .scratch = Bytes{wanted.scratch_bytes}};
  for (const std::string& what : wanted.resident)
    phase.resident.push_back({channel.peer().name, what});
  const std::scoped_lock lock(mutex);
  TROUPE_TRY(const LaneCore* core, lane_locked(channel, wanted.lane));
  return core->memory().room_in(phase);
}

result<LaneTurns> LaneService::State::turns(Channel& channel, const LaneTurnsRequest& wanted) {
  if (channel.peer().role == PeerRole::kController && job_of(channel.peer().name) != wanted.job) {
    return fail(ErrorCode::kConflict, "{}: job {} is another's", channel.peer().to_string(),
                wanted.job);
  }
  const TimePoint now = steady_now();
  const std::string prefix = wanted.job + "/";
  const std::scoped_lock lock(mutex);
  LaneTurns answer;
  const std::uint64_t oldest = over.empty() ? last_over + 1 : over.front().first;
  answer.lost = oldest > wanted.after + 1 ? oldest - wanted.after - 1 : 0;
  answer.last = std::max(wanted.after, oldest - 1);
  for (const auto& [number, turn] : over) {
    if (number <= wanted.after) continue;
    if (answer.turns.size() >= kTurnsPerAnswerMax) break;
    answer.last = number;
    const std::string& lane = over_lanes.at(number);
    if (!lane.starts_with(prefix)) continue;
    answer.turns.push_back({.lane = lane,
                            .number = turn.place.number,
                            .rank = turn.place.rank,
                            .phase = turn.place.phase,
                            .began_s_ago = seconds(now - turn.place.since),
                            .ended_s_ago = seconds(now - turn.ended)});
  }
  return answer;
}

void LaneService::State::step_locked(LaneCore& core, const LaneEvent& event, Effects& effects) {
  for (LaneEffect& effect : core.step(event, steady_now()))
    take_locked(core.name(), effect, effects);
}

void LaneService::State::take_locked(const std::string& lane, LaneEffect& effect,
                                     Effects& effects) {
  const auto answer = [&](LaneRequestId request, std::optional<Error> cause) {
    const auto found = asking.find(request);
    if (found == asking.end()) return;
    if (found->second.timer) effects.timers.push_back(*found->second.timer);
    effects.answers.emplace_back(std::move(found->second.responder), std::move(cause));
    asking.erase(found);
  };
  if (const auto* granted = std::get_if<TurnGranted>(&effect)) {
    answer(granted->request, std::nullopt);
  } else if (auto* refused = std::get_if<TurnRefused>(&effect)) {
    answer(refused->request, std::move(refused->cause));
  } else if (auto* wanted = std::get_if<MoveWanted>(&effect)) {
    const auto owner = ranks.find(wanted->what.key.owner);
    effects.moves.push_back(
        {lane, std::move(*wanted), owner == ranks.end() ? Ref<Channel>() : owner->second});
  } else if (auto* turn = std::get_if<TurnOver>(&effect)) {
    over_lanes.emplace(++last_over, lane);
    over.emplace_back(last_over, std::move(*turn));
    while (over.size() > options.turns_kept) {
      over_lanes.erase(over.front().first);
      over.pop_front();
    }
  }
}

void LaneService::State::perform(Effects effects) {
  for (const auto& timer : effects.timers) system.timer().remove(timer);
  for (auto& [responder, cause] : effects.answers) {
    if (cause) {
      reply_error(responder, *cause);
    } else {
      responder.reply(std::vector<std::byte>());
    }
  }
  for (auto& move : effects.moves) order(std::move(move));
}

void LaneService::State::order(Effects::Move move) {
  const std::string& owner = move.wanted.what.key.owner;
  if (!move.owner) {
    return move_ended(move.lane, move.wanted.move,
                      Error{.code = ErrorCode::kRankDead,
                            .message = fmt::format("{} is not connected to its agent", owner),
                            .origin = {},
                            .causes = {}});
  }
  auto bytes =
      encode_value(MemoryMoveOrder{.what = move.wanted.what.key.what,
                                   .kind = static_cast<std::int32_t>(move.wanted.what.kind),
                                   .phase = move.wanted.phase});
  if (!bytes) return move_ended(move.lane, move.wanted.move, std::move(bytes).error());
  when_done<std::vector<std::byte>>(
      move.owner->request("memory.move", std::move(*bytes), Deadline::in(options.move_within)),
      [weak = weak_from_this(), lane = move.lane,
       number = move.wanted.move](result<std::vector<std::byte>> done) {
        const auto self = weak.lock();
        if (!self) return;
        std::optional<Error> failure;
        if (!done) failure = std::move(done).error();
        self->move_ended(lane, number, std::move(failure));
      });
}

void LaneService::State::move_ended(const std::string& lane, std::uint64_t move,
                                    std::optional<Error> failure) {
  Effects effects;
  {
    const std::scoped_lock lock(mutex);
    const auto core = lanes.find(lane);
    if (core == lanes.end()) return;  // the job is gone
    step_locked(core->second, MoveEnded{move, std::move(failure)}, effects);
  }
  perform(std::move(effects));
}

void LaneService::State::expire(LaneRequestId request) {
  Effects effects;
  {
    const std::scoped_lock lock(mutex);
    const auto found = asking.find(request);
    if (found == asking.end()) return;
    found->second.timer.reset();  // it is this one
    const auto core = lanes.find(found->second.lane);
    if (core == lanes.end()) return;
    step_locked(core->second, AskExpired{request}, effects);
  }
  perform(std::move(effects));
}

}  // namespace troupe::runtime

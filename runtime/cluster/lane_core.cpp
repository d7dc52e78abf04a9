#include "runtime/cluster/lane_core.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::runtime {
namespace {

std::string_view move_name(MoveKind kind) {
  switch (kind) {
    case MoveKind::kLoad:
      return "load";
    case MoveKind::kOffload:
      return "offload";
    case MoveKind::kDrop:
      return "drop";
  }
  return "?";
}

}  // namespace

LaneCore::LaneCore(std::string name, DeviceId device, Bytes capacity, TicketLane::Options options)
    : name_(std::move(name)), lane_(options), memory_(device, capacity) {}

std::vector<LaneEffect> LaneCore::step(const LaneEvent& event, TimePoint now) {
  Effects effects;
  if (next_since_ == TimePoint{}) next_since_ = now;
  const std::uint64_t next_before = lane_.next();
  std::visit([&](const auto& one) { on(one, now, effects); }, event);
  advance(now, effects);
  if (lane_.next() != next_before) next_since_ = now;
  return effects;
}

void LaneCore::settle(std::uint64_t floor, Effects& effects) {
  for (const std::uint64_t number : lane_.settle(floor)) {
    const auto ask = asks_.extract(number);
    effects.push_back(TurnRefused{
        ask.mapped().request,
        make_error(ErrorCode::kCancelled, "lane {}: ticket {} is over, as its controller says",
                   name_, number)});
  }
}

void LaneCore::on(const AskTurn& event, TimePoint now, Effects& effects) {
  settle(event.floor, effects);
  auto joined = lane_.wait(
      {.number = event.number, .rank = event.rank, .phase = event.phase.name, .since = now});
  if (!joined) {
    const ErrorCode code = joined.error().code;
    effects.push_back(TurnRefused{
        event.request, std::move(joined).error().wrap(code, fmt::format("lane {}", name_))});
    return;
  }
  asks_.emplace(event.number, Ask{event.request, event.phase, event.declared});
}

void LaneCore::on(const EndTurn& event, TimePoint now, Effects& effects) {
  // A rank may end its own tickets only; a number that is nobody's yet is the controller's to skip.
  const auto own = lane_.tickets_of(event.rank);
  if (std::find(own.begin(), own.end(), event.number) == own.end()) return;
  finish(event.number,
         make_error(ErrorCode::kCancelled, "lane {}: {} gave up ticket {}", name_, event.rank,
                    event.number),
         now, effects);
}

void LaneCore::on(const SkipTickets& event, TimePoint now, Effects& effects) {
  settle(event.floor, effects);
  for (const std::uint64_t number : event.numbers) {
    // Who has the turn ends it himself, also when nobody wants his result any more.
    const bool held = lane_.holder() && lane_.holder()->number == number;
    if (held && !asks_.contains(number)) continue;
    finish(number,
           make_error(ErrorCode::kCancelled, "lane {}: the controller skipped ticket {}", name_,
                      number),
           now, effects);
  }
}

void LaneCore::on(const RankGone& event, TimePoint now, Effects& effects) {
  // The owner of a move is gone with what it was to move: nothing is left to wait for.
  if (moving_ && moving_->what.key.owner == event.rank) moving_.reset();
  for (const std::uint64_t number : lane_.tickets_of(event.rank))
    finish(number, event.cause, now, effects);
  std::vector<MemoryKey> own;
  for (const MemoryEntry& entry : memory_.entries()) {
    if (entry.key.owner == event.rank) own.push_back(entry.key);
  }
  for (const MemoryKey& key : own) {
    const auto removed = memory_.remove(key);
    TROUPE_CHECK(removed, "lane {}: {}", name_, removed.error().to_string());
  }
}

void LaneCore::on(const AskExpired& event, TimePoint now, Effects& effects) {
  const auto found = std::find_if(asks_.begin(), asks_.end(), [&](const auto& ask) {
    return ask.second.request == event.request;
  });
  if (found == asks_.end()) return;
  const std::uint64_t number = found->first;
  finish(number, overdue(found->second, number, now), now, effects);
}

Error LaneCore::overdue(const Ask& ask, std::uint64_t number, TimePoint now) const {
  const auto& holder = lane_.holder();
  std::string state;
  if (holder && holder->number == number) {
    state = moving_ ? fmt::format("its memory is not in place: {} of {} is not done",
                                  move_name(moving_->what.kind), moving_->what.key.to_string())
                    : "its memory is not in place";
  } else if (holder) {
    state = fmt::format("{} holds it for {} with ticket {} for {:.3f} s", holder->rank,
                        holder->phase, holder->number, seconds(now - holder->since));
  } else {
    state = fmt::format("the line is at ticket {}, which nobody has shown for {:.3f} s",
                        lane_.next(), seconds(now - next_since_));
  }
  return make_error(ErrorCode::kDeadline, "lane {}: ticket {} did not get its turn for {}; {}",
                    name_, number, ask.phase.name, state);
}

void LaneCore::on(const MoveEnded& event, TimePoint now, Effects& effects) {
  if (!moving_ || moving_->move != event.move) return;  // its owner or its turn is gone
  const Moving moving = *std::exchange(moving_, std::nullopt);
  const bool wanted = lane_.holder() && lane_.holder()->number == moving.number && !in_phase_;
  if (!event.failure) {
    // The entry may have been removed meanwhile; the next plan sees what is left.
    const auto applied = memory_.apply(moving.what);
    if (applied || applied.error().code == ErrorCode::kNotFound || !wanted) return;
    finish(moving.number, applied.error(), now, effects);
    return;
  }
  // An owner that has taken its entry back has nothing to move any more.
  if (!wanted || memory_.find(moving.what.key) == nullptr) return;
  Error cause = *event.failure;
  const ErrorCode code = cause.code;
  finish(moving.number,
         std::move(cause).wrap(
             code, fmt::format("lane {}: phase {}: cannot {} {} ({})", name_, lane_.holder()->phase,
                               move_name(moving.what.kind), moving.what.key.to_string(),
                               to_string(moving.what.bytes))),
         now, effects);
}

void LaneCore::finish(std::uint64_t number, const Error& cause, TimePoint now, Effects& effects) {
  const bool held = lane_.holder() && lane_.holder()->number == number;
  const bool granted = held && !asks_.contains(number);
  const std::optional<TicketPlace> place = lane_.holder();
  const auto finished = lane_.finish(number);
  if (!finished) {
    // Only a controller that skips far beyond what it was given comes here; the number will be
    // refused as too far ahead when it is shown, too.
    return;
  }
  if (const auto ask = asks_.find(number); ask != asks_.end()) {
    effects.push_back(TurnRefused{ask->second.request, cause});
    asks_.erase(ask);
  }
  if (!held) return;
  if (in_phase_) memory_.leave();
  in_phase_ = false;
  if (granted) effects.push_back(TurnOver{*place, now});
}

void LaneCore::advance(TimePoint now, Effects& effects) {
  // Each round ends a ticket, grants one, or waits: bounded by the tickets that wait.
  for (;;) {
    lane_.grant(now);
    const auto& holder = lane_.holder();
    if (!holder || !asks_.contains(holder->number)) return;
    if (!make_room(now, effects)) {
      if (moving_) return;
      continue;
    }
    const auto ask = asks_.find(holder->number);
    effects.push_back(TurnGranted{ask->second.request});
    asks_.erase(ask);
    return;
  }
}

bool LaneCore::make_room(TimePoint now, Effects& effects) {
  if (moving_) return false;
  const std::uint64_t number = lane_.holder()->number;
  const Ask& ask = asks_.at(number);
  if (!ask.declared) return true;
  auto moves = memory_.plan(ask.phase);
  if (!moves) {
    const ErrorCode code = moves.error().code;
    finish(number, std::move(moves).error().wrap(code, fmt::format("lane {}", name_)), now,
           effects);
    return false;
  }
  if (moves->empty()) {
    const auto entered = memory_.enter(ask.phase);
    TROUPE_CHECK(entered, "lane {}: {}", name_, entered.error().to_string());
    in_phase_ = true;
    return true;
  }
  moving_ = Moving{.move = ++last_move_, .what = moves->front(), .number = number};
  effects.push_back(MoveWanted{moving_->move, moving_->what, ask.phase.name});
  return false;
}

}  // namespace troupe::runtime

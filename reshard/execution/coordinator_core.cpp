#include "reshard/execution/coordinator_core.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::reshard {

namespace {

/// As long as targets give up before the coordinator does.
constexpr Duration kHoldMost = std::chrono::seconds(2);

/// The first of them by name.
std::string names_of(const std::set<Member>& members) {
  constexpr std::size_t kNamed = 16;
  std::string text;
  std::size_t named = 0;
  for (const Member& member : members) {
    if (++named > kNamed) return text + ", …";
    text += (text.empty() ? "" : ", ") + member_text(member);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

CoordinatorCore::CoordinatorCore(CoordinatorOptions options) : options_(std::move(options)) {
  TROUPE_CHECK(options_.id.epoch != 0, "publication: epoch 0");
}

std::vector<CoordinatorEffect> CoordinatorCore::start(TimePoint now) {
  Effects effects;
  enter(State::kBeginning, now, effects);
  return effects;
}

Duration CoordinatorCore::within() const {
  if (state_ == State::kBeginning) return options_.begin_within;
  if (state_ == State::kReceiving) return options_.receive_within;
  return options_.commit_within;
}

void CoordinatorCore::enter(State state, TimePoint now, Effects& effects) {
  state_ = state;
  until_ = now + within();
  repeat_at_ = now + options_.repeat_every;
  waiting_.clear();
  for (const Member& member : options_.members) {
    if (lost_.count(member) != 0) continue;
    if (state == State::kReceiving && member.side == Side::kSource && !options_.sources_send)
      continue;
    waiting_.insert(member);
  }
  for (const Member& member : waiting_) command(member, effects);
  advance(now, effects);
}

void CoordinatorCore::command(const Member& to, Effects& effects) {
  Command command;
  command.id = options_.id;
  command.checks = options_.checks;
  command.within = within();
  switch (state_) {
    case State::kBeginning:
      command.kind = CommandKind::kBegin;
      // Weights stay frozen until the commit at the latest.
      command.within = options_.begin_within + options_.receive_within + options_.commit_within;
      break;
    case State::kReceiving:
      command.kind = CommandKind::kReceive;
      // Targets give up first: they know whose bytes are missing.
      command.within -= std::min<Duration>(command.within / 4, kHoldMost);
      for (const auto& [member, address] : addresses_) command.members.push_back({member, address});
      break;
    case State::kCommitting:
      command.kind = CommandKind::kCommit;
      break;
    case State::kAborting:
      command.kind = CommandKind::kAbort;
      command.cause = error_;
      break;
    case State::kDone:
      return;
  }
  effects.emplace_back(SendCommand{to, std::move(command)});
}

std::vector<CoordinatorEffect> CoordinatorCore::step(const CoordinatorEvent& event, TimePoint now) {
  Effects effects;
  if (state_ == State::kDone) return effects;
  if (const auto* reply = std::get_if<Reply>(&event))
    on_reply(*reply, now, effects);
  else if (const auto* lost = std::get_if<MemberLost>(&event))
    on_lost(*lost, now, effects);
  on_tick(now, effects);
  return effects;
}

void CoordinatorCore::on_reply(const Reply& reply, TimePoint now, Effects& effects) {
  if (reply.epoch != options_.id.epoch || waiting_.count(reply.from) == 0) return;
  if (reply.kind == ReplyKind::kFailed) {
    const CommandKind asked = state_ == State::kBeginning    ? CommandKind::kBegin
                              : state_ == State::kReceiving  ? CommandKind::kReceive
                              : state_ == State::kCommitting ? CommandKind::kCommit
                                                             : CommandKind::kAbort;
    if (reply.to != asked) return;  // a command that came twice, or too late
    waiting_.erase(reply.from);
    Error cause =
        reply.error
            ? *reply.error
            : Error{.code = ErrorCode::kInternal,
                    .message = fmt::format("{}: failed without a reason", member_text(reply.from)),
                    .origin = {},
                    .causes = {}};
    if (state_ == State::kReceiving && reply.waited_for) {
      held_[reply.from] = {*reply.waited_for, std::move(cause), now + kHoldMost};
      return settle(now, effects);
    }
    return fail_with(std::move(cause), now, effects);
  }
  const bool fits = (state_ == State::kBeginning && reply.kind == ReplyKind::kReady) ||
                    (state_ == State::kReceiving && reply.kind == ReplyKind::kVerified) ||
                    (state_ == State::kCommitting && reply.kind == ReplyKind::kCommitted) ||
                    (state_ == State::kAborting && reply.kind == ReplyKind::kAborted);
  if (!fits) return;  // an answer to an earlier step that was repeated
  if (state_ == State::kBeginning) addresses_[reply.from] = reply.address;
  if (state_ == State::kReceiving && reply.from.side == Side::kTarget)
    outcome_.received[reply.from] = reply.received;
  if (state_ == State::kCommitting && reply.from.side == Side::kTarget)
    outcome_.committed.insert(reply.from);
  waiting_.erase(reply.from);
  if (!held_.empty()) return settle(now, effects);
  advance(now, effects);
}

void CoordinatorCore::settle(TimePoint now, Effects& effects) {
  for (const auto& [member, held] : held_) {
    // From one who waited to whom it waited for, and so on; at most once around.
    const Held* last = &held;
    for (std::size_t steps = 0; steps < held_.size(); ++steps) {
      const auto next = held_.find(last->waited_for);
      if (next == held_.end()) break;
      last = &next->second;
    }
    if (waiting_.count(last->waited_for) == 0 || now >= held.until)
      return fail_with(Error(last->error), now, effects);
  }
}

void CoordinatorCore::on_lost(const MemberLost& lost, TimePoint now, Effects& effects) {
  if (!lost_.insert(lost.member).second) return;
  const bool asked = waiting_.erase(lost.member) != 0;
  // Once all is verified nobody needs a source; before, its bytes are missing even if others ask.
  const bool matters = state_ == State::kBeginning || state_ == State::kReceiving ||
                       (state_ == State::kCommitting && asked && lost.member.side == Side::kTarget);
  if (!matters) return advance(now, effects);
  fail_with(Error(lost.cause)
                .wrap(ErrorCode::kRankDead, fmt::format("{}: is gone", member_text(lost.member))),
            now, effects);
}

void CoordinatorCore::fail_with(Error error, TimePoint now, Effects& effects) {
  if (!error_) error_ = std::move(error);
  held_.clear();
  if (state_ == State::kBeginning || state_ == State::kReceiving)
    return enter(State::kAborting, now, effects);
  if (state_ == State::kAborting) return advance(now, effects);
  // Decided: the others go on. Whoever answered is not waited for.
  std::erase_if(waiting_, [&](const Member& one) { return lost_.count(one) != 0; });
  advance(now, effects);
}

void CoordinatorCore::advance(TimePoint now, Effects& effects) {
  if (state_ == State::kDone || !waiting_.empty()) return;
  switch (state_) {
    case State::kBeginning:
      return enter(State::kReceiving, now, effects);
    case State::kReceiving:
      return enter(State::kCommitting, now, effects);
    case State::kCommitting:
      if (error_) error_ = std::move(*error_).wrap(ErrorCode::kConflict, who_serves());
      [[fallthrough]];
    case State::kAborting:
      state_ = State::kDone;
      effects.emplace_back(FinishPublication{error_});
      return;
    case State::kDone:
      return;
  }
}

/// After a commit that not everybody has answered.
std::string CoordinatorCore::who_serves() const {
  std::set<Member> others;
  for (const Member& member : options_.members) {
    if (member.side == Side::kTarget && outcome_.committed.count(member) == 0)
      others.insert(member);
  }
  return fmt::format("publication of version {}: {} targets serve it: {}; {} did not say so: {}",
                     options_.id.version.value, outcome_.committed.size(),
                     names_of(outcome_.committed), others.size(), names_of(others));
}

void CoordinatorCore::on_tick(TimePoint now, Effects& effects) {
  if (state_ == State::kDone) return;
  if (now < until_) {
    settle(now, effects);
    if (now < repeat_at_) return;
    repeat_at_ = now + options_.repeat_every;
    for (const Member& member : waiting_) command(member, effects);
    return;
  }
  constexpr std::string_view kSteps[] = {"begin", "receive", "commit", "abort", "end"};
  Error late{.code = ErrorCode::kDeadline,
             .message = fmt::format("publication of version {}: no answer to {} from {}",
                                    options_.id.version.value,
                                    kSteps[static_cast<std::size_t>(state_)], names_of(waiting_)),
             .origin = {},
             .causes = {}};
  // What they say who waited for those that do not answer.
  if (!held_.empty()) {
    const Error& first = held_.begin()->second.error;
    late = Error(first).wrap(ErrorCode::kDeadline, std::move(late.message));
  }
  const bool before = state_ == State::kBeginning || state_ == State::kReceiving;
  if (!before) waiting_.clear();  // nothing more can be done for them
  // A member that does not answer an abort is fenced by the next epoch.
  if (state_ == State::kAborting) return advance(now, effects);
  fail_with(std::move(late), now, effects);
}

TimePoint CoordinatorCore::due() const {
  TimePoint due = std::min(until_, repeat_at_);
  for (const auto& [member, held] : held_) due = std::min(due, held.until);
  return due;
}

}  // namespace troupe::reshard

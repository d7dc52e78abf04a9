// Events of ranks and of attempts.

#include "actors/pacing/dispatch_machine.hpp"

#include <algorithm>

namespace troupe::actors {

DispatchEffects DispatchMachine::step(const DispatchEvent& event, TimePoint now) {
  now_ = std::max(now_, now);
  effects_.clear();
  std::visit([this](const auto& one) { on(one); }, event);
  fill();
  announce_released();
  return std::move(effects_);
}

// ---- ranks ---------------------------------------------------------------------------------

void DispatchMachine::on(const RankJoined& event) {
  if (router_.knows(event.rank)) on(RankLost{event.rank});
  const auto ranks = static_cast<std::int64_t>(router_.ranks().size());
  if (event.samples_max >= 1 && event.tokens_max >= 1 && ranks < options_.ranks_max) {
    router_.join(event.rank, event.samples_max, event.tokens_max);
    return;
  }
  emit(RankRefused{.rank = event.rank,
                   .error = {.code = ErrorCode::kResourceExhausted,
                             .message = fmt::format(
                                 "rollout rank {}: {} samples, {} tokens, {} ranks of at most {}",
                                 event.rank.value, event.samples_max, event.tokens_max, ranks,
                                 options_.ranks_max),
                             .origin = {},
                             .causes = {}}});
}

void DispatchMachine::on(const RankLost& event) {
  if (!router_.knows(event.rank)) return;
  std::vector<std::uint64_t> lost;
  for (const auto& [number, attempt] : attempts_)
    if (attempt.rank == event.rank) lost.push_back(number);
  for (const std::uint64_t number : lost) {
    const auto place = attempts_.find(number);
    if (place == attempts_.end()) continue;
    const DispatchAttempt attempt = place->second;
    retire(number);
    if (attempt.ghost) continue;
    DispatchSample& sample = *find(attempt.sample);
    account_.waste(WasteReason::kFailed, attempt.tokens - attempt.from);
    if (!sample.live.empty()) {
      settle(sample);
    } else if (++sample.rank_losses > options_.rank_losses_max) {
      drop(attempt.sample.group, CancelReason::kFailed);
    } else {
      go_on_after(attempt.sample, attempt.stopping ? std::optional(attempt.cause) : std::nullopt);
    }
  }
  router_.lose(event.rank);
  announced_.erase(event.rank);
  // Those that were released may be all that is left.
  router_.recall_all();
  announced_.clear();
}

void DispatchMachine::on(const RankSuspected& event) {
  router_.suspect(event.rank, event.suspected);
  if (!event.suspected) return;
  router_.recall_all();
  announced_.clear();
}

void DispatchMachine::on(const RankPulls& event) {
  router_.pull(event.rank, event.samples, event.tokens);
}

// ---- attempts ------------------------------------------------------------------------------

void DispatchMachine::report(DispatchAttempt& attempt, std::int64_t tokens) {
  constexpr std::int64_t kTokensMax = std::int64_t{1} << 40;
  attempt.heard = now_;
  const std::int64_t more = std::min(tokens, kTokensMax) - attempt.tokens;
  if (more <= 0) return;
  attempt.tokens += more;
  account_.generated += more;
  if (attempt.ghost) account_.waste(attempt.ghost_reason, more);
}

/// The attempt is over: its rank no longer runs it, its sample no longer waits for it.
void DispatchMachine::retire(std::uint64_t number) {
  const auto place = attempts_.find(number);
  const DispatchAttempt& attempt = place->second;
  router_.end(attempt.rank, attempt.sample.group);
  if (!attempt.ghost) {
    DispatchSample& sample = *find(attempt.sample);
    std::erase(sample.live, number);
    sample.ran = std::max(sample.ran, ran(attempt));
  }
  attempts_.erase(place);
}

/// The attempt's partial, which is stored, is what the sample has now.
void DispatchMachine::fold(DispatchSample& sample, std::uint64_t number) {
  DispatchAttempt& attempt = attempts_.at(number);
  sample.saved = attempt.tokens;
  sample.saved_attempt = number;
  attempt.from = attempt.tokens;
}

void DispatchMachine::settle(DispatchSample& sample) {
  if (sample.live.size() != 1) return;
  // Without a report there is no partial under its number.
  const std::uint64_t alone = sample.live.front();
  if (attempts_.at(alone).tokens > sample.saved) fold(sample, alone);
}

void DispatchMachine::stop(std::uint64_t number, StopCause cause) {
  DispatchAttempt& attempt = attempts_.at(number);
  if (attempt.stopping) return;
  attempt.stopping = true;
  attempt.cause = cause;
  attempt.stop_by = now_ + options_.stop_within;
  emit(StopAttempt{
      .rank = attempt.rank, .sample = attempt.sample, .attempt = number, .cause = cause});
}

void DispatchMachine::make_ghost(std::uint64_t number, StopCause cause, WasteReason reason) {
  stop(number, cause);
  DispatchAttempt& attempt = attempts_.at(number);
  DispatchSample& sample = *find(attempt.sample);
  std::erase(sample.live, number);
  sample.ran = std::max(sample.ran, ran(attempt));
  attempt.ghost = true;
  attempt.ghost_reason = reason;
  account_.waste(reason, attempt.tokens - attempt.from);
}

void DispatchMachine::ghost_others(DispatchSample& sample, std::uint64_t kept) {
  const std::vector<std::uint64_t> live = sample.live;
  for (const std::uint64_t number : live)
    if (number != kept) make_ghost(number, StopCause::kHedge, WasteReason::kHedge);
}

void DispatchMachine::on(const AttemptProgress& event) {
  const auto place = attempts_.find(event.attempt);
  if (place == attempts_.end()) return;
  report(place->second, event.tokens);
  if (!place->second.ghost) settle(*find(place->second.sample));
}

void DispatchMachine::on(const AttemptEnded& event) {
  const auto place = attempts_.find(event.attempt);
  if (place == attempts_.end()) return;
  report(place->second, event.tokens);
  const SampleId id = place->second.sample;
  if (place->second.ghost) return retire(event.attempt);
  DispatchSample& sample = *find(id);
  switch (event.outcome) {
    case AttemptOutcome::kFinished:
      ghost_others(sample, event.attempt);
      fold(sample, event.attempt);
      retire(event.attempt);
      return finish_sample(id);
    case AttemptOutcome::kInterrupted:
      return interrupted(event.attempt);
    case AttemptOutcome::kFailed: {
      const DispatchAttempt attempt = place->second;
      retire(event.attempt);
      account_.waste(WasteReason::kFailed, attempt.tokens - attempt.from);
      // What was folded came from a partial that is stored: it counts.
      if (!sample.live.empty()) return settle(sample);
      return retry(id, CancelReason::kFailed);
    }
  }
}

/// The attempt gave its partial back, asked or not.
void DispatchMachine::interrupted(std::uint64_t number) {
  const DispatchAttempt attempt = attempts_.at(number);
  DispatchSample& sample = *find(attempt.sample);
  if (sample.live.size() > 1) {
    account_.waste(WasteReason::kHedge, attempt.tokens - attempt.from);
    retire(number);
    return settle(sample);
  }
  fold(sample, number);
  retire(number);
  if (attempt.stopping && attempt.cause == StopCause::kStall) sample.avoid = attempt.rank;
  go_on_after(attempt.sample, attempt.stopping ? std::optional(attempt.cause) : std::nullopt);
}

/// A sample that nothing runs any more: what the stop was for decides where it goes.
void DispatchMachine::go_on_after(SampleId id, std::optional<StopCause> cause) {
  DispatchSample& sample = *find(id);
  if (cause == StopCause::kDeadline) {
    // Without a token there is nothing to learn from.
    if (sample.saved == 0) return drop(id.group, CancelReason::kDeadline);
    sample.cut_short = true;
    return finish_sample(id);
  }
  if (cause == StopCause::kCut && options_.cut == CutAction::kRestart)
    discard(sample, WasteReason::kRestart);
  enqueue(id);
}

void DispatchMachine::retry(SampleId id, CancelReason reason) {
  DispatchSample& sample = *find(id);
  if (++sample.retries > options_.retries_max) return drop(id.group, reason);
  if (sample.stage == SampleStage::kRunning) enqueue(id);
}

}  // namespace troupe::actors

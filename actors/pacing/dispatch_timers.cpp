// Deadlines: asked stops, silent attempts, long samples, rewards that do not come.

#include "actors/pacing/dispatch_machine.hpp"

#include <algorithm>

namespace troupe::actors {

Duration DispatchMachine::ran(const DispatchAttempt& attempt) const {
  return attempt.ran_before + (now_ - attempt.started);
}

void DispatchMachine::on(const DispatchTick&) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, attempt] : attempts_) numbers.push_back(number);
  for (const std::uint64_t number : numbers) check_attempt(number);
  check_scores();
}

void DispatchMachine::check_attempt(std::uint64_t number) {
  const auto place = attempts_.find(number);
  if (place == attempts_.end()) return;
  const DispatchAttempt& attempt = place->second;
  if (attempt.stopping) {
    if (now_ < attempt.stop_by) return;
    // Its rank may be stuck; whatever it says about this attempt later changes nothing.
    return attempt.ghost ? retire(number) : interrupted(number);
  }
  if (options_.sample_deadline != Duration::zero() && ran(attempt) >= options_.sample_deadline)
    return check_sample_deadline(number);
  if (options_.stall_after == Duration::zero() || now_ - attempt.heard < options_.stall_after)
    return;
  DispatchSample& sample = *find(attempt.sample);
  if (sample.live.size() > 1)
    return make_ghost(number, StopCause::kStall, WasteReason::kHedge), settle(sample);
  if (++sample.retries > options_.retries_max)
    return drop(attempt.sample.group, CancelReason::kFailed);
  stop(number, StopCause::kStall);
}

void DispatchMachine::check_sample_deadline(std::uint64_t number) {
  const SampleId id = attempts_.at(number).sample;
  DispatchSample& sample = *find(id);
  if (options_.on_deadline == DeadlineAction::kDrop ||
      (options_.on_deadline == DeadlineAction::kRetry && ++sample.retries > options_.retries_max))
    return drop(id.group, CancelReason::kDeadline);
  // The attempt with more tokens is the one to keep; both began alike.
  std::uint64_t kept = sample.live.front();
  for (const std::uint64_t one : sample.live)
    if (attempts_.at(one).tokens > attempts_.at(kept).tokens) kept = one;
  ghost_others(sample, kept);
  settle(sample);
  if (options_.on_deadline == DeadlineAction::kTruncate) return stop(kept, StopCause::kDeadline);
  attempts_.at(kept).started = now_;  // the next attempt has the whole time again
  attempts_.at(kept).ran_before = Duration::zero();
  sample.ran = Duration::zero();
  stop(kept, StopCause::kStall);
}

void DispatchMachine::check_scores() {
  if (options_.score_deadline == Duration::zero()) return;
  std::vector<SampleId> late;
  for (const auto& [number, group] : groups_)
    for (std::uint32_t i = 0; i < group.samples.size(); ++i)
      if (group.samples[i].stage == SampleStage::kScoring &&
          now_ - group.samples[i].scoring_since >= options_.score_deadline)
        late.push_back({number, i});
  for (const SampleId id : late) {
    if (find(id) == nullptr) continue;
    retry(id, CancelReason::kDeadline);
    if (find(id) != nullptr) ask_score(id);
  }
}

std::optional<TimePoint> DispatchMachine::next_wake() const {
  std::optional<TimePoint> wake;
  const auto at = [&wake](TimePoint time) { wake = wake ? std::min(*wake, time) : time; };
  for (const auto& [number, attempt] : attempts_) {
    if (attempt.stopping) {
      at(attempt.stop_by);
      continue;
    }
    if (options_.stall_after != Duration::zero()) at(attempt.heard + options_.stall_after);
    if (options_.sample_deadline != Duration::zero())
      at(attempt.started + options_.sample_deadline - attempt.ran_before);
    const TimePoint hedge_at = attempt.started + options_.hedge_after;
    if (options_.hedge_after != Duration::zero() && hedge_at > now_) at(hedge_at);
  }
  if (options_.score_deadline != Duration::zero())
    for (const auto& [number, group] : groups_)
      for (const DispatchSample& sample : group.samples)
        if (sample.stage == SampleStage::kScoring)
          at(sample.scoring_since + options_.score_deadline);
  return wake;
}

}  // namespace troupe::actors

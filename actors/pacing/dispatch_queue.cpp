// Who starts where: the queue, hedged requests, and the packing of tails.

#include "actors/pacing/dispatch_machine.hpp"

#include <algorithm>

namespace troupe::actors {
namespace {

/// Waiting samples that are looked at for one that fits, before the first is waited for.
constexpr int kScanMax = 16;

SampleId id_of(const WaitKey& key) { return {std::get<2>(key), std::get<3>(key)}; }

}  // namespace

WaitKey DispatchMachine::key_of(SampleId id, const DispatchSample& sample,
                                DispatchGroup& group) const {
  if (!options_.longest_first) return {0, 0, id.group, id.index};
  if (!estimate_.knows(group.length) && !group.probed) {
    group.probed = true;  // its length will tell those of the others
    return {0, 0, id.group, id.index};
  }
  return {1, -estimate_.remaining(group.length, sample.saved), id.group, id.index};
}

void DispatchMachine::enqueue(SampleId id) {
  DispatchGroup& group = groups_.at(id.group);
  DispatchSample& sample = group.samples[id.index];
  if (!group.active) {
    sample.stage = SampleStage::kParked;
    return;
  }
  sample.stage = SampleStage::kWaiting;
  sample.key = key_of(id, sample, group);
  sample.queued_at = starts_;
  waiting_.insert(sample.key);
  waiting_by_issue_.insert(id);
}

void DispatchMachine::unqueue(SampleId id, DispatchSample& sample) {
  if (sample.stage != SampleStage::kWaiting) return;
  waiting_.erase(sample.key);
  waiting_by_issue_.erase(id);
  // A probe that leaves the queue unstarted must not be waited for.
  if (std::get<0>(sample.key) == 0) groups_.at(id.group).probed = false;
}

/// The group's estimate changed.
void DispatchMachine::rekey(std::uint64_t number) {
  DispatchGroup& group = groups_.at(number);
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    DispatchSample& sample = group.samples[i];
    if (sample.stage != SampleStage::kWaiting) continue;
    waiting_.erase(sample.key);
    sample.key = key_of({number, i}, sample, group);
    waiting_.insert(sample.key);
  }
}

std::int64_t DispatchMachine::need_of(const DispatchGroup& group,
                                      const DispatchSample& sample) const {
  return group.prompt_tokens + estimate_.length(group.length, sample.saved);
}

void DispatchMachine::start(SampleId id, RankId rank) {
  DispatchGroup& group = groups_.at(id.group);
  DispatchSample& sample = group.samples[id.index];
  const std::uint64_t number = next_attempt_++;
  const std::int64_t need = need_of(group, sample);
  if (sample.started) account_.recomputed += group.prompt_tokens + sample.saved;
  if (sample.saved > 0) ++account_.resumed;
  sample.started = true;
  sample.stage = SampleStage::kRunning;
  sample.live.push_back(number);
  sample.avoid.reset();
  router_.start(rank, id.group, need);
  attempts_.emplace(number, DispatchAttempt{.sample = id,
                                            .rank = rank,
                                            .from = sample.saved,
                                            .tokens = sample.saved,
                                            .need = need,
                                            .started = now_,
                                            .heard = now_,
                                            .ran_before = sample.ran});
  ++starts_;
  emit(StartSample{.rank = rank,
                   .sample = id,
                   .attempt = number,
                   .from_attempt = sample.saved_attempt,
                   .from_tokens = sample.saved});
}

bool DispatchMachine::try_start(SampleId id) {
  DispatchGroup& group = groups_.at(id.group);
  DispatchSample& sample = group.samples[id.index];
  const std::int64_t need = need_of(group, sample);
  auto rank = router_.choose(id.group, need, group.prompt_tokens, sample.avoid);
  if (!rank && sample.avoid) rank = router_.choose(id.group, need, group.prompt_tokens, {});
  if (!rank) return false;
  waiting_.erase(sample.key);
  waiting_by_issue_.erase(id);
  start(id, *rank);
  return true;
}

bool DispatchMachine::start_one() {
  const SampleId oldest = *waiting_by_issue_.begin();
  // It was passed often enough: nothing starts before it does.
  if (starts_ - find(oldest)->queued_at > options_.overtakes_max) return try_start(oldest);
  int seen = 0;
  for (const WaitKey& key : waiting_) {
    if (try_start(id_of(key))) return true;
    if (++seen == kScanMax) break;
  }
  return false;
}

void DispatchMachine::fill() {
  while (!waiting_.empty() && router_.any_credit() && start_one()) {
  }
  if (!waiting_.empty()) return;
  hedge();
  repack();
}

/// Ranks with nothing else to do run the samples that run longest, too.
void DispatchMachine::hedge() {
  if (options_.hedge_after == Duration::zero() || !router_.any_credit()) return;
  std::vector<std::uint64_t> slow;
  for (const auto& [number, attempt] : attempts_)
    if (!attempt.ghost && !attempt.stopping && now_ - attempt.started >= options_.hedge_after &&
        find(attempt.sample)->live.size() == 1)
      slow.push_back(number);
  for (const std::uint64_t number : slow) {
    const DispatchAttempt& attempt = attempts_.at(number);
    const DispatchGroup& group = groups_.at(attempt.sample.group);
    const DispatchSample& sample = group.samples[attempt.sample.index];
    const auto rank = router_.choose(attempt.sample.group, need_of(group, sample),
                                     group.prompt_tokens, attempt.rank);
    if (rank) start(attempt.sample, *rank);
  }
}

void DispatchMachine::repack() {
  if (options_.repack_below == 0) return;
  std::vector<TailSample> tail;
  for (const auto& [number, attempt] : attempts_) {
    if (attempt.ghost) continue;
    if (std::cmp_equal(tail.size(), options_.repack_below)) return;  // more than a tail
    const DispatchSample& sample = *find(attempt.sample);
    const bool pinned =
        attempt.stopping || sample.live.size() > 1 || sample.moves >= options_.moves_max;
    tail.push_back({.attempt = number,
                    .rank = attempt.rank,
                    .tokens = std::max(attempt.need, attempt.tokens),
                    .pinned = pinned});
  }
  if (tail.empty()) return;
  std::vector<RepackRank> ranks;
  for (const auto& [rank, load] : router_.ranks())
    if (!load.suspected && !load.released)
      ranks.push_back(
          {.rank = rank, .samples_max = load.samples_max, .tokens_max = load.tokens_max});
  const RepackPlan plan = plan_repack(ranks, tail);
  for (const RankId rank : plan.freed) router_.release(rank);
  for (const std::uint64_t number : plan.moved) {
    ++find(attempts_.at(number).sample)->moves;
    ++account_.moved;
    stop(number, StopCause::kMove);
  }
}

void DispatchMachine::announce_released() {
  for (const auto& [rank, load] : router_.ranks())
    if (load.released && load.running == 0 && announced_.insert(rank).second)
      emit(RankReleased{.rank = rank});
}

}  // namespace troupe::actors

// Groups, from issue to their one end.

#include "actors/pacing/dispatch_machine.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::actors {

DispatchSample* DispatchMachine::find(SampleId id) {
  const auto place = groups_.find(id.group);
  if (place == groups_.end() || id.index >= place->second.samples.size()) return nullptr;
  return &place->second.samples[id.index];
}

void DispatchMachine::on(const GroupIssued& event) {
  const auto samples = static_cast<std::size_t>(options_.group_size + options_.samples_extra);
  const auto open = static_cast<std::int64_t>(groups_.size());
  const bool seeds_fit = event.samples.empty() || event.samples.size() == samples;
  if (event.group < next_group_ || open >= options_.groups_max || !seeds_fit ||
      event.prompt_tokens < 1) {
    emit(GroupRefused{.group = event.group,
                      .error = {.code = open >= options_.groups_max ? ErrorCode::kResourceExhausted
                                                                    : ErrorCode::kInvalidArgument,
                                .message = fmt::format(
                                    "rollout: group {}: numbers from {} on are free, {} of {} "
                                    "groups are open, {} samples (wanted {}), {} prompt tokens",
                                    event.group, next_group_, open, options_.groups_max,
                                    event.samples.size(), samples, event.prompt_tokens),
                                .origin = {},
                                .causes = {}}});
    return;
  }
  next_group_ = event.group + 1;
  DispatchGroup& group = groups_[event.group];
  group.prompt_tokens = event.prompt_tokens;
  group.length.hint = std::max<std::int64_t>(event.length_hint, 0);
  group.samples.resize(samples);
  group.active = !options_.rounds || (round_open_ && !round_tail_);
  if (group.active) {
    router_.recall_all();
    announced_.clear();
  }
  seed(event.group, group, event.samples);
}

void DispatchMachine::seed(std::uint64_t number, DispatchGroup& group,
                           const std::vector<SampleSeed>& seeds) {
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    DispatchSample& sample = group.samples[i];
    const SampleSeed one = seeds.empty() ? SampleSeed{} : seeds[i];
    sample.saved = std::max<std::int64_t>(one.tokens, 0);
    sample.started = sample.saved > 0 || one.finished;
    account_.generated += sample.saved;
    sample.stage = one.finished ? SampleStage::kScoring : SampleStage::kParked;
    if (one.finished) estimate_.finished(group.length, sample.saved);
  }
  const std::size_t count = group.samples.size();
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!groups_.contains(number)) return;  // enough scores came along
    const SampleId id{number, i};
    const SampleSeed one = seeds.empty() ? SampleSeed{} : seeds[i];
    if (!one.finished)
      enqueue(id);
    else if (one.score)
      scored(id, *one.score);
    else
      ask_score(id);
  }
}

void DispatchMachine::ask_score(SampleId id) {
  DispatchSample& sample = *find(id);
  sample.scoring_since = now_;
  emit(ScoreSample{.sample = id,
                   .from_attempt = sample.saved_attempt,
                   .tokens = sample.saved,
                   .cut_short = sample.cut_short});
}

void DispatchMachine::finish_sample(SampleId id) {
  DispatchSample& sample = *find(id);
  sample.stage = SampleStage::kScoring;
  estimate_.finished(groups_.at(id.group).length, sample.saved);
  rekey(id.group);
  ask_score(id);
}

void DispatchMachine::on(const SampleScored& event) {
  const DispatchSample* sample = find(event.sample);
  if (sample != nullptr && sample->stage == SampleStage::kScoring)
    scored(event.sample, event.score);
}

void DispatchMachine::on(const ScoreFailed& event) {
  const DispatchSample* sample = find(event.sample);
  if (sample == nullptr || sample->stage != SampleStage::kScoring) return;
  retry(event.sample, CancelReason::kFailed);
  if (find(event.sample) != nullptr) ask_score(event.sample);
}

void DispatchMachine::scored(SampleId id, std::int64_t score) {
  DispatchSample& sample = *find(id);
  sample.stage = SampleStage::kDone;
  sample.score = score;
  DispatchGroup& group = groups_.at(id.group);
  group.scored.push_back(id.index);
  if (std::cmp_equal(group.scored.size(), options_.group_size)) conclude(id.group);
}

/// True when the group teaches nothing and may still be replaced.
bool DispatchMachine::refused_for_variance(const DispatchGroup& group) {
  if (!options_.drop_zero_variance) return false;
  const std::int64_t score = group.samples[group.scored.front()].score;
  const bool flat = std::ranges::all_of(
      group.scored, [&](std::uint32_t index) { return group.samples[index].score == score; });
  if (!flat) return false;
  const std::int64_t most = options_.refills_max != 0
                                ? options_.refills_max
                                : 10 * std::max<std::int64_t>(groups_wanted_, 1);
  if (refills_ >= most && options_.on_refills == RefillAction::kKeep) return false;
  ++refills_;
  if (refills_ > most && !starved_) {
    starved_ = true;
    emit(Starved{.error = {.code = ErrorCode::kResourceExhausted,
                           .message = fmt::format(
                               "dynamic sampling: {} groups without variance in one round, at most "
                               "{} may be replaced; the last had {} samples of score {}",
                               refills_, most, group.scored.size(), score),
                           .origin = {},
                           .causes = {}}});
  }
  return true;
}

void DispatchMachine::conclude(std::uint64_t number) {
  if (refused_for_variance(groups_.at(number)))
    drop(number, CancelReason::kZeroVariance);
  else
    complete(number);
}

void DispatchMachine::complete(std::uint64_t number) {
  DispatchGroup& group = groups_.at(number);
  std::vector<std::uint32_t> winners = group.scored;
  std::ranges::sort(winners);
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    DispatchSample& sample = group.samples[i];
    if (std::ranges::binary_search(winners, i)) {
      count_started(sample);
      account_.used += sample.saved;
      bias_.kept.add(sample.saved);
      continue;
    }
    count_started(sample);
    unqueue({number, i}, sample);
    const std::vector<std::uint64_t> live = sample.live;
    for (const std::uint64_t attempt : live)
      make_ghost(attempt, StopCause::kDropped, WasteReason::kRedundant);
    discard(sample, WasteReason::kRedundant);
  }
  const bool active = group.active;
  const bool in_round = options_.rounds && round_open_ && active;
  groups_.erase(number);
  ++complete_;
  emit(GroupComplete{
      .group = number, .samples = std::move(winners), .surplus = options_.rounds && !in_round});
  group_left(active, true);
}

void DispatchMachine::drop(std::uint64_t number, CancelReason reason) {
  DispatchGroup& group = groups_.at(number);
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    DispatchSample& sample = group.samples[i];
    count_started(sample);
    unqueue({number, i}, sample);
    const std::vector<std::uint64_t> live = sample.live;
    for (const std::uint64_t attempt : live)
      make_ghost(attempt, StopCause::kDropped, WasteReason::kDropped);
    discard(sample, WasteReason::kDropped);
  }
  const bool active = group.active;
  groups_.erase(number);
  ++dropped_;
  emit(GroupDropped{.group = number, .reason = reason});
  group_left(active, false);
}

void DispatchMachine::on(const GroupCancelled& event) {
  if (groups_.contains(event.group)) drop(event.group, event.reason);
}

void DispatchMachine::discard(DispatchSample& sample, WasteReason reason) {
  account_.waste(reason, sample.saved);
  sample.saved = 0;
  sample.saved_attempt = 0;
}

void DispatchMachine::count_started(const DispatchSample& sample) {
  if (!sample.started) return;
  std::int64_t length = sample.saved;
  for (const std::uint64_t number : sample.live)
    length = std::max(length, attempts_.at(number).tokens);
  bias_.started.add(length);
}

}  // namespace troupe::actors

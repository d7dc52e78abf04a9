// Rounds: groups run until enough of them are complete, rewards included; the rest is cut.

#include "actors/pacing/dispatch_machine.hpp"

#include <algorithm>

namespace troupe::actors {

void DispatchMachine::on(const RoundOpened& event) {
  refills_ = 0;
  starved_ = false;
  groups_wanted_ = std::max<std::int64_t>(event.groups_wanted, 1);
  if (!options_.rounds) return;
  const bool busy = std::ranges::any_of(groups_, [](const auto& one) { return one.second.active; });
  if (round_open_ && busy) return;
  if (round_open_) end_round();  // it wanted more than there was
  std::vector<std::uint64_t> tail;
  std::vector<std::uint64_t> rest;
  for (const auto& [number, group] : groups_)
    (group.tail && options_.tail_round_groups > 0 ? tail : rest).push_back(number);
  // At the end of the data there is nothing else to run.
  round_tail_ = !tail.empty() &&
                (rest.empty() || std::cmp_greater_equal(tail.size(), options_.tail_round_groups));
  std::vector<std::uint64_t>& chosen = round_tail_ ? tail : rest;
  round_wanted_ = std::max<std::int64_t>(event.groups_wanted, 0);
  if (round_tail_) {
    // All of them run to their end, or the longest would be cut again and again.
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(round_wanted_, 1));
    chosen.resize(std::min(chosen.size(), most));
    round_wanted_ = static_cast<std::int64_t>(chosen.size());
  } else {
    const std::int64_t there = std::min(surplus_, round_wanted_);
    surplus_ -= there;
    round_wanted_ -= there;
  }
  round_open_ = true;
  round_complete_ = 0;
  emit(RoundBegan{.tail = round_tail_, .groups_wanted = round_wanted_});
  router_.recall_all();
  announced_.clear();
  if (round_wanted_ == 0) return end_round();
  for (const std::uint64_t number : chosen) {
    DispatchGroup& group = groups_.at(number);
    group.active = true;
    for (std::uint32_t i = 0; i < group.samples.size(); ++i)
      if (group.samples[i].stage == SampleStage::kParked) enqueue({number, i});
  }
}

/// A group ended: the round may be over with it.
void DispatchMachine::group_left(bool active, bool was_complete) {
  if (!options_.rounds) return;
  const bool in_round = round_open_ && active;
  if (was_complete) ++(in_round ? round_complete_ : surplus_);
  if (!round_open_) return;
  const bool any = std::ranges::any_of(groups_, [](const auto& one) { return one.second.active; });
  if (round_tail_ ? !any : round_complete_ >= round_wanted_) end_round();
}

void DispatchMachine::end_round() {
  round_open_ = false;
  std::vector<std::uint64_t> losers;
  for (const auto& [number, group] : groups_)
    if (group.active) losers.push_back(number);
  emit(RoundEnded{.complete = round_complete_, .cut = static_cast<std::int64_t>(losers.size())});
  for (const std::uint64_t number : losers) cut(number);
}

void DispatchMachine::cut(std::uint64_t number) {
  if (options_.cut == CutAction::kDrop) return drop(number, CancelReason::kCut);
  DispatchGroup& group = groups_.at(number);
  group.active = false;
  group.tail = options_.tail_round_groups > 0;
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    DispatchSample& sample = group.samples[i];
    if (sample.stage == SampleStage::kWaiting) {
      park({number, i}, sample);
    } else if (sample.stage == SampleStage::kRunning) {
      ghost_others(sample, sample.live.front());
      settle(sample);
      stop(sample.live.front(), StopCause::kCut);
    }
  }
}

void DispatchMachine::park(SampleId id, DispatchSample& sample) {
  unqueue(id, sample);
  sample.stage = SampleStage::kParked;
  if (options_.cut == CutAction::kRestart) discard(sample, WasteReason::kRestart);
}

}  // namespace troupe::actors

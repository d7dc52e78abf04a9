// Views of the dispatcher, and what must always hold.

#include "actors/pacing/dispatch_machine.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>

namespace troupe::actors {

DispatchCounts DispatchMachine::counts() const {
  DispatchCounts counts;
  counts.groups_open = static_cast<std::int64_t>(groups_.size());
  counts.groups_complete = complete_;
  counts.groups_dropped = dropped_;
  for (const auto& [number, group] : groups_) {
    if (group.tail && !group.active) ++counts.tail_groups;
    for (const DispatchSample& sample : group.samples) {
      counts.waiting += sample.stage == SampleStage::kWaiting ? 1 : 0;
      counts.running += sample.stage == SampleStage::kRunning ? 1 : 0;
      counts.parked += sample.stage == SampleStage::kParked ? 1 : 0;
      counts.scoring += sample.stage == SampleStage::kScoring ? 1 : 0;
    }
  }
  for (const auto& [number, attempt] : attempts_)
    ++(attempt.ghost ? counts.ghosts : counts.attempts);
  return counts;
}

std::string DispatchMachine::explain(TimePoint now) const {
  if (groups_.empty()) return "no group is open";
  const auto& [number, group] = *groups_.begin();
  std::string text = fmt::format("oldest group {}: {} of {} samples scored", number,
                                 group.scored.size(), options_.group_size);
  for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
    const DispatchSample& sample = group.samples[i];
    switch (sample.stage) {
      case SampleStage::kDone:
        continue;
      case SampleStage::kScoring:
        text += fmt::format("; sample {} waits for its reward for {:.1f} s", i,
                            seconds(now - sample.scoring_since));
        continue;
      case SampleStage::kParked:
        text += fmt::format("; sample {} waits for a {}round", i, group.tail ? "tail " : "");
        continue;
      case SampleStage::kWaiting:
        text += fmt::format("; sample {} waits for room for {} tokens on {} ranks", i,
                            need_of(group, sample), router_.ranks().size());
        continue;
      case SampleStage::kRunning: {
        const DispatchAttempt& attempt = attempts_.at(sample.live.front());
        text += fmt::format(
            "; sample {} runs on rank {} for {:.1f} s, {} tokens, heard {:.1f} s "
            "ago{}",
            i, attempt.rank.value, seconds(now - attempt.started), attempt.tokens,
            seconds(now - attempt.heard), attempt.stopping ? ", stopping" : "");
        continue;
      }
    }
  }
  return text;
}

void DispatchMachine::check_invariants() const {
  std::int64_t under_way = 0;
  std::size_t waiting = 0;
  std::map<std::uint64_t, SampleId> live;
  for (const auto& [number, group] : groups_) {
    TROUPE_CHECK(std::cmp_less(group.scored.size(), options_.group_size),
                 "dispatch: group {} has {} scores and is open", number, group.scored.size());
    for (std::uint32_t i = 0; i < group.samples.size(); ++i) {
      const DispatchSample& sample = group.samples[i];
      const SampleId id{number, i};
      under_way += sample.saved;
      const bool runs = sample.stage == SampleStage::kRunning;
      TROUPE_CHECK(runs ? sample.live.size() == 1 || sample.live.size() == 2 : sample.live.empty(),
                   "dispatch: group {} sample {}: stage {}, {} attempts", number, i,
                   static_cast<int>(sample.stage), sample.live.size());
      for (const std::uint64_t one : sample.live) live.emplace(one, id);
      const bool waits = sample.stage == SampleStage::kWaiting;
      waiting += waits ? 1 : 0;
      TROUPE_CHECK(waits == waiting_by_issue_.contains(id) &&
                       (!waits || (waiting_.contains(sample.key) && group.active)),
                   "dispatch: group {} sample {}: stage {}, queued {}", number, i,
                   static_cast<int>(sample.stage), waiting_by_issue_.contains(id));
      TROUPE_CHECK(sample.stage != SampleStage::kParked || !group.active,
                   "dispatch: group {} sample {} is parked, its group runs", number, i);
    }
  }
  TROUPE_CHECK(waiting == waiting_.size() && waiting == waiting_by_issue_.size(),
               "dispatch: {} wait, {} and {} are queued", waiting, waiting_.size(),
               waiting_by_issue_.size());
  std::map<RankId, std::int64_t> running;
  for (const auto& [number, attempt] : attempts_) {
    ++running[attempt.rank];
    TROUPE_CHECK(router_.knows(attempt.rank), "dispatch: attempt {} on rank {}, which is gone",
                 number, attempt.rank.value);
    TROUPE_CHECK(attempt.ghost != live.contains(number), "dispatch: attempt {} of nobody", number);
    if (attempt.ghost) continue;
    TROUPE_CHECK(attempt.from == find_saved(attempt.sample), "dispatch: attempt {} began at {}",
                 number, attempt.from);
    under_way += attempt.tokens - attempt.from;
  }
  for (const auto& [rank, load] : router_.ranks())
    TROUPE_CHECK(load.running == running[rank], "dispatch: rank {} runs {}, counted {}", rank.value,
                 load.running, running[rank]);
  TROUPE_CHECK(account_.under_way() == under_way,
               "dispatch: {} tokens generated, {} used, {} wasted, counted {} under way",
               account_.generated, account_.used, account_.wasted_total(), under_way);
  TROUPE_CHECK(static_cast<std::int64_t>(groups_.size()) <= options_.groups_max,
               "dispatch: {} groups", groups_.size());
}

std::int64_t DispatchMachine::find_saved(SampleId id) const {
  return groups_.at(id.group).samples[id.index].saved;
}

}  // namespace troupe::actors

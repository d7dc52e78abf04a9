#pragma once

// Ranks, rewards and a driver for the dispatcher, all by the throw of a seeded die: samples finish
// in any order, ranks die, fall silent and come back, rewards fail, groups are cancelled. The world
// checks every effect against what it knows; it shares no code with the dispatcher.
// **Threads:** one.

#include "actors/pacing/rollout_dispatcher.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace troupe::actors::testing {

struct WorldOptions {
  DispatchOptions dispatch{};
  std::int64_t ranks = 3;
  bool faults = true;
  bool scores_vary = true;
  bool issues = true;  ///< on its own, in `chaos`
  std::uint64_t length_max = 40;
  std::optional<SampleId> endless{};  ///< never finishes
};

class DispatcherWorld {
 public:
  DispatcherWorld(std::uint64_t seed, WorldOptions options)
      : rng_(seed),
        options_(std::move(options)),
        dispatcher_(RolloutDispatcher::create(options_.dispatch).value()) {
    for (std::int32_t r = 0; r < options_.ranks; ++r) join(RankId{r});
  }

  void chaos(int events) {
    for (int i = 0; i < events && !::testing::Test::HasFatalFailure(); ++i) event();
  }

  /// From here on everybody does their duty. All groups must end.
  void drain() {
    calm_ = true;
    for (std::int32_t r = 0; r < options_.ranks; ++r)
      if (!ranks_.contains(RankId{r})) join(RankId{r});
    for (std::int32_t r = 0; r < options_.ranks; ++r) send(RankSuspected{RankId{r}, false});
    int rounds = 0;
    while (dispatcher_.counts().groups_open > 0 || dispatcher_.counts().ghosts > 0) {
      ASSERT_LT(++rounds, 4000) << dispatcher_.explain(now_);
      if (::testing::Test::HasFatalFailure()) return;
      now_ += std::chrono::seconds(1);
      for (auto& [rank, attempts] : ranks_) pull(rank);
      work_all();
      while (!scoring_.empty()) score(*scoring_.begin());
      send(DispatchTick{});
      const DispatchCounts counts = dispatcher_.counts();
      if (counts.parked > 0 && counts.waiting + counts.running + counts.scoring == 0)
        send(RoundOpened{1 + static_cast<std::int64_t>(rng_.below(4))});
    }
  }

  void issue() { issue_as(issued_); }
  void issue_as(std::uint64_t group) {
    issued_ = group + 1;
    open_.insert(group);
    GroupIssued event{.group = group,
                      .prompt_tokens = static_cast<std::int64_t>(1 + rng_.below(20))};
    if (rng_.below(4) == 0) event.length_hint = static_cast<std::int64_t>(rng_.below(60));
    if (options_.faults && rng_.below(6) == 0) seeds(event);
    send(event);
  }
  void send(const DispatchEvent& event) {
    for (const DispatchEffect& effect : dispatcher_.step(event, now_))
      std::visit([this](const auto& one) { on(one); }, effect);
    dispatcher_.check_invariants();
  }
  void advance(Duration span) { now_ += span; }
  void pull(RankId rank) {
    send(RankPulls{rank, static_cast<std::int64_t>(1 + rng_.below(4)),
                   static_cast<std::int64_t>(20 + rng_.below(200))});
  }
  void work_all() {
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, attempt] : attempts_) numbers.push_back(number);
    for (const std::uint64_t number : numbers)
      if (attempts_.contains(number)) work(number);
  }
  void score(SampleId id) {
    scoring_.erase(id);
    const auto value = options_.scores_vary ? rng_.below(3) : 1;
    if (open_.contains(id.group)) scored_.insert(id);
    send(SampleScored{id, static_cast<std::int64_t>(value)});
  }

  RolloutDispatcher& dispatcher() { return dispatcher_; }
  Rng& rng() { return rng_; }
  TimePoint now() const { return now_; }
  const std::map<std::uint64_t, GroupComplete>& complete() const { return complete_; }
  const std::map<std::uint64_t, CancelReason>& dropped() const { return dropped_; }
  std::uint64_t issued() const { return issued_; }
  const std::set<std::uint64_t>& open() const { return open_; }
  const std::vector<StartSample>& starts() const { return starts_; }
  const std::vector<StopAttempt>& stops() const { return stops_; }
  const std::set<SampleId>& scoring() const { return scoring_; }
  std::vector<RoundBegan> began;
  std::vector<RoundEnded> ended;
  std::vector<RankId> released;
  int starved = 0;

 private:
  struct Running {
    RankId rank{};
    SampleId sample{};
    std::int64_t tokens = 0;
    bool stop = false;
  };

  std::int64_t length_of(SampleId id) const {
    if (options_.endless == id) return INT64_MAX;
    return 1 + static_cast<std::int64_t>(mix_seed(id.group, id.index) % options_.length_max);
  }
  void join(RankId rank) {
    // One that joins again was restarted.
    std::erase_if(attempts_, [&](const auto& one) { return one.second.rank == rank; });
    ranks_[rank] = {};
    send(RankJoined{rank, 4, 200});
  }
  void seeds(GroupIssued& event) {
    const auto count =
        static_cast<std::uint32_t>(options_.dispatch.group_size + options_.dispatch.samples_extra);
    for (std::uint32_t i = 0; i < count; ++i) {
      const SampleId id{event.group, i};
      SampleSeed seed;
      const std::int64_t length = std::min<std::int64_t>(length_of(id), 1000);
      seed.finished = options_.endless != id && rng_.below(3) == 0;
      seed.tokens = seed.finished
                        ? length
                        : static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(length)));
      if (seed.finished && rng_.below(2) == 0) {
        seed.score = 1;
        scored_.insert(id);
      }
      if (seed.finished) finished_.insert(id);
      issued_partials_[id] = seed.tokens;
      event.samples.push_back(seed);
    }
  }

  void event() {
    switch (rng_.below(14)) {
      case 0:
      case 1:
        if (options_.issues && open_.size() < 12) issue();
        return;
      case 2:
      case 3:
      case 4:
        if (!ranks_.empty()) pull(random_rank());
        return;
      case 5:
      case 6:
      case 7:
      case 8:
        if (!attempts_.empty()) work(random_attempt());
        return;
      case 9:
      case 10:
        if (!scoring_.empty()) score(*std::next(scoring_.begin(), pick(scoring_.size())));
        return;
      case 11:
        now_ += std::chrono::milliseconds(rng_.below(4000));
        return send(DispatchTick{});
      case 12:
        return send(RoundOpened{1 + static_cast<std::int64_t>(rng_.below(4))});
      default:
        if (options_.faults) fault();
        return;
    }
  }
  void fault() {
    switch (rng_.below(6)) {
      case 0: {  // dies with all it runs
        if (ranks_.empty()) return;
        const RankId rank = random_rank();
        std::erase_if(attempts_, [&](const auto& one) { return one.second.rank == rank; });
        ranks_.erase(rank);
        return send(RankLost{rank});
      }
      case 1:
        return join(RankId{
            static_cast<std::int32_t>(rng_.below(static_cast<std::uint64_t>(options_.ranks)))});
      case 2:
        if (!ranks_.empty()) send(RankSuspected{random_rank(), rng_.below(2) == 0});
        return;
      case 3:
        if (!attempts_.empty()) {
          const std::uint64_t number = random_attempt();
          const Running attempt = attempts_.at(number);
          attempts_.erase(number);
          send(AttemptEnded{number, AttemptOutcome::kFailed, attempt.tokens});
        }
        return;
      case 4:
        if (!scoring_.empty()) send(ScoreFailed{*scoring_.begin()});
        return;
      default:
        if (!open_.empty() && rng_.below(3) == 0)
          send(GroupCancelled{*std::next(open_.begin(), pick(open_.size())), CancelReason::kStale});
        // Nonsense changes nothing.
        send(AttemptEnded{1'000'000 + rng_.below(9), AttemptOutcome::kFinished, 3});
        send(SampleScored{{1'000'000, 0}, 3});
        return;
    }
  }
  std::ptrdiff_t pick(std::size_t count) { return static_cast<std::ptrdiff_t>(rng_.below(count)); }
  RankId random_rank() { return std::next(ranks_.begin(), pick(ranks_.size()))->first; }
  std::uint64_t random_attempt() {
    return std::next(attempts_.begin(), pick(attempts_.size()))->first;
  }

  /// A rank makes some tokens of an attempt, and tells of it or not.
  void work(std::uint64_t number) {
    Running& attempt = attempts_.at(number);
    const std::int64_t length = length_of(attempt.sample);
    attempt.tokens = std::min(attempt.tokens + static_cast<std::int64_t>(rng_.below(9)), length);
    const bool asked = attempt.stop && (calm_ || rng_.below(2) == 0);
    if (attempt.tokens == length || asked || (options_.faults && !calm_ && rng_.below(20) == 0)) {
      const Running done = attempt;
      attempts_.erase(number);
      partials_[number] = done.tokens;
      const bool whole = done.tokens == length;
      if (whole) finished_by_[number] = done.sample;
      return send(AttemptEnded{
          number, whole ? AttemptOutcome::kFinished : AttemptOutcome::kInterrupted, done.tokens});
    }
    if (rng_.below(2) == 0) return;
    partials_[number] = attempt.tokens;
    send(AttemptProgress{number, attempt.tokens});
  }

  void on(const StartSample& effect) {
    starts_.push_back(effect);
    ASSERT_TRUE(ranks_.contains(effect.rank)) << "on a rank that is gone";
    ASSERT_TRUE(open_.contains(effect.sample.group));
    ASSERT_FALSE(finished_.contains(effect.sample)) << "generated twice";
    ASSERT_GT(effect.attempt, last_attempt_);
    last_attempt_ = effect.attempt;
    const std::int64_t stored = effect.from_attempt != 0  ? partials_.at(effect.from_attempt)
                                : effect.from_tokens != 0 ? issued_partials_.at(effect.sample)
                                                          : 0;
    // A partial may have grown since the report that the dispatcher knows of: cut it.
    ASSERT_LE(effect.from_tokens, stored);
    attempts_[effect.attempt] = {effect.rank, effect.sample, effect.from_tokens, false};
    partials_[effect.attempt] = effect.from_tokens;
    std::int64_t beside = 0;
    for (const auto& [number, attempt] : attempts_)
      beside += attempt.sample == effect.sample && !attempt.stop ? 1 : 0;
    ASSERT_LE(beside, options_.dispatch.hedge_after > Duration::zero() ? 2 : 1);
  }
  void on(const StopAttempt& effect) {
    stops_.push_back(effect);
    ASSERT_TRUE(stopped_.insert(effect.attempt).second) << "asked twice";
    if (const auto place = attempts_.find(effect.attempt); place != attempts_.end())
      place->second.stop = true;
  }
  void on(const ScoreSample& effect) {
    ASSERT_TRUE(open_.contains(effect.sample.group));
    ASSERT_FALSE(scored_.contains(effect.sample)) << "scored twice";
    const std::int64_t stored = effect.from_attempt != 0 ? partials_.at(effect.from_attempt)
                                                         : issued_partials_.at(effect.sample);
    ASSERT_LE(effect.tokens, stored);
    if (!effect.cut_short) {
      ASSERT_EQ(effect.tokens, length_of(effect.sample));
    }
    finished_.insert(effect.sample);
    scoring_.insert(effect.sample);
  }
  void leave(std::uint64_t group) {
    ASSERT_EQ(open_.erase(group), 1U) << "group " << group << " ended twice";
    std::erase_if(scoring_, [&](const SampleId& id) { return id.group == group; });
  }
  void on(const GroupComplete& effect) {
    leave(effect.group);
    ASSERT_EQ(effect.samples.size(), static_cast<std::size_t>(options_.dispatch.group_size));
    ASSERT_TRUE(std::ranges::is_sorted(effect.samples));
    ASSERT_EQ(std::ranges::adjacent_find(effect.samples), effect.samples.end());
    for (const std::uint32_t index : effect.samples)
      ASSERT_TRUE(scored_.contains({effect.group, index})) << "counts, but has no reward";
    complete_[effect.group] = effect;
  }
  void on(const GroupDropped& effect) {
    leave(effect.group);
    dropped_[effect.group] = effect.reason;
  }
  void on(const GroupRefused& effect) { FAIL() << effect.error.to_string(); }
  void on(const RankRefused& effect) { FAIL() << effect.error.to_string(); }
  void on(const RoundBegan& effect) { began.push_back(effect); }
  void on(const RoundEnded& effect) { ended.push_back(effect); }
  void on(const RankReleased& effect) {
    for (const auto& [number, attempt] : attempts_)
      ASSERT_TRUE(attempt.rank != effect.rank || attempt.stop) << "released while it runs";
    released.push_back(effect.rank);
  }
  void on(const Starved&) { ++starved; }

  Rng rng_;
  WorldOptions options_;
  RolloutDispatcher dispatcher_;
  TimePoint now_{std::chrono::hours(1)};
  bool calm_ = false;
  std::map<RankId, int> ranks_;
  std::map<std::uint64_t, Running> attempts_;
  std::map<std::uint64_t, std::int64_t> partials_;
  std::map<SampleId, std::int64_t> issued_partials_;
  std::map<std::uint64_t, SampleId> finished_by_;
  std::set<SampleId> finished_;
  std::set<SampleId> scoring_;
  std::set<SampleId> scored_;
  std::set<std::uint64_t> open_;
  std::set<std::uint64_t> stopped_;
  std::uint64_t issued_ = 0;
  std::uint64_t last_attempt_ = 0;
  std::map<std::uint64_t, GroupComplete> complete_;
  std::map<std::uint64_t, CancelReason> dropped_;
  std::vector<StartSample> starts_;
  std::vector<StopAttempt> stops_;
};

}  // namespace troupe::actors::testing

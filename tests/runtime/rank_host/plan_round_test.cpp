// Proves the agreement of rank processes in two ways: the pure round by cases, and its promise by a
// simulation of ranks that run calls at random speeds while calls are called off and communicators
// break: all ranks run the same calls and rebuild before the same ones, and nothing waits for ever.

#include "runtime/group/plan_round.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>
#include <vector>

namespace troupe::runtime {
namespace {

TEST(PlanRound, EndsWithTheLastAnswerAndKnowsTheLastBegunCall) {
  PlanRound round(3);
  EXPECT_EQ(round.want(), 1U);
  EXPECT_FALSE(round.want());  // the one under way will do
  EXPECT_FALSE(round.held(RankId{0}, 1, CallId{4}));
  EXPECT_FALSE(round.held(RankId{0}, 1, CallId{9}));  // said twice
  EXPECT_FALSE(round.held(RankId{1}, 7, CallId{9}));  // of another round
  EXPECT_FALSE(round.held(RankId{1}, 1, CallId{6}));
  EXPECT_TRUE(round.held(RankId{2}, 1, CallId{5}));
  EXPECT_EQ(round.last_begun(), CallId{6});
  round.decided();
  EXPECT_FALSE(round.want());
  EXPECT_EQ(round.told(), 2U);  // asked for after the decision
  EXPECT_TRUE(round.open());
}

TEST(PlanRound, WaitsForTheLivingOnly) {
  PlanRound round(2);
  EXPECT_EQ(round.want(), 1U);
  EXPECT_FALSE(round.held(RankId{0}, 1, CallId{2}));
  EXPECT_TRUE(round.gone(RankId{1}));
  EXPECT_FALSE(round.gone(RankId{1}));
  round.decided();
  EXPECT_FALSE(round.told());
  EXPECT_EQ(round.want(), 2U);
  EXPECT_TRUE(round.held(RankId{0}, 2, CallId{3}));
}

/// Ranks that run numbered calls in order, hold when told, and obey plans; messages take random
/// time but keep their order on each line.
class Simulation {
 public:
  Simulation(std::uint64_t seed, int ranks, int calls)
      : rng_(seed), round_(static_cast<std::size_t>(ranks)), calls_(calls) {
    ranks_.resize(static_cast<std::size_t>(ranks));
  }

  void run() {
    for (int step = 0; step < 200'000 && !over(); ++step) {
      const auto rank = static_cast<std::size_t>(rng_.below(ranks_.size()));
      switch (rng_.below(5)) {
        case 0:
          submit();
          break;
        case 1:
          call_off();
          break;
        case 2:
          deliver_to(rank);
          break;
        case 3:
          deliver_from(rank);
          break;
        default:
          begin_call(rank);
      }
    }
    ASSERT_TRUE(over()) << "calls are left";
  }

  struct Rank {
    std::deque<int> queue;
    std::set<int> skips;
    std::set<int> rebuilds;
    std::vector<int> ran;
    std::vector<int> rebuilt;
    bool held = false;
    int last_begun = 0;
    std::uint64_t hold_round = 0;
    std::deque<std::pair<char, std::vector<int>>> inbox;
    std::deque<std::pair<std::uint64_t, int>> outbox;
  };
  const std::vector<Rank>& ranks() const { return ranks_; }

 private:
  bool over() const {
    for (const Rank& rank : ranks_) {
      if (!rank.queue.empty() || !rank.inbox.empty() || !rank.outbox.empty()) return false;
    }
    return submitted_ == calls_ && !round_.open();
  }
  void submit() {
    if (submitted_ == calls_) return;
    ++submitted_;
    for (Rank& rank : ranks_) rank.inbox.push_back({'c', {submitted_, rebuild_next_ ? 1 : 0}});
    rebuild_next_ = false;
  }
  void call_off() {
    if (submitted_ == 0 || rng_.below(8) != 0) return;
    if (rng_.below(2) == 0) want_rebuild_ = true;
    wanted_.insert(static_cast<int>(1 + rng_.below(static_cast<std::uint64_t>(submitted_))));
    if (const auto round = round_.want()) announce(*round);
  }
  void announce(std::uint64_t round) {
    for (Rank& rank : ranks_) rank.inbox.push_back({'h', {static_cast<int>(round)}});
  }
  void deliver_to(std::size_t i) {
    Rank& rank = ranks_[i];
    if (rank.inbox.empty()) return;
    const auto [kind, numbers] = rank.inbox.front();
    rank.inbox.pop_front();
    if (kind == 'c') {
      rank.queue.push_back(numbers[0]);
      if (numbers[1] == 1) rank.rebuilds.insert(numbers[0]);
    } else if (kind == 'h') {
      rank.held = true;
      rank.hold_round = static_cast<std::uint64_t>(numbers[0]);
      rank.outbox.push_back({rank.hold_round, rank.last_begun});
    } else {
      if (numbers[1] != 0) rank.rebuilds.insert(numbers[1]);
      rank.skips.insert(numbers.begin() + 2, numbers.end());
      if (rank.hold_round == static_cast<std::uint64_t>(numbers[0])) rank.held = false;
    }
  }
  void deliver_from(std::size_t i) {
    Rank& rank = ranks_[i];
    if (rank.outbox.empty()) return;
    const auto [round, last] = rank.outbox.front();
    rank.outbox.pop_front();
    if (!round_.held(RankId{static_cast<int>(i)}, round,
                     CallId{static_cast<std::uint64_t>(last)})) {
      return;
    }
    const int begun = static_cast<int>(round_.last_begun().value);
    std::vector<int> plan{static_cast<int>(round_.round()), 0};
    round_.decided();
    for (const int call : wanted_) {
      if (call > begun && decided_.insert(call).second) plan.push_back(call);
    }
    wanted_.clear();
    if (std::exchange(want_rebuild_, false)) {
      int at = begun + 1;
      while (decided_.contains(at)) ++at;
      if (at <= submitted_) {
        decided_.insert(at);
        plan[1] = at;
      } else {
        rebuild_next_ = true;
      }
    }
    for (Rank& one : ranks_) one.inbox.push_back({'p', plan});
    if (const auto next = round_.told()) announce(*next);
  }
  static void begin_call(Rank& rank) {
    if (rank.queue.empty() || rank.held) return;
    const int call = rank.queue.front();
    rank.queue.pop_front();
    rank.last_begun = call;
    if (rank.skips.contains(call)) return;
    if (rank.rebuilds.contains(call)) rank.rebuilt.push_back(call);
    rank.ran.push_back(call);
  }
  void begin_call(std::size_t i) { begin_call(ranks_[i]); }

  Rng rng_;
  PlanRound round_;
  const int calls_;
  std::vector<Rank> ranks_;
  int submitted_ = 0;
  bool rebuild_next_ = false;
  bool want_rebuild_ = false;
  std::set<int> wanted_;
  std::set<int> decided_;
};

TEST(PlanRound, AllRanksRunTheSameCallsAndRebuildBeforeTheSame) {
  std::size_t skipped = 0;
  std::size_t rebuilt = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation(seed, static_cast<int>(1 + seed % 5), 40);
    simulation.run();
    const auto& first = simulation.ranks().front();
    for (const auto& rank : simulation.ranks()) {
      ASSERT_EQ(rank.ran, first.ran);
      ASSERT_EQ(rank.rebuilt, first.rebuilt);
    }
    skipped += 40 - first.ran.size();
    rebuilt += first.rebuilt.size();
  }
  EXPECT_GT(skipped, 300U);  // the simulation does what it is there for
  EXPECT_GT(rebuilt, 300U);
}

}  // namespace
}  // namespace troupe::runtime

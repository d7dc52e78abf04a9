// Proves the choices of the router by example, and the packing of tails against all ways of packing
// small ones.

#include "actors/pacing/rank_router.hpp"

#include "actors/pacing/length_estimate.hpp"
#include "actors/pacing/token_account.hpp"
#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RankRouter two_ranks() {
  RankRouter router;
  router.join(RankId{0}, 4, 100);
  router.join(RankId{1}, 4, 100);
  return router;
}

TEST(RankRouter, GivesNothingToARankThatDidNotPull) {
  RankRouter router = two_ranks();
  EXPECT_FALSE(router.any_credit());
  EXPECT_EQ(router.choose(1, 10, 0, {}), std::nullopt);
  router.pull(RankId{1}, 1, 50);
  EXPECT_EQ(router.choose(1, 10, 0, {}), RankId{1});
  router.start(RankId{1}, 1, 10);
  EXPECT_EQ(router.choose(1, 10, 0, {}), std::nullopt) << "its credit is used up";
}

TEST(RankRouter, PrefersFreeTokensAndCountsASharedPromptAsFree) {
  RankRouter router = two_ranks();
  router.pull(RankId{0}, 4, 40);
  router.pull(RankId{1}, 4, 60);
  EXPECT_EQ(router.choose(7, 10, 30, {}), RankId{1});
  router.start(RankId{0}, 7, 0);
  EXPECT_EQ(router.choose(7, 10, 30, {}), RankId{0}) << "40 and the prompt of 30";
  EXPECT_EQ(router.choose(7, 10, 5, {}), RankId{1}) << "a hint, not a rule";
  EXPECT_EQ(router.choose(8, 10, 30, {}), RankId{1}) << "another group";
  EXPECT_EQ(router.choose(7, 10, 30, RankId{0}), RankId{1});
}

TEST(RankRouter, AnIdleRankTakesWhatIsLargerThanAllItHas) {
  RankRouter router = two_ranks();
  router.pull(RankId{0}, 4, 100);
  EXPECT_EQ(router.choose(1, 1000, 0, {}), RankId{0});
  router.start(RankId{0}, 1, 1000);
  router.pull(RankId{0}, 3, 90);
  EXPECT_EQ(router.choose(2, 91, 0, {}), std::nullopt);
  EXPECT_EQ(router.choose(2, 90, 0, {}), RankId{0});
}

TEST(RankRouter, SuspectedAndReleasedRanksGetNothing) {
  RankRouter router = two_ranks();
  router.pull(RankId{0}, 4, 100);
  router.pull(RankId{1}, 4, 100);
  router.suspect(RankId{0}, true);
  router.release(RankId{1});
  EXPECT_FALSE(router.any_credit());
  router.suspect(RankId{0}, false);
  EXPECT_EQ(router.choose(1, 1, 0, {}), RankId{0});
  router.recall_all();
  EXPECT_TRUE(router.any_credit());
}

TEST(RankRouter, NoPullAllowsMoreThanARankCanRun) {
  RankRouter router = two_ranks();
  router.pull(RankId{0}, 1000, 100000);
  for (int i = 0; i < 4; ++i) router.start(*router.choose(1, 1, 0, {}), 1, 1);
  EXPECT_EQ(router.choose(1, 1, 0, {}), std::nullopt);
  router.pull(RankId{0}, 5, 100);
  EXPECT_EQ(router.choose(1, 1, 0, {}), std::nullopt);
  router.end(RankId{0}, 1);
  router.pull(RankId{0}, 5, 100);
  EXPECT_EQ(router.choose(1, 1, 0, {}), RankId{0});
}

TEST(Repack, FreesTheRankWithLeastAndNeverOneThatIsPinned) {
  const std::vector<RepackRank> ranks{
      {RankId{0}, 4, 100}, {RankId{1}, 4, 100}, {RankId{2}, 4, 100}};
  const RepackPlan plan =
      plan_repack(ranks, {{1, RankId{0}, 50}, {2, RankId{1}, 30}, {3, RankId{2}, 60}});
  EXPECT_THAT(plan.freed, ElementsAre(RankId{1}));
  EXPECT_THAT(plan.moved, ElementsAre(2U));
  const RepackPlan pinned =
      plan_repack(ranks, {{1, RankId{0}, 50}, {2, RankId{1}, 30, true}, {3, RankId{2}, 60, true}});
  EXPECT_THAT(pinned.freed, ElementsAre(RankId{0}));
  EXPECT_THAT(plan_repack(ranks, {}).moved, IsEmpty());
}

/// Can `tail` lie on the ranks of `mask`, tried in all ways?
bool packs(const std::vector<RepackRank>& ranks, unsigned mask, const std::vector<TailSample>& tail,
           std::size_t at, std::vector<std::int64_t>& tokens, std::vector<std::int64_t>& samples) {
  if (at == tail.size()) return true;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if ((mask >> r & 1U) == 0 || tokens[r] + tail[at].tokens > ranks[r].tokens_max ||
        samples[r] + 1 > ranks[r].samples_max)
      continue;
    tokens[r] += tail[at].tokens;
    ++samples[r];
    const bool done = packs(ranks, mask, tail, at + 1, tokens, samples);
    tokens[r] -= tail[at].tokens;
    --samples[r];
    if (done) return true;
  }
  return false;
}

TEST(Repack, LeavesWhatFitsAndIsNearTheFewestRanksThatCanHoldTheTail) {
  std::int64_t freed = 0;
  std::int64_t possible = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<RepackRank> ranks;
    std::vector<TailSample> tail;
    std::uint64_t attempt = 1;
    for (std::int32_t r = 0; r < static_cast<std::int32_t>(2 + rng.below(3)); ++r) {
      ranks.push_back({RankId{r}, static_cast<std::int64_t>(1 + rng.below(4)), 100});
      std::int64_t room = 100;
      for (std::int64_t i = static_cast<std::int64_t>(rng.below(3)); i > 0; --i) {
        const auto tokens = static_cast<std::int64_t>(1 + rng.below(60));
        if (tokens > room || i > ranks.back().samples_max) continue;
        room -= tokens;
        tail.push_back({attempt++, RankId{r}, tokens});
      }
    }
    const RepackPlan plan = plan_repack(ranks, tail);
    unsigned left = (1U << ranks.size()) - 1;
    for (const RankId rank : plan.freed) left &= ~(1U << static_cast<unsigned>(rank.value));
    std::vector<std::int64_t> tokens(ranks.size());
    std::vector<std::int64_t> samples(ranks.size());
    ASSERT_TRUE(packs(ranks, left, tail, 0, tokens, samples)) << "what stays cannot hold the tail";
    for (const TailSample& one : tail)
      ASSERT_EQ(std::ranges::binary_search(plan.moved, one.attempt),
                std::ranges::binary_search(plan.freed, one.rank))
          << "moves exactly what runs on freed ranks";
    int fewest = static_cast<int>(ranks.size());
    for (unsigned mask = 1; mask < 1U << ranks.size(); ++mask)
      if (packs(ranks, mask, tail, 0, tokens, samples))
        fewest = std::min(fewest, __builtin_popcount(mask));
    ASSERT_GE(__builtin_popcount(left), fewest);
    freed += static_cast<std::int64_t>(plan.freed.size());
    possible += static_cast<std::int64_t>(ranks.size()) - fewest;
  }
  EXPECT_GE(freed * 100, possible * 85) << freed << " of " << possible << " ranks freed";
}

TEST(LengthEstimate, AsksTheGroupThenTheHintThenEverybody) {
  LengthEstimate estimate(100);
  GroupLength fresh;
  EXPECT_EQ(estimate.length(fresh, 0), 100) << "nothing is known: room for the longest";
  GroupLength group;
  estimate.finished(group, 10);
  estimate.finished(group, 21);
  EXPECT_EQ(estimate.length(group, 0), 16);
  EXPECT_EQ(estimate.length(fresh, 0), 16);
  fresh.hint = 40;
  EXPECT_EQ(estimate.length(fresh, 0), 40);
  EXPECT_EQ(estimate.length(fresh, 60), 61) << "at least what is there and one more";
  EXPECT_EQ(estimate.remaining(fresh, 99), 1);
}

TEST(LengthBias, FallsBelowOneWhenShortAnswersWin) {
  LengthBias bias;
  EXPECT_DOUBLE_EQ(bias.ratio(), 1.0);
  for (const std::int64_t length : {10, 10, 100}) bias.started.add(length);
  for (const std::int64_t length : {10, 10}) bias.kept.add(length);
  EXPECT_DOUBLE_EQ(bias.ratio(), 10.0 / 40.0);
  EXPECT_EQ(bias.started.histogram[4], 2);
  EXPECT_EQ(bias.started.histogram[7], 1);
  EXPECT_EQ(bias.to_string(), "kept 2 samples of mean length 10.0, started 3 of 40.0, ratio 0.250");
}

}  // namespace
}  // namespace troupe::actors

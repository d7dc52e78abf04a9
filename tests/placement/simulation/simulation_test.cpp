// Proves that the placement protocol keeps its promises whatever happens: head, nodes, owners,
// ledger and network run in one thread on virtual time, each seed with another cluster, workload
// and set of faults (deaths, partitions, lost, repeated and overtaking messages, torn and slow
// ledgers, restarts of the head in the middle of a step, clock jumps). After every event the
// invariants of sim_checks.cpp must hold, and after the faults everything must come to rest and
// nothing be left over. Then breaks the protocol on purpose, to prove that the harness would
// notice. A failure prints its seed and how to replay it.

#include "tests/placement/simulation/simulate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace troupe::placement::simulation {
namespace {

constexpr std::uint64_t kSeeds = 200;

std::string told(std::uint64_t seed, const SimReport& report) {
  std::string text = "seed " + std::to_string(seed) + ": " + report.failure.value_or("") +
                     "\nreplay: troupe_placement_sim --replay " + std::to_string(seed) + "\n";
  const std::size_t lines = std::min<std::size_t>(report.log.size(), 40);
  for (std::size_t i = report.log.size() - lines; i < report.log.size(); ++i)
    text += report.log[i] + "\n";
  return text;
}

TEST(PlacementSimulation, KeepsItsInvariantsAndComesToRestForEverySeed) {
  SimCounts sum;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimReport report = simulate({.seed = seed});
    ASSERT_FALSE(report.failure) << told(seed, report);
    sum.activated += report.counts.activated;
    sum.moved += report.counts.moved;
    sum.lost += report.counts.lost;
    sum.resized += report.counts.resized;
    sum.removed += report.counts.removed;
    sum.head_restarts += report.counts.head_restarts;
    sum.node_deaths += report.counts.node_deaths;
    sum.stale += report.counts.stale;
    sum.refusals += report.counts.refusals;
  }
  // A run in which nothing happens proves nothing.
  EXPECT_GT(sum.activated, 20 * kSeeds);
  EXPECT_GT(sum.moved, kSeeds);
  EXPECT_GT(sum.lost, kSeeds);
  EXPECT_GT(sum.resized, kSeeds);
  EXPECT_GT(sum.removed, 20 * kSeeds);
  EXPECT_GT(sum.head_restarts, kSeeds / 2);
  EXPECT_GT(sum.node_deaths, kSeeds / 2);
  EXPECT_GT(sum.stale, kSeeds);
  EXPECT_GT(sum.refusals, 0U);
}

TEST(PlacementSimulation, TakesTheSameCourseForTheSameSeed) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const SimReport first = simulate({.seed = seed});
    const SimReport second = simulate({.seed = seed});
    EXPECT_EQ(first.hash, second.hash) << "seed " << seed;
    EXPECT_EQ(first.counts.events, second.counts.events) << "seed " << seed;
  }
  EXPECT_NE(simulate({.seed = 1}).hash, simulate({.seed = 2}).hash);
}

/// The first failure among some seeds of a world in which something is broken.
std::string first_failure(SimOptions options) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    options.seed = seed;
    const SimReport report = simulate(options);
    if (report.failure) return *report.failure;
  }
  return {};
}

TEST(PlacementSimulation, NoticesANodeThatIgnoresEpochsAndOrder) {
  EXPECT_THAT(first_failure({.node_mutation = NodeMutation::kIgnoreOrder}),
              testing::HasSubstr("applied pass"));
}

TEST(PlacementSimulation, NoticesANodeThatGivesADeviceTwice) {
  EXPECT_THAT(first_failure({.node_mutation = NodeMutation::kIgnoreCapacity}),
              testing::HasSubstr("given out"));
}

TEST(PlacementSimulation, NoticesANodeThatKeepsWhatWasCancelled) {
  EXPECT_THAT(first_failure({.node_mutation = NodeMutation::kIgnoreCancel}),
              testing::HasSubstr("removed, yet"));
}

TEST(PlacementSimulation, NoticesAHeadThatForgetsWhatNodesHold) {
  EXPECT_NE(first_failure({.core_mutation = CoreMutation::kForgetCancels}), "");
}

TEST(PlacementSimulation, NoticesAHeadThatKeepsOldEpochs) {
  EXPECT_NE(first_failure({.core_mutation = CoreMutation::kKeepOldEpochs}), "");
}

TEST(PlacementSimulation, NoticesAHeadThatAnswersBeforeTheLedger) {
  EXPECT_THAT(first_failure({.core_mutation = CoreMutation::kAnswerEarly}),
              testing::HasSubstr("durable"));
}

TEST(PlacementSimulation, NoticesAHeadThatSkipsTheCommit) {
  EXPECT_THAT(first_failure({.core_mutation = CoreMutation::kSkipCommit}),
              testing::HasSubstr("never committed"));
}

TEST(PlacementSimulation, NoticesAHeadThatForgetsARepair) {
  EXPECT_NE(first_failure({.core_mutation = CoreMutation::kDropRepair}), "");
}

}  // namespace
}  // namespace troupe::placement::simulation

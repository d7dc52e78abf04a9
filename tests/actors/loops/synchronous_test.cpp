// Proves what the synchronous loop does, over a world without engines: the order of roles, which
// roles are left out, what each update gets, how seeds change from step to step, and that a role's
// failure comes out as that error and stops the step.

#include "actors/loops/synchronous.hpp"

#include "runtime/task/executor.hpp"
#include "tests/actors/loops/fake_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors::testing {
namespace {

using ::testing::ElementsAre;

Batch two_prompts() {
  Batch batch;
  value_or_throw(
      batch.set(std::string(column::kPromptIds), Column::dense(std::vector<std::int64_t>{10, 11})));
  value_or_throw(batch.set(std::string(column::kPrompts),
                           Column::jagged(std::vector<std::vector<std::int32_t>>{{1, 2}, {3}})));
  return batch;
}

AdvantageStepOptions with_estimator(const std::string& name) {
  AdvantageStepOptions options;
  options.estimator = *default_advantages().find(name);
  options.greedy_baseline = name == "remax";
  options.keep_returns = name == "gae";
  return options;
}

Cast<FakeWorld> cast_of(FakeWorld& world, AdvantageStep& advantage) {
  return Cast<FakeWorld>{.world = world,
                         .rollout = world.rollout,
                         .reward = world.reward,
                         .policy = world.policy,
                         .reference = nullptr,
                         .critic = nullptr,
                         .weights = world.weights,
                         .advantage = advantage,
                         .sampling = {},
                         .group_size = 4,
                         .critic_warmup_steps = 0,
                         .meter = nullptr};
}

TEST(SynchronousStep, RunsGrpoInOrderWithoutReferenceOrCritic) {
  FakeWorld world;
  AdvantageStep advantage(with_estimator("grpo"));
  auto cast = cast_of(world, advantage);
  runtime::Executor executor;
  const auto report = executor.run(synchronous_step(cast, two_prompts(), 1));
  ASSERT_TRUE(report.has_value()) << report.error().to_string();
  EXPECT_THAT(world.log.calls,
              ElementsAre("generate", "score", "sleep", "policy", "update policy", "publish"));
  EXPECT_EQ(world.policy.updated.rows(), 8);
  const auto groups = world.policy.updated.column(column::kGroup).values<std::int64_t>();
  EXPECT_THAT(groups, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_TRUE(world.policy.updated.has(column::kAdvantages));
  EXPECT_DOUBLE_EQ(*report->metrics.value("critic/score/mean"), 1.75);
  EXPECT_DOUBLE_EQ(*report->metrics.value("policy/loss"), 1);
  EXPECT_TRUE(report->metrics.value("timing_s/gen").has_value());
}

TEST(SynchronousStep, RunsPpoWithReferenceAndCritic) {
  FakeWorld world;
  AdvantageStep advantage(with_estimator("gae"));
  auto cast = cast_of(world, advantage);
  cast.reference = &world.reference;
  cast.critic = &world.critic;
  runtime::Executor executor;
  const auto report = executor.run(synchronous_step(cast, two_prompts(), 1));
  ASSERT_TRUE(report.has_value()) << report.error().to_string();
  EXPECT_THAT(world.log.calls, ElementsAre("generate", "score", "sleep", "policy", "reference",
                                           "critic", "update critic", "update policy", "publish"));
  EXPECT_TRUE(world.critic.updated.has(column::kReturns));
}

TEST(SynchronousStep, AsksRolesSideBySideAndLearnsTheSame) {
  const auto learned = [](bool side_by_side) {
    FakeWorld world;
    AdvantageStep advantage(with_estimator("gae"));
    auto cast = cast_of(world, advantage);
    cast.reference = &world.reference;
    cast.critic = &world.critic;
    cast.side_by_side = side_by_side;
    runtime::Executor executor;
    const auto report = executor.run(synchronous_step(cast, two_prompts(), 1));
    EXPECT_TRUE(report.has_value()) << report.error().to_string();
    EXPECT_THAT(world.log.calls,
                ElementsAre("generate", "score", "sleep", "policy", "reference", "critic",
                            "update critic", "update policy", "publish"));
    EXPECT_TRUE(report->metrics.value("timing_s/values").has_value());
    return world.policy.updated;
  };
  const Batch together = learned(true);
  const Batch turns = learned(false);
  const Column& one = together.column(column::kAdvantages);
  const Column& other = turns.column(column::kAdvantages);
  for (std::int64_t row = 0; row < together.rows(); ++row)
    EXPECT_EQ(one.row<float>(row)[0], other.row<float>(row)[0]) << row;
  EXPECT_TRUE(together.has(column::kReferenceLogProbs));
}

TEST(SynchronousStep, WarmsTheCriticUpBeforeItTouchesThePolicy) {
  FakeWorld world;
  AdvantageStep advantage(with_estimator("gae"));
  auto cast = cast_of(world, advantage);
  cast.critic = &world.critic;
  cast.critic_warmup_steps = 2;
  runtime::Executor executor;
  ASSERT_TRUE(executor.run(synchronous_step(cast, two_prompts(), 2)).has_value());
  EXPECT_THAT(world.log.calls, ElementsAre("generate", "score", "sleep lightly", "policy", "critic",
                                           "update critic"));
  ASSERT_TRUE(executor.run(synchronous_step(cast, two_prompts(), 3)).has_value());
  EXPECT_EQ(world.log.calls.back(), "publish");
}

TEST(SynchronousStep, TakesRemaxBaselinesFromOneGreedySampleOfEachPrompt) {
  FakeWorld world;
  AdvantageStep advantage(with_estimator("remax"));
  auto cast = cast_of(world, advantage);
  runtime::Executor executor;
  ASSERT_TRUE(executor.run(synchronous_step(cast, two_prompts(), 1)).has_value());
  EXPECT_THAT(world.log.calls, ElementsAre("generate", "score", "generate greedy", "score", "sleep",
                                           "policy", "update policy", "publish"));
  // Sample i of a group scores i + 0.25 and the greedy one 0.25, so the advantage is i.
  const Column& advantages = world.policy.updated.column(column::kAdvantages);
  for (std::int64_t row = 0; row < 8; ++row)
    EXPECT_FLOAT_EQ(advantages.row<float>(row)[0], static_cast<float>(row % 4)) << row;
}

TEST(SynchronousStep, DrawsAnewInEveryStepAndTheSameWhenAStepIsRepeated) {
  FakeWorld world;
  AdvantageStep advantage(with_estimator("grpo"));
  auto cast = cast_of(world, advantage);
  runtime::Executor executor;
  for (const std::int64_t step : {1, 2, 1})
    ASSERT_TRUE(executor.run(synchronous_step(cast, two_prompts(), step)).has_value());
  EXPECT_NE(world.log.sampling[0].seed, world.log.sampling[1].seed);
  EXPECT_EQ(world.log.sampling[0].seed, world.log.sampling[2].seed);
}

TEST(SynchronousStep, EndsWithTheErrorOfARoleAndUpdatesNothing) {
  FakeWorld world;
  world.log.fail_reference = true;
  AdvantageStep advantage(with_estimator("grpo"));
  auto cast = cast_of(world, advantage);
  cast.reference = &world.reference;
  runtime::Executor executor;
  const auto report = executor.run(synchronous_step(cast, two_prompts(), 1));
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kRankDead);
  EXPECT_THAT(world.log.calls, ElementsAre("generate", "score", "sleep", "policy", "reference"));
}

TEST(SynchronousStep, RefusesAGroupSizeBelowOne) {
  FakeWorld world;
  AdvantageStep advantage(with_estimator("grpo"));
  auto cast = cast_of(world, advantage);
  cast.group_size = 0;
  runtime::Executor executor;
  const auto report = executor.run(synchronous_step(cast, two_prompts(), 1));
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::actors::testing

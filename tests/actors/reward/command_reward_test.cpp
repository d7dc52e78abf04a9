// Proves that a program in a sandbox is a rule like any other: what it is asked, what it may
// answer, what a bad answer costs, and that registries mix rules of one answer with rules of many.

#include "actors/reward/command_reward.hpp"

#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

/// Does as the ground truth says.
constexpr const char* kProgram = R"(
import json, math, os, sys
for line in sys.stdin:
    row = json.loads(line)
    print(eval(row["ground_truth"]), flush=True)
)";

CommandRewardOptions python_rule(std::optional<double> failure_score = -1.0) {
  CommandRewardOptions options;
  options.sandbox.name = "test rule";
  options.sandbox.command = {"/usr/bin/python3", "-c", kProgram};
  options.sandbox.workers = 1;
  options.sandbox.limits.sample_wall = std::chrono::seconds(5);
  options.failure_score = failure_score;
  return options;
}

RewardInput row(std::string_view expression, std::string_view source = "py") {
  return {.data_source = source,
          .solution = "an answer",
          .ground_truth = expression,
          .extra_info = R"({"level": 3})",
          .prompt = "a question"};
}

RewardRegistry registry_with(std::optional<double> failure_score = -1.0) {
  RewardRegistry registry;
  auto rule = make_command_reward(python_rule(failure_score));
  EXPECT_TRUE(rule.has_value()) << rule.error().to_string();
  if (rule) {
    EXPECT_TRUE(registry.add_batch("py", *std::move(rule)).has_value());
  }
  EXPECT_TRUE(registry.add("length", [](const RewardInput& input) {
    return static_cast<double>(input.solution.size());
  }));
  return registry;
}

TEST(CommandReward, AsksWithAllThatIsKnownAndTakesNumbersAndObjects) {
  const RewardRegistry registry = registry_with();
  const std::vector<RewardInput> inputs{
      row("0.5"),
      row("len(row['response'])", "py"),
      row("row['extra_info']['level']"),
      row("int(row['prompt'] == 'a question' and row['data_source'] == 'py')"),
      row("json.dumps({'id': row['id'], 'score': 0.25, 'acc': 1, 'answer': 'x', 'words': 7})"),
      row("ignored", "length")};
  const auto outcomes = registry.score_all(inputs, Deadline::in(std::chrono::seconds(60)));
  ASSERT_TRUE(outcomes.has_value()) << outcomes.error().to_string();
  std::vector<double> scores;
  for (const RewardOutcome& one : *outcomes) {
    scores.push_back(one.score.score);
    EXPECT_EQ(one.failure, "") << one.score.answer;
  }
  EXPECT_EQ(scores, (std::vector<double>{0.5, 9, 3, 1, 0.25, 9}));
  const RewardScore& object = (*outcomes)[4].score;
  EXPECT_EQ(object.answer, "x");
  EXPECT_EQ(object.extras, (std::map<std::string, double>{{"acc", 1}, {"words", 7}}));
}

TEST(CommandReward, WhatIsNoAnswerCostsThatSampleOnlyAndIsNamed) {
  const RewardRegistry registry = registry_with();
  std::vector<RewardInput> inputs{row("1")};
  for (const char* bad :
       {"'garbage'", "''", "'NaN'", "'1e999'", "'[1]'", "json.dumps({'acc': 1})", "'null'",
        "json.dumps({'id': 77, 'score': 1})", "json.dumps({'score': 'high'})",
        "'{\"score\": 1, \"score\": 2}'", "'[' * 1000"})
    inputs.push_back(row(bad));
  inputs.push_back(row("os._exit(3)"));
  inputs.push_back(row("2"));
  const auto outcomes = registry.score_all(inputs, Deadline::in(std::chrono::seconds(60)));
  ASSERT_TRUE(outcomes.has_value()) << outcomes.error().to_string();
  EXPECT_EQ(outcomes->front().score.score, 1);
  EXPECT_EQ(outcomes->back().score.score, 2);
  for (std::size_t i = 1; i + 1 < inputs.size(); ++i) {
    const RewardOutcome& one = (*outcomes)[i];
    EXPECT_EQ(one.failure, i + 2 == inputs.size() ? "exited" : "answer") << inputs[i].ground_truth;
    EXPECT_EQ(one.score.score, -1) << inputs[i].ground_truth;
    EXPECT_FALSE(one.score.answer.empty()) << "says why";
    EXPECT_FALSE(one.dropped);
  }
}

TEST(CommandReward, WithoutAFailureScoreASampleThatFailsIsGivenUp) {
  const RewardRegistry registry = registry_with(std::nullopt);
  const std::vector<RewardInput> inputs{row("'x'"), row("1")};
  const auto outcomes = registry.score_all(inputs, Deadline::in(std::chrono::seconds(60)));
  ASSERT_TRUE(outcomes.has_value()) << outcomes.error().to_string();
  EXPECT_TRUE((*outcomes)[0].dropped);
  EXPECT_FALSE((*outcomes)[1].dropped);
  const auto one = registry.score(inputs[0]);
  ASSERT_FALSE(one.has_value());
  EXPECT_EQ(one.error().code, ErrorCode::kAborted);
}

TEST(CommandReward, AProgramThatCannotRunIsAnErrorAndNoScore) {
  CommandRewardOptions options = python_rule();
  options.sandbox.command = {"/usr/bin/python3", "/no/such/script.py"};
  options.sandbox.failures_at_start_max = 2;
  auto rule = make_command_reward(options);
  ASSERT_TRUE(rule.has_value()) << rule.error().to_string();
  RewardRegistry registry;
  ASSERT_TRUE(registry.add_batch("py", *std::move(rule)).has_value());
  const std::vector<RewardInput> inputs(4, row("1"));
  const auto outcomes = registry.score_all(inputs, Deadline::in(std::chrono::seconds(60)));
  ASSERT_FALSE(outcomes.has_value());
  EXPECT_THAT(outcomes.error().to_string(), HasSubstr("has never answered"));
  EXPECT_THAT(outcomes.error().to_string(), HasSubstr("/no/such/script.py"));
}

TEST(RewardRegistry, BatchRulesMustGiveOneFiniteOutcomeAnInput) {
  RewardRegistry registry;
  ASSERT_TRUE(registry.add_batch(
      "few", [](std::span<const RewardInput>, Deadline) { return std::vector<RewardOutcome>{}; }));
  ASSERT_TRUE(registry.add_batch("nan", [](std::span<const RewardInput> inputs, Deadline) {
    return std::vector<RewardOutcome>(
        inputs.size(), {.score = {.score = std::nan(""), .extras = {}, .answer = {}}});
  }));
  EXPECT_TRUE(registry.any_batch());
  EXPECT_TRUE(registry.is_batch("few"));
  EXPECT_THAT(registry.score(row("1", "few")).error().message, HasSubstr("0 outcomes for 1"));
  EXPECT_THAT(registry.score(row("1", "nan")).error().message, HasSubstr("finite"));
  const std::vector<RewardInput> inputs{row("1", "few"), row("1", "other")};
  const auto unknown = registry.score_all(inputs, Deadline::by_default(), {}, 10);
  EXPECT_THAT(unknown.error().to_string(), HasSubstr("row 11 (other)"));
}

}  // namespace
}  // namespace troupe::actors

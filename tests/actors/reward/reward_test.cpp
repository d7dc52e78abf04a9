// Proves the registry: what a rule may return, which rule a data source gets, and that faults are
// errors naming the source.

#include "actors/reward/reward.hpp"

#include "actors/reward/expression.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace troupe::actors {
namespace {

using testing::HasSubstr;

RewardInput input_for(std::string_view source, std::string_view solution = "1",
                      std::string_view truth = "1") {
  return {.data_source = source, .solution = solution, .ground_truth = truth, .extra_info = "{}"};
}

TEST(RewardRegistry, AcceptsRulesThatReturnNumbersBoolsScoresOrResults) {
  RewardRegistry registry;
  ASSERT_TRUE(registry.add("number", [](const RewardInput&) { return 0.25; }));
  ASSERT_TRUE(registry.add("truth", [](const RewardInput& in) { return in.solution == "1"; }));
  ASSERT_TRUE(registry.add("score", [](const RewardInput&) {
    return RewardScore{.score = 2.0, .extras = {{"length", 3.0}}, .answer = "a"};
  }));
  ASSERT_TRUE(registry.add("result", [](const RewardInput&) -> result<RewardScore> {
    return fail(ErrorCode::kIo, "judge is away");
  }));
  EXPECT_EQ(registry.score(input_for("number"))->score, 0.25);
  EXPECT_EQ(registry.score(input_for("truth"))->score, 1.0);
  EXPECT_EQ(registry.score(input_for("score"))->extras.at("length"), 3.0);
  EXPECT_EQ(registry.score(input_for("result")).error().code, ErrorCode::kIo);
  EXPECT_EQ(registry.score_as("number", input_for("unheard of"))->score, 0.25);
}

TEST(RewardRegistry, ExactNamesWinOverPrefixesAndLongPrefixesOverShort) {
  RewardRegistry registry;
  ASSERT_TRUE(registry.add("a*", [](const RewardInput&) { return 1; }));
  ASSERT_TRUE(registry.add("ab*", [](const RewardInput&) { return 2; }));
  ASSERT_TRUE(registry.add("abc", [](const RewardInput&) { return 3; }));
  EXPECT_EQ(registry.score(input_for("abc"))->score, 3.0);
  EXPECT_EQ(registry.score(input_for("abd"))->score, 2.0);
  EXPECT_EQ(registry.score(input_for("ab"))->score, 2.0);
  EXPECT_EQ(registry.score(input_for("ax"))->score, 1.0);
  EXPECT_FALSE(registry.covers("b"));
  EXPECT_TRUE(registry.covers("a"));
}

TEST(RewardRegistry, RefusesTakenAndEmptyNamesUnlessReplaced) {
  RewardRegistry registry = default_rewards();
  const auto taken = registry.add("openai/gsm8k", [](const RewardInput&) { return 0.5; });
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(taken.error().message, HasSubstr("openai/gsm8k"));
  EXPECT_EQ(registry.add("", [](const RewardInput&) { return 0; }).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(registry.add("f", RewardFunction{}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(registry.replace("openai/gsm8k", [](const RewardInput&) { return 0.5; }));
  EXPECT_EQ(registry.score(input_for("openai/gsm8k"))->score, 0.5);
  EXPECT_EQ(default_rewards().score(input_for("openai/gsm8k"))->score, 1.0)
      << "registries are values";
}

TEST(RewardRegistry, AnUnknownSourceIsAnErrorThatListsTheKnownOnes) {
  const auto score = default_rewards().score(input_for("openai/gsm9k"));
  ASSERT_FALSE(score);
  EXPECT_EQ(score.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(score.error().message, HasSubstr("openai/gsm9k"));
  EXPECT_THAT(score.error().message, HasSubstr("openai/gsm8k"));
}

TEST(RewardRegistry, AScoreThatIsNotFiniteIsAnErrorNamingTheSource) {
  RewardRegistry registry;
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    ASSERT_TRUE(registry.replace("bad", [bad](const RewardInput&) { return bad; }));
    const auto score = registry.score(input_for("bad"));
    ASSERT_FALSE(score);
    EXPECT_EQ(score.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(score.error().message, HasSubstr("'bad'"));
  }
}

TEST(DefaultRewards, CoverTheSourcesThatTheirDocumentLists) {
  const RewardRegistry registry = default_rewards();
  for (const char* source :
       {"openai/gsm8k", "gsm8k", "math", "lighteval/MATH", "lighteval/MATH-Hard",
        "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math_dapo", "aime2024",
        "exact_match", "troupe/sort", "troupe/reverse", "troupe/copy", "troupe/chain-sum"})
    EXPECT_EQ(registry.score(input_for(source))->extras.at("acc"), 1.0) << source;
  EXPECT_EQ(registry.score(input_for("troupe/countdown", "1+2", R"({"numbers":[1,2],"target":3})"))
                ->score,
            1.0);
  const RewardRegistry partial = default_rewards({.partial_credit = true});
  EXPECT_EQ(partial.score(input_for("troupe/sort", "1 3", "1 2"))->score, 0.5);
  EXPECT_EQ(registry.score(input_for("troupe/sort", "1 3", "1 2"))->score, 0.0);
}

TEST(Expression, FollowsPrecedenceAndRefusesWhatIsTooDeepOrTooLong) {
  EXPECT_EQ(evaluate_expression("2+3*4-6/3")->value, Rational::make(12));
  EXPECT_EQ(evaluate_expression("(2+3)*4")->value, Rational::make(20));
  EXPECT_EQ(evaluate_expression("8-3-2")->value, Rational::make(3));
  EXPECT_EQ(evaluate_expression("8/4/2")->value, Rational::make(1));
  EXPECT_EQ(evaluate_expression("1/3+1/6")->value, Rational::make(1, 2));
  EXPECT_EQ(evaluate_expression(" 1 + ( 2 ) ")->numbers, (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(evaluate_expression(std::string(31, '(') + "1" + std::string(31, ')')));
  EXPECT_FALSE(evaluate_expression(std::string(400, '(') + "1" + std::string(400, ')')));
  EXPECT_FALSE(evaluate_expression(std::string(400, '-') + "1"));
  EXPECT_FALSE(evaluate_expression(std::string(2000, '1')));
  EXPECT_FALSE(evaluate_expression("999999999999999999*999999999999999999"));
  EXPECT_FALSE(evaluate_expression("1 2"));
  EXPECT_FALSE(evaluate_expression("1/0"));
  EXPECT_FALSE(evaluate_expression("2(3)"));
}

TEST(DefaultRewards, AnEpisodeThatWasCutShortScoresNothing) {
  const auto score = default_rewards().score(
      {.data_source = "troupe/guess", .solution = "4>7", .ground_truth = "7", .extra_info = {}});
  ASSERT_TRUE(score.has_value());
  EXPECT_EQ(score->score, 0.0);
}

}  // namespace
}  // namespace troupe::actors

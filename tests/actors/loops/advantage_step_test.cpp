// Proves the controller's part of a step: which columns it reads, how padding, masks and an
// in-reward KL enter, and that wrong columns are refused by name. The estimators themselves are
// tested in tests/actors/algorithm.

#include "actors/loops/advantage_step.hpp"

#include "actors/loops/columns.hpp"
#include "actors/loops/validation.hpp"
#include "runtime/task/failure.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::value_or_throw;

void put(Batch& batch, std::string_view name, Column column) {
  value_or_throw(batch.set(std::string(name), std::move(column)));
}

/// Four samples in two groups, lengths 2, 1, 3, 2.
Batch scored_batch(std::vector<float> scores = {1, 0, 0.5, 0.5}) {
  Batch batch;
  put(batch, column::kResponses,
      Column::jagged(std::vector<std::vector<std::int32_t>>{{5, 6}, {7}, {1, 2, 3}, {8, 9}}));
  put(batch, column::kScores, Column::dense(std::move(scores)));
  put(batch, column::kGroup, Column::dense(std::vector<std::int64_t>{0, 0, 1, 1}));
  return batch;
}

Column token_column(const Batch& batch, float value) {
  std::vector<std::vector<float>> rows;
  for (const auto length : batch.column(column::kResponses).row_lengths())
    rows.emplace_back(static_cast<std::size_t>(length), value);
  return Column::jagged(rows);
}

AdvantageStepOptions grpo() {
  AdvantageStepOptions options;
  options.estimator = *default_advantages().find("dr_grpo");
  return options;
}

TEST(AdvantageStep, SpreadsTheGroupAdvantageOverTheTokensOfEachRow) {
  AdvantageStep step(grpo());
  const auto out = step(scored_batch());
  ASSERT_TRUE(out.has_value()) << out.error().to_string();
  const Column& advantages = out->column(column::kAdvantages);
  EXPECT_EQ(advantages.values<float>(), (std::vector<float>{0.5, 0.5, -0.5, 0, 0, 0, 0, 0}));
  EXPECT_FALSE(out->has(column::kReturns));
  EXPECT_EQ(out->metrics().value("critic/zero_variance_groups"), 1);
}

TEST(AdvantageStep, LeavesPaddingRowsOutOfEveryStatistic) {
  Batch batch = scored_batch({1, 0, 0.5, 1000});
  put(batch, runtime::kValidColumn, Column::dense(std::vector<bool>{true, true, true, false}));
  AdvantageStep step(grpo());
  const auto out = step(batch);
  ASSERT_TRUE(out.has_value()) << out.error().to_string();
  EXPECT_DOUBLE_EQ(*out->metrics().value("critic/score/max"), 1);
  EXPECT_DOUBLE_EQ(*out->metrics().value("critic/score/mean"), 0.5);
  EXPECT_EQ(out->metrics().value("critic/singleton_groups"), 1);
}

TEST(AdvantageStep, SubtractsKlFromTheRewardAndMovesAnAdaptiveCoefficient) {
  Batch batch = scored_batch();
  put(batch, column::kOldLogProbs, token_column(batch, -1));
  put(batch, column::kReferenceLogProbs, token_column(batch, -1.5));
  AdvantageStepOptions options = grpo();
  options.kl_in_reward = true;
  options.kl_controller = {.beta = 0.1, .adaptive = true, .target = 0.1, .horizon = 100};
  AdvantageStep step(options);
  const auto out = step(batch);
  ASSERT_TRUE(out.has_value()) << out.error().to_string();
  // k1 = 0.5 a token, so a row of n tokens loses 0.05 n.
  EXPECT_NEAR(*out->metrics().value("critic/rewards/max"), 1 - 0.1, 1e-6);
  EXPECT_NEAR(*out->metrics().value("critic/rewards/min"), 0 - 0.05, 1e-6);
  EXPECT_NEAR(*out->metrics().value("actor/reward_kl_penalty"), 0.5, 1e-6);
  EXPECT_EQ(step.kl_controller().beta, 0.1) << "parts of a step have one coefficient";
  step.end_step();
  EXPECT_GT(step.kl_controller().beta, 0.1);
}

TEST(AdvantageStep, MovesAnAdaptiveCoefficientByAStepInPartsAsByAllOfIt) {
  Batch batch = scored_batch();
  put(batch, column::kOldLogProbs, token_column(batch, -1));
  put(batch, column::kReferenceLogProbs, token_column(batch, -1.5));
  AdvantageStepOptions options = grpo();
  options.kl_in_reward = true;
  options.kl_controller = {.beta = 0.1, .adaptive = true, .target = 0.6, .horizon = 100};
  AdvantageStep whole(options);
  ASSERT_TRUE(whole(batch).has_value());
  whole.end_step();
  AdvantageStep parts(options);
  ASSERT_TRUE(parts(batch).has_value());
  parts.abandon_step();  // of a step that broke: seen once more below
  for (const Batch& part : batch.split(2)) ASSERT_TRUE(parts(part).has_value());
  parts.end_step();
  EXPECT_NEAR(parts.kl_controller().beta, whole.kl_controller().beta, 1e-15);
  EXPECT_NE(parts.kl_controller().beta, 0.1);
  parts.end_step();  // nothing was seen since
  EXPECT_NEAR(parts.kl_controller().beta, whole.kl_controller().beta, 1e-15);
}

TEST(AdvantageStep, NamesTheColumnThatIsMissingOrOfAnotherLength) {
  AdvantageStepOptions options = grpo();
  options.kl_in_reward = true;
  AdvantageStep step(options);
  const auto missing = step(scored_batch());
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("old_log_probs"), std::string::npos);

  Batch batch = scored_batch();
  put(batch, column::kOldLogProbs, token_column(batch, -1));
  put(batch, column::kReferenceLogProbs,
      Column::jagged(std::vector<std::vector<float>>{{0, 0}, {0}, {0, 0}, {0, 0}}));
  const auto shorter = step(batch);
  ASSERT_FALSE(shorter.has_value());
  EXPECT_EQ(shorter.error().code, ErrorCode::kConflict);
  EXPECT_NE(shorter.error().message.find("ref_log_prob row 2"), std::string::npos)
      << shorter.error().message;
}

TEST(AdvantageStep, RefusesAMaskThatMatchesInTotalButNotRowByRow) {
  Batch batch = scored_batch();
  put(batch, column::kResponseMask,
      Column::jagged(std::vector<std::vector<std::uint8_t>>{{1}, {1, 1}, {1, 1, 1}, {1, 1}}));
  const auto refused = AdvantageStep(grpo())(batch);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("response_mask row 0"), std::string::npos)
      << refused.error().message;
}

TEST(AdvantageStep, RefusesWhatAnEstimatorReturnsInTheWrongNumber) {
  const auto returning = [](std::size_t advantages, std::size_t returns) {
    AdvantageStepOptions options;
    options.estimator = [advantages, returns](const AdvantageInput&,
                                              const AdvantageOptions&) -> result<AdvantageOutput> {
      AdvantageOutput output;
      output.advantages.assign(advantages, 0.0F);
      output.returns.assign(returns, 0.0F);
      return output;
    };
    return options;
  };
  EXPECT_TRUE(AdvantageStep(returning(8, 0))(scored_batch()).has_value());
  AdvantageStepOptions with_critic = returning(8, 0);
  with_critic.keep_returns = true;
  for (const auto& [options, wanted] :
       std::vector<std::pair<AdvantageStepOptions, std::string>>{{returning(7, 8), "7 advantages"},
                                                                 {returning(8, 9), "9 returns"},
                                                                 {with_critic, "0 returns"}}) {
    const auto refused = AdvantageStep(options)(scored_batch());
    ASSERT_FALSE(refused.has_value()) << wanted;
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_NE(refused.error().message.find(wanted), std::string::npos) << refused.error().message;
  }
}

TEST(AdvantageStep, IgnoresWhatMaskedSlotsHold) {
  Batch batch = scored_batch();
  put(batch, column::kResponseMask,
      Column::jagged(std::vector<std::vector<std::uint8_t>>{{1, 1}, {1}, {1, 0, 1}, {1, 1}}));
  AdvantageStepOptions options;
  options.estimator = *default_advantages().find("gae");
  options.keep_returns = true;
  AdvantageStep step(options);
  std::vector<std::vector<float>> values{{0, 0}, {0}, {0, 0, 0}, {0, 0}};
  put(batch, column::kValues, Column::jagged(values));
  const auto clean = step(batch);
  values[2][1] = std::numeric_limits<float>::quiet_NaN();
  put(batch, column::kValues, Column::jagged(values));
  const auto garbage = step(batch);
  ASSERT_TRUE(clean.has_value() && garbage.has_value());
  EXPECT_TRUE(
      clean->column(column::kAdvantages).bitwise_equal(garbage->column(column::kAdvantages)));
  EXPECT_TRUE(clean->column(column::kReturns).bitwise_equal(garbage->column(column::kReturns)));
}

TEST(ValidationTally, AveragesSamplesAndTakesTheBestOfEachPromptBySource) {
  Batch batch;
  put(batch, column::kDataSource, Column::strings({"a", "a", "a", "a", "b", "b"}));
  put(batch, column::kGroup, Column::dense(std::vector<std::int64_t>{0, 0, 1, 1, 2, 2}));
  put(batch, column::kScores, Column::dense(std::vector<float>{1, 0, 0.5, 0, 0, 0}));
  put(batch, column::kAccuracy, Column::dense(std::vector<float>{1, 0, 0, 0, 0, 0}));
  put(batch, column::kResponses,
      Column::jagged(std::vector<std::vector<std::int32_t>>{{1}, {1, 2, 3}, {1}, {1}, {1}, {1}}));
  ValidationTally tally(2);
  ASSERT_TRUE(tally.add(batch).has_value());
  const auto metrics = tally.metrics();
  EXPECT_DOUBLE_EQ(*metrics.value("val-core/a/acc/mean@2"), 0.25);
  EXPECT_DOUBLE_EQ(*metrics.value("val-core/a/acc/best@2"), 0.5);
  EXPECT_DOUBLE_EQ(*metrics.value("val-aux/a/reward/mean@2"), 0.375);
  EXPECT_DOUBLE_EQ(*metrics.value("val-aux/a/response_length/mean"), 1.5);
  EXPECT_DOUBLE_EQ(*metrics.value("val-core/b/acc/best@2"), 0);
}

}  // namespace
}  // namespace troupe::actors

// Proves how samples are numbered and counted: groups and places before generation, lengths and
// stop reasons after it, and that validation numbers, scores and sums up every batch of prompts.

#include "actors/loops/sample_numbering.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/validation.hpp"
#include "runtime/task/executor.hpp"
#include "tests/actors/loops/fake_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors::testing {
namespace {

using ::testing::ElementsAre;
using Tokens = std::vector<std::vector<std::int32_t>>;

Batch prompts_of(const Tokens& tokens, const std::string& source) {
  Batch batch;
  value_or_throw(batch.set(std::string(column::kPrompts), Column::jagged(tokens)));
  value_or_throw(batch.set(std::string(column::kDataSource),
                           Column::strings(std::vector<std::string>(tokens.size(), source))));
  return batch;
}

TEST(NumberSamples, GivesEverySampleItsGroupAndPlace) {
  const auto samples = number_samples(prompts_of({{1, 2}, {3}}, "a"), 3);
  ASSERT_TRUE(samples.has_value()) << samples.error().to_string();
  EXPECT_THAT(samples->column(column::kGroup).values<std::int64_t>(),
              ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(samples->column(column::kSampleIndex).values<std::int64_t>(),
              ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(samples->column(column::kPrompts).row_lengths(), ElementsAre(2, 2, 2, 1, 1, 1));
}

TEST(LengthMetrics, CountsTokensAndStopReasons) {
  Batch batch = prompts_of({{1, 2}, {3}, {4}, {5, 6}}, "a");
  value_or_throw(batch.set(std::string(column::kResponses),
                           Column::jagged(Tokens{{1, 2, 3}, {1}, {}, {1, 2}})));
  value_or_throw(batch.set(std::string(column::kStopReason),
                           Column::strings({"length", "stop_id", "failed", "aborted"})));
  const auto metrics = length_metrics(batch);
  ASSERT_TRUE(metrics.has_value()) << metrics.error().to_string();
  EXPECT_DOUBLE_EQ(*metrics->value("response_length/mean"), 1.5);
  EXPECT_DOUBLE_EQ(*metrics->value("response_length/max"), 3);
  EXPECT_DOUBLE_EQ(*metrics->value("response_length/min"), 0);
  EXPECT_DOUBLE_EQ(*metrics->value("response_length/clip_ratio"), 0.25);
  EXPECT_DOUBLE_EQ(*metrics->value("response/failed"), 1);
  EXPECT_DOUBLE_EQ(*metrics->value("response/aborted_ratio"), 0.25);
  EXPECT_DOUBLE_EQ(*metrics->value("prompt_length/mean"), 1.5);
  EXPECT_DOUBLE_EQ(*metrics->value("perf/total_num_tokens"), 12);

  const auto missing = length_metrics(prompts_of({{1}}, "a"));
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("responses"), std::string::npos);
}

TEST(Validate, SumsUpEveryBatchAndKeepsItWhenAsked) {
  FakeWorld world;
  std::vector<Batch> batches{prompts_of({{1}, {2}}, "a"), prompts_of({{3}}, "b")};
  std::vector<Batch> kept;
  runtime::Executor executor;
  const auto metrics = executor.run(
      validate<FakeWorld>(world.rollout, world.reward, std::move(batches), 2, {}, &kept));
  ASSERT_TRUE(metrics.has_value()) << metrics.error().to_string();
  // The fake scores sample i with i + 0.25, as accuracy too.
  EXPECT_DOUBLE_EQ(*metrics->value("val-core/a/acc/mean@2"), 0.75);
  EXPECT_DOUBLE_EQ(*metrics->value("val-core/a/acc/best@2"), 1.25);
  EXPECT_DOUBLE_EQ(*metrics->value("val-aux/b/reward/mean@2"), 0.75);
  EXPECT_THAT(world.log.calls, ElementsAre("generate", "score", "generate", "score"));
  ASSERT_EQ(kept.size(), 2U);
  EXPECT_EQ(kept[0].rows(), 4);
  EXPECT_TRUE(kept[1].has(column::kScores));
}

}  // namespace
}  // namespace troupe::actors::testing

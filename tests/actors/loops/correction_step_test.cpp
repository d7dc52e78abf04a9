// Proves the controller's off-policy part of a step: which behaviour log-probs a loop learns with,
// when old log-probs are not asked for, that weights are those of rollout_correction over the whole
// batch in any order of parts, that padding counts nowhere, and what is logged when nothing is
// corrected.
#include "actors/loops/correction_step.hpp"

#include "actors/loops/columns.hpp"
#include "actors/loops/synchronous.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/task/failure.hpp"
#include "tests/actors/loops/fake_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace troupe::actors::testing {
namespace {

using ::testing::ElementsAre;

void put(Batch& batch, std::string_view name, Column column) {
  value_or_throw(batch.set(std::string(name), std::move(column)));
}

using Rows = std::vector<std::vector<float>>;

/// Three samples of lengths 2, 1 and 3; ratios e^0.5, 1, and 4 down to 1/4.
Batch sampled() {
  Batch batch;
  put(batch, column::kResponses,
      Column::jagged(std::vector<std::vector<std::int32_t>>{{5, 6}, {7}, {1, 2, 3}}));
  put(batch, column::kOldLogProbs,
      Column::jagged(Rows{{-1.0F, -1.0F}, {-2.0F}, {-1.0F, -1.0F, -3.0F}}));
  const float four = std::log(4.0F);
  put(batch, column::kRolloutLogProbs,
      Column::jagged(Rows{{-1.5F, -1.0F}, {-2.0F}, {-1.0F - four, -1.0F, -3.0F + four}}));
  put(batch, column::kAdvantages, Column::jagged(Rows{{1, 1}, {-1}, {-1, -1, -1}}));
  return batch;
}

TEST(CorrectionStep, CapsWeightsAndTellsWhatItDid) {
  const CorrectionStep step({.correction = {.weight_level = RolloutWeightLevel::kToken}});
  const Batch out = step.weights(sampled()).value();
  const std::vector<float> weights = out.column(column::kRolloutWeights).values<float>();
  EXPECT_NEAR(weights[0], std::exp(0.5F), 1e-6F);
  EXPECT_EQ(weights[1], 1.0F);
  EXPECT_EQ(weights[2], 1.0F);
  EXPECT_EQ(weights[3], 2.0F);  // 4, capped
  EXPECT_EQ(weights[5], 0.25F);
  EXPECT_NEAR(*out.metrics().value("rollout_corr/weight_fraction_high"), 1.0 / 6, 1e-12);
  EXPECT_EQ(out.metrics().value("rollout_corr/masked_fraction"), 0);
  EXPECT_EQ(out.metrics().find("rollout_corr/kl"), nullptr) << "the trainer reports raw ratios";
}

TEST(CorrectionStep, LooksAtAllRowsWhereTheyInfluenceEachOther) {
  const CorrectionStep step({.correction = {.second_moment_max = 0.5}});
  EXPECT_TRUE(step.needs_whole_batch());
  const Batch out = step.weights(sampled()).value();
  EXPECT_THAT(out.column(column::kRolloutWeights).values<float>(), ElementsAre(1, 1, 1, 0, 1, 0));
  EXPECT_NEAR(*out.metrics().value("rollout_corr/masked_fraction/second_moment"), 2.0 / 6, 1e-12);
}

TEST(CorrectionStep, LeavesMasksAndPaddingOut) {
  Batch batch = sampled();
  put(batch, column::kResponseMask,
      Column::jagged(std::vector<std::vector<std::uint8_t>>{{1, 0}, {1}, {1, 1, 1}}));
  put(batch, runtime::kValidColumn, Column::dense(std::vector<bool>{true, true, false}));
  const CorrectionStep step({.correction = {.weight_level = RolloutWeightLevel::kToken}});
  const Batch out = step.weights(batch).value();
  EXPECT_THAT(out.column(column::kRolloutWeights).values<float>(),
              ElementsAre(::testing::FloatNear(std::exp(0.5F), 1e-6F), 0, 1, 0, 0, 0));
}

TEST(CorrectionStep, ComputesNothingWhereNothingIsCorrected) {
  Batch batch = sampled();
  const CorrectionStep none({});
  runtime::PullMeter meter;
  const Batch out = none.weights(batch, &meter).value();
  EXPECT_FALSE(out.has(column::kRolloutWeights));
  EXPECT_EQ(meter.bytes(), 0);
  EXPECT_EQ(out.metrics().value("rollout_corr/masked_fraction"), 0);
  const CorrectionStep inside({.correction = {.proximal = ProximalSource::kRollout,
                                              .weight_level = RolloutWeightLevel::kToken},
                               .in_loss = true});
  EXPECT_FALSE(inside.weights(batch).value().has(column::kRolloutWeights));
}

TEST(CorrectionStep, TakesTheLogProbsOfWhatWasDrawnFrom) {
  Batch batch = sampled();
  put(batch, column::kProcessedLogProbs,
      Column::jagged(Rows{{-0.5F, -0.5F}, {-0.5F}, {-0.5F, -0.5F, -0.5F}}));
  Batch full = batch;
  ASSERT_TRUE(CorrectionStep({.log_probs = LogProbKind::kFull}).begin(full));
  EXPECT_EQ(full.column(column::kRolloutLogProbs).values<float>()[0], -1.5F);
  ASSERT_TRUE(CorrectionStep({.log_probs = LogProbKind::kProcessed}).begin(batch));
  EXPECT_EQ(batch.column(column::kRolloutLogProbs).values<float>()[0], -0.5F);
  Batch plain = sampled();  // sampling did not truncate: there is one kind only
  ASSERT_TRUE(CorrectionStep({.log_probs = LogProbKind::kProcessed}).begin(plain));
  EXPECT_EQ(plain.column(column::kRolloutLogProbs).values<float>()[0], -1.5F);
}

TEST(CorrectionStep, NamesTheColumnThatIsMissing) {
  const CorrectionStep step({.correction = {.negative_kl_max = 0.1}});
  Batch batch;
  put(batch, column::kResponses, Column::jagged(std::vector<std::vector<std::int32_t>>{{1}}));
  EXPECT_THAT(step.weights(batch).error().message, ::testing::HasSubstr("old_log_probs"));
  const CorrectionStep bypass({.correction = {.proximal = ProximalSource::kRollout}});
  EXPECT_THAT(bypass.begin(batch).error().message, ::testing::HasSubstr("rollout_log_probs"));
}

TEST(CorrectionStep, SparesTheForwardPassWhereTheRolloutsLogProbsAreTheProximalOnes) {
  for (const bool bypass : {false, true}) {
    FakeWorld world;
    AdvantageStepOptions options;
    options.estimator = *default_advantages().find("grpo");
    AdvantageStep advantage(options);
    const CorrectionStep correction(
        {.correction = {.proximal =
                            bypass ? ProximalSource::kRollout : ProximalSource::kRecompute}});
    Cast<FakeWorld> cast{.world = world,
                         .rollout = world.rollout,
                         .reward = world.reward,
                         .policy = world.policy,
                         .weights = world.weights,
                         .advantage = advantage,
                         .sampling = {},
                         .correction = &correction};
    StepReport report{.step = 1, .metrics = {}};
    StepTimer timer(world.clock(), report.metrics);
    Batch batch = sampled();
    Batch prompts;
    put(batch, column::kScores, Column::dense(std::vector<float>{1, 0, 0.5}));
    put(batch, column::kGroup, Column::dense(std::vector<std::int64_t>{0, 0, 0}));
    put(batch, column::kStopReason, Column::strings(std::vector<std::string>(3, "stop_id")));
    put(batch, column::kPrompts,
        Column::jagged(std::vector<std::vector<std::int32_t>>{{1}, {1}, {1}}));
    put(prompts, column::kPromptIds, Column::dense(std::vector<std::int64_t>{1}));
    const Batch kept = value_or_throw(
        batch.select({std::string(column::kResponses), std::string(column::kRolloutLogProbs),
                      std::string(column::kScores), std::string(column::kGroup),
                      std::string(column::kStopReason), std::string(column::kPrompts)}));
    runtime::Executor executor;
    const auto done = executor.run(learn(cast, kept, prompts, 1, report, timer));
    ASSERT_TRUE(done.has_value()) << done.error().to_string();
    EXPECT_EQ(std::ranges::count(world.log.calls, "policy"), bypass ? 0 : 1);
    const float old = world.policy.updated.column(column::kOldLogProbs).values<float>()[0];
    EXPECT_EQ(old, bypass ? -1.5F : -0.5F);
  }
}

}  // namespace
}  // namespace troupe::actors::testing

// Proves rollout importance weights and reward shaping: against formulas written out row by row,
// with masked garbage and infinite ratios among the input.
#include "actors/algorithm/correction.hpp"
#include "actors/algorithm/reward_shaping.hpp"

#include "tests/actors/algorithm/matrix_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using test::Case;

TEST(RolloutWeights, AgreeWithTheFormulaAtEachLevel) {
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng);
    RolloutWeightOptions options{.level = static_cast<RolloutWeightLevel>(trial % 3), .high = 1.4};
    options.mask_outside = trial % 2 == 1;
    if (options.mask_outside) options.low = 0.7;
    const auto found =
        rollout_weights(data.view(), data.column("old"), data.column("rollout"), options).value();
    const auto old = test::unpack(data, data.column("old"));
    const auto rollout = test::unpack(data, data.column("rollout"));
    test::Matrix expected = test::zeros_like(old);
    for (std::size_t b = 0; b < expected.size(); ++b) {
      double sum = 0;
      double length = 0;
      for (std::size_t j = 0; j < expected[b].size(); ++j)
        if (old.mask[b][j]) {
          sum += old.value[b][j] - rollout.value[b][j];
          length += 1;
        }
      for (std::size_t j = 0; j < expected[b].size(); ++j) {
        if (!old.mask[b][j]) continue;
        double x = old.value[b][j] - rollout.value[b][j];
        if (options.level == RolloutWeightLevel::kSequence) x = sum;
        if (options.level == RolloutWeightLevel::kGeometric) x = sum / length;
        const double weight = std::exp(x);
        expected[b][j] = std::min(weight, 1.4);
        if (options.mask_outside && (weight > 1.4 || weight < 0.7)) expected[b][j] = 0;
      }
    }
    const std::vector<double> packed = test::repack(data, expected);
    for (std::size_t t = 0; t < data.tokens(); ++t)
      EXPECT_NEAR(found.weights[t], packed[t], 1e-6) << "token " << t;
  }
}

TEST(RolloutWeights, SamePoliciesGiveOnesAndExtremesStayFinite) {
  Rng rng(2);
  Case data = test::random_case(rng, {.masked = 0, .all_masked = 0});
  const auto same = rollout_weights(data.view(), data.column("old"), data.column("old"), {}).value();
  EXPECT_THAT(same.weights, ::testing::Each(1.0F));
  EXPECT_EQ(*same.metrics.mean("rollout_corr/kl"), 0);
  EXPECT_EQ(*same.metrics.mean("rollout_corr/weight_mean"), 1);
  data.column("old")[0] = -INFINITY;
  data.column("rollout")[1] = -INFINITY;
  for (int level = 0; level < 3; ++level) {
    const auto found = rollout_weights(data.view(), data.column("old"), data.column("rollout"),
                                       {.level = static_cast<RolloutWeightLevel>(level)})
                           .value();
    for (const float weight : found.weights) {
      EXPECT_GE(weight, 0);
      EXPECT_LE(weight, 2);
    }
    for (const auto& [name, entry] : found.metrics.entries()) EXPECT_TRUE(std::isfinite(entry.sum));
  }
}

TEST(RolloutWeights, LongSequencesAreHeldAtTwentyNatsAndReported) {
  Case data;
  data.offsets = {0, 50, 51};
  data.mask.assign(51, 1);
  data.groups = data.ids = {0, 1};
  data.columns["old"].assign(51, -1.0F);
  data.columns["rollout"].assign(51, -3.0F);
  data.column("rollout")[50] = -1.0F;
  const auto found =
      rollout_weights(data.view(), data.column("old"), data.column("rollout"),
                      {.level = RolloutWeightLevel::kSequence, .high = 1e12})
          .value();
  EXPECT_FLOAT_EQ(found.weights[0], static_cast<float>(std::exp(20.0)));
  EXPECT_EQ(found.weights[50], 1);
  const auto capped = rollout_weights(data.view(), data.column("old"), data.column("rollout"),
                                      {.level = RolloutWeightLevel::kSequence})
                          .value();
  EXPECT_DOUBLE_EQ(*capped.metrics.mean("rollout_corr/weight_fraction_high"), 50.0 / 51);
  EXPECT_DOUBLE_EQ(*capped.metrics.mean("rollout_corr/weight_mean"), 101.0 / 51);
  EXPECT_DOUBLE_EQ(*capped.metrics.mean("rollout_corr/kl"), -100.0 / 51);
}

TEST(RolloutWeights, RefusesOptionsThatWouldBeIgnored) {
  Rng rng(3);
  const Case data = test::random_case(rng);
  const auto with = [&](const RolloutWeightOptions& options) {
    return rollout_weights(data.view(), data.column("old"), data.column("rollout"), options);
  };
  EXPECT_EQ(with({.high = 0}).error().code, ErrorCode::kConfig);
  EXPECT_EQ(with({.high = INFINITY}).error().code, ErrorCode::kConfig);
  EXPECT_EQ(with({.low = 0.5}).error().code, ErrorCode::kConfig);
  EXPECT_EQ(with({.low = 3, .mask_outside = true}).error().code, ErrorCode::kConfig);
  EXPECT_EQ(rollout_weight_level_from_name("tokens").error().code, ErrorCode::kConfig);
  EXPECT_EQ(rollout_weight_level_from_name("geometric").value(), RolloutWeightLevel::kGeometric);
}

TEST(PlaceRewards, PutsTheScoreOnTheLastTokenOfThePolicy) {
  const std::vector<std::int64_t> offsets = {0, 3, 3, 6, 8};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 1, 0, 0, 0, 0};
  const std::vector<float> scores = {2, NAN, -1, NAN};
  const TokenBatchView batch{.offsets = offsets, .mask = mask};
  const PlacedRewards placed = place_rewards(batch, scores).value();
  EXPECT_THAT(placed.rewards, ::testing::ElementsAre(0, 0, 2, -1, 0, 0, 0, 0));
  EXPECT_EQ(placed.empty_sequences, 2);
  EXPECT_FALSE(place_rewards(batch, std::vector<float>{1, 2}).has_value());
  EXPECT_THAT(place_rewards(batch, std::vector<float>{1, 1, NAN, 1}).error().message,
              ::testing::HasSubstr("sequence 2"));
}

TEST(OverlongPenalty, GrowsLinearlyOverTheBuffer) {
  const OverlongOptions options{.response_tokens_max = 100, .buffer_tokens = 20, .factor = 2};
  EXPECT_EQ(overlong_penalty(0, options), 0);
  EXPECT_EQ(overlong_penalty(80, options), 0);
  EXPECT_DOUBLE_EQ(overlong_penalty(81, options), -0.1);
  EXPECT_DOUBLE_EQ(overlong_penalty(90, options), -1);
  EXPECT_DOUBLE_EQ(overlong_penalty(100, options), -2);
  EXPECT_TRUE(options.check().has_value());
  EXPECT_FALSE((OverlongOptions{.response_tokens_max = 10, .buffer_tokens = 0}).check());
  EXPECT_FALSE((OverlongOptions{.response_tokens_max = 10, .buffer_tokens = 11}).check());
  EXPECT_FALSE(
      (OverlongOptions{.response_tokens_max = 10, .buffer_tokens = 5, .factor = -1}).check());
}

TEST(VariedGroups, DropsGroupsOfEqualScoresAndKeepsSingletons) {
  const std::vector<std::int64_t> groups = {7, -7, 7, -7, 3, 9, 9, 9};
  const std::vector<float> scores = {1, 0.1F, 0, 0.1F, 5, 2, 2, 2.5F};
  EXPECT_THAT(rows_of_varied_groups(groups, scores).value(),
              ::testing::ElementsAre(0, 2, 4, 5, 6, 7));
  EXPECT_TRUE(rows_of_varied_groups({}, {}).value().empty());
  EXPECT_FALSE(rows_of_varied_groups(groups, std::vector<float>{1}).has_value());
  EXPECT_THAT(rows_of_varied_groups(groups, std::vector<float>{0, 0, 0, NAN, 0, 0, 0, 0})
                  .error()
                  .message,
              ::testing::HasSubstr("row 3"));
}

}  // namespace
}  // namespace troupe::actors

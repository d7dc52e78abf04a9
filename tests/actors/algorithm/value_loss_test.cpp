// Proves the critic's loss, its gradient, the explained variance and plain aggregation: against
// padded matrices and central differences, and that splits add up.
#include "actors/algorithm/value_loss.hpp"

#include "tests/actors/algorithm/matrix_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using test::Case;

ValueLossInput input_of(const Case& data, const LossNormaliser& normaliser) {
  return {.tokens = data.view(),
          .values = data.column("values"),
          .old_values = data.column("old_values"),
          .returns = data.column("returns"),
          .normaliser = normaliser};
}

double reference(const Case& data, double clip, LossAggregation mode, std::size_t row,
                 std::size_t column, double step) {
  const auto values = test::unpack(data, data.column("values"));
  const auto old_values = test::unpack(data, data.column("old_values"));
  const auto returns = test::unpack(data, data.column("returns"));
  test::Matrix loss = test::zeros_like(values);
  for (std::size_t b = 0; b < loss.size(); ++b)
    for (std::size_t j = 0; j < loss[b].size(); ++j) {
      if (!values.mask[b][j]) continue;
      const double v = values.value[b][j] + (b == row && j == column ? step : 0);
      const double old = old_values.value[b][j];
      const double target = returns.value[b][j];
      const double held = std::min(std::max(v, old - clip), old + clip);
      const double plain = (v - target) * (v - target);
      loss[b][j] = 0.5 * (clip > 0 ? std::max(plain, (held - target) * (held - target)) : plain);
    }
  return test::aggregate_matrix(loss, values.mask, mode);
}

TEST(ValueLoss, AgreesWithTheMatrixReferenceAndItsDifferences) {
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng);
    const auto mode = static_cast<LossAggregation>(trial % 5);
    const double clip = trial % 3 == 0 ? 0.0 : 0.4;
    const auto found =
        value_loss(input_of(data, data.normaliser()), {.aggregation = mode, .clip = clip}).value();
    EXPECT_NEAR(found.loss.value, reference(data, clip, mode, 0, 0, 0), 1e-8);
    for (std::size_t b = 0; b < data.sequences(); ++b)
      for (std::int64_t t = data.offsets[b]; t < data.offsets[b + 1]; ++t) {
        const auto j = static_cast<std::size_t>(t - data.offsets[b]);
        const double slope = data.mask[static_cast<std::size_t>(t)] == 0
                                 ? 0
                                 : (reference(data, clip, mode, b, j, 1e-6) -
                                    reference(data, clip, mode, b, j, -1e-6)) /
                                       2e-6;
        EXPECT_NEAR(found.loss.gradient[static_cast<std::size_t>(t)], slope, 1e-6);
      }
  }
}

TEST(ValueLoss, SplitsAndPaddingAddUpToTheWhole) {
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial) + 100);
    const Case data = test::random_case(rng);
    const ValueLossOptions options{.aggregation = static_cast<LossAggregation>(trial % 5)};
    const auto whole = value_loss(input_of(data, data.normaliser()), options).value();
    const auto wide = value_loss(
        input_of(test::pad(data, rng).data, data.normaliser()), options);
    EXPECT_EQ(wide.value().loss.value, whole.loss.value);
    double sum = 0;
    WeightedSums metrics;
    for (const auto& rows : test::random_split(data.sequences(), 4, rng)) {
      const Case part = test::take(data, rows);
      const auto found = value_loss(input_of(part, data.normaliser()), options).value();
      sum += found.loss.value;
      metrics.merge(found.metrics);
      const auto tokens = test::tokens_of(data, rows);
      for (std::size_t t = 0; t < tokens.size(); ++t)
        EXPECT_EQ(found.loss.gradient[t], whole.loss.gradient[tokens[t]]);
    }
    EXPECT_NEAR(sum, whole.loss.value, 1e-10);
    for (const char* name : {"critic/vf_loss", "critic/vf_clipfrac", "critic/vpred_mean"})
      EXPECT_NEAR(*metrics.mean(name), *whole.metrics.mean(name), 1e-9) << name;
  }
}

TEST(ValueLoss, EmptyIsZeroAndOldValuesMayBeMissingWithoutClip) {
  Rng rng(3);
  const Case masked = test::random_case(rng, {.all_masked = 1});
  const auto found = value_loss(input_of(masked, masked.normaliser()), {}).value();
  EXPECT_EQ(found.loss.value, 0);
  EXPECT_THAT(found.loss.gradient, ::testing::Each(0.0F));
  const Case data = test::random_case(rng, {.masked = 0, .all_masked = 0});
  ValueLossInput input = input_of(data, data.normaliser());
  input.old_values = {};
  EXPECT_TRUE(value_loss(input, {.clip = 0}).has_value());
  EXPECT_THAT(value_loss(input, {.clip = 0.5}).error().message,
              ::testing::HasSubstr("old_values"));
  EXPECT_EQ(value_loss(input, {.clip = -1}).error().code, ErrorCode::kConfig);
}

TEST(ExplainedVariance, IsOneForAPerfectCriticAndZeroForAConstant) {
  Rng rng(4);
  Case data = test::random_case(rng, {.sequences = 20});
  const auto& returns = data.column("returns");
  EXPECT_NEAR(**explained_variance(data.view(), returns, returns), 1, 1e-12);
  std::vector<float> constant(data.tokens(), 3.0F);
  EXPECT_NEAR(**explained_variance(data.view(), constant, returns), 0, 1e-6);
  std::vector<float> opposite;
  for (const float value : returns) opposite.push_back(-value);
  EXPECT_NEAR(**explained_variance(data.view(), opposite, returns), -3, 1e-6);
}

TEST(ExplainedVariance, IsEmptyWhenTheReturnsDoNotVary) {
  Rng rng(5);
  const Case data = test::random_case(rng);
  const std::vector<float> same(data.tokens(), 0.1F);
  EXPECT_FALSE(explained_variance(data.view(), data.column("values"), same)->has_value());
  const Case masked = test::random_case(rng, {.all_masked = 1});
  EXPECT_FALSE(
      explained_variance(masked.view(), masked.column("values"), masked.column("returns"))
          ->has_value());
}

TEST(Aggregation, EveryModeAgreesWithTheMatrixFormAndItsGradientIsTheWeight) {
  for (int trial = 0; trial < 50; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial) + 900);
    const Case data = test::random_case(rng);
    const auto mode = static_cast<LossAggregation>(trial % 5);
    const auto found =
        aggregate(data.view(), data.column("entropy"), mode, data.normaliser()).value();
    const auto matrix = test::unpack(data, data.column("entropy"));
    EXPECT_NEAR(found.value, test::aggregate_matrix(matrix.value, matrix.mask, mode), 1e-9);
    double linear = 0;
    for (std::size_t t = 0; t < data.tokens(); ++t)
      if (data.mask[t] != 0) linear += double{found.gradient[t]} * data.column("entropy")[t];
    EXPECT_NEAR(linear, found.value, 1e-5) << "a linear function is its gradient times its input";
  }
}

TEST(Aggregation, NothingHasNoWeight) {
  Rng rng(1);
  const Case masked = test::random_case(rng, {.all_masked = 1});
  for (int i = 0; i < 5; ++i) {
    const auto mode = static_cast<LossAggregation>(i);
    const auto weights = TokenWeights::make(masked.view(), mode, masked.normaliser()).value();
    EXPECT_EQ(weights.of_sequence(0), 0);
    EXPECT_TRUE(std::isfinite(weights.of_sequence(3)));
  }
}

TEST(Aggregation, NamesRoundTrip) {
  for (int i = 0; i < 5; ++i) {
    const auto mode = static_cast<LossAggregation>(i);
    EXPECT_EQ(loss_aggregation_from_name(loss_aggregation_name(mode)).value(), mode);
  }
  EXPECT_EQ(loss_aggregation_from_name("mean").error().code, ErrorCode::kConfig);
}

TEST(TokenBatch, BrokenLayoutsAreNamed) {
  const std::vector<std::uint8_t> mask(4, 1);
  const std::vector<std::int64_t> three(3, 0);
  const auto message = [&](std::vector<std::int64_t> offsets, bool groups = false) {
    TokenBatchView view{.offsets = offsets, .mask = mask};
    if (groups) view.groups = three;
    const auto checked = view.check();
    return checked.has_value() ? std::string() : checked.error().message;
  };
  EXPECT_EQ(message({0, 4}), "");
  EXPECT_EQ(message({0, 0, 4, 4}), "");
  for (const auto& bad : std::vector<std::vector<std::int64_t>>{
           {}, {1, 4}, {0, 5}, {0, 3}, {0, 3, 2, 4}, {0, -1, 4}, {-4, 0, 4}})
    EXPECT_THAT(message(bad), ::testing::HasSubstr("offsets"));
  EXPECT_THAT(message({0, 4}, true), ::testing::HasSubstr("groups"));
}

TEST(WeightedSums, MergeInAnyOrderAndHaveNoMeanWithoutWeight) {
  WeightedSums a;
  WeightedSums b;
  a.add("x", 6, 2);
  b.add("x", 2, 2);
  b.add("y", 0, 0);
  WeightedSums ab = a;
  ab.merge(b);
  WeightedSums ba = b;
  ba.merge(a);
  EXPECT_EQ(ab, ba);
  EXPECT_EQ(ab.mean("x"), 2);
  EXPECT_FALSE(ab.mean("y").has_value());
  EXPECT_FALSE(ab.mean("z").has_value());
}

}  // namespace
}  // namespace troupe::actors

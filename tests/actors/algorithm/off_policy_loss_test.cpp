// Proves the losses that weigh against the policy that sampled, and the proximal policy: values and
// gradients against the slow reference in double with three different policies, what is held
// constant, and the cases in which one loss must be another bit for bit.
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/proximal.hpp"
#include "tests/actors/algorithm/loss_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;
using Level = RolloutWeightLevel;
using test::Case;

constexpr LossAggregation kModes[] = {
    LossAggregation::kTokenMean, LossAggregation::kTokenSum, LossAggregation::kSeqMeanTokenSum,
    LossAggregation::kSeqMeanTokenSumNorm, LossAggregation::kSeqMeanTokenMean};

PolicyLoss loss_named(const std::string& name) {
  return default_policy_losses().find(name).value();
}

PolicyLossInput off_policy_input(const Case& data) {
  PolicyLossInput input = test::loss_input(data, true);
  input.rollout_log_probs = data.column("rollout");
  if (data.columns.contains("alphas")) input.proximal_alphas = data.column("alphas");
  return input;
}

/// Levels and bounds by trial; low only where the loss masks.
PolicyLossOptions options_of(const std::string& name, int trial) {
  PolicyLossOptions options;
  options.aggregation = kModes[trial % 5];
  options.clip_high = 0.28;
  options.clip_dual = 1.6;
  if (trial % 4 != 0) options.importance.level = static_cast<Level>(trial % 3);
  if (trial % 2 == 1) {
    options.importance.high = 1.2;
    if (name == "mis" || name == "icepop" || name == "decoupled") options.importance.low = 0.85;
  }
  return options;
}

class OffPolicy : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, OffPolicy,
                         ::testing::Values("tis", "mis", "icepop", "aipo", "topr", "decoupled",
                                           "decoupled_loglinear"),
                         [](const auto& instance) { return instance.param; });

TEST_P(OffPolicy, ValueAndGradientAreThoseOfTheReference) {
  const bool interpolates = GetParam() == "decoupled_loglinear";
  const std::string name = interpolates ? "decoupled" : GetParam();
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    Case data = test::random_case(rng);
    if (interpolates)
      for (std::size_t t = 0; t < data.tokens(); ++t)
        data.columns["alphas"].push_back(data.mask[t] != 0 ? static_cast<float>(rng.uniform())
                                                           : test::kGarbage);
    const PolicyLossOptions options = options_of(name, trial);
    test::LossCase reference = test::unpack_loss(data, true);
    reference.rollout = test::unpack(data, data.column("rollout"));
    if (interpolates) reference.alphas = test::unpack(data, data.column("alphas"));
    const PolicyLossOutput found = loss_named(name).apply(off_policy_input(data), options).value();
    const test::Matrix& log_probs = reference.log_probs.value;
    const double expected =
        test::reference_loss(name, reference, log_probs, log_probs, *options.aggregation, options);
    ASSERT_NEAR(found.loss, expected, 2e-6 * (1 + std::abs(expected)));
    for (std::size_t b = 0; b < data.sequences(); ++b)
      for (std::int64_t t = data.offsets[b]; t < data.offsets[b + 1]; ++t) {
        const auto token = static_cast<std::size_t>(t);
        const double slope =
            data.mask[token] == 0
                ? 0
                : test::reference_slope(name, reference, b,
                                        static_cast<std::size_t>(t - data.offsets[b]),
                                        *options.aggregation, options);
        ASSERT_NEAR(found.gradient[token], slope, 2e-6 * (1 + std::abs(slope)))
            << "sequence " << b << " token " << t - data.offsets[b];
      }
  }
}

TEST_P(OffPolicy, NeedsTheRolloutsLogProbsAndNamesABadOne) {
  const std::string name = GetParam() == "decoupled_loglinear" ? "decoupled" : GetParam();
  EXPECT_TRUE(loss_named(name).reads_rollout);
  Rng rng(2);
  Case data = test::random_case(rng, {.masked = 0, .all_masked = 0});
  PolicyLossInput without = off_policy_input(data);
  without.rollout_log_probs = {};
  EXPECT_THAT(loss_named(name).apply(without, {}).error().message, HasSubstr("rollout_log_probs"));
  data.column("rollout")[3] = NAN;
  EXPECT_THAT(loss_named(name).apply(off_policy_input(data), {}).error().message,
              HasSubstr("rollout_log_probs: sequence"));
  PolicyLossOptions options;
  options.importance.high = -1;
  data.column("rollout")[3] = -1;
  EXPECT_EQ(loss_named(name).apply(off_policy_input(data), options).error().code,
            ErrorCode::kConfig);
}

TEST(OffPolicyLosses, AtLagZeroAreTheUncorrectedLossBitForBit) {
  Rng rng(4);
  Case data = test::random_case(rng, {.sequences = 12});
  data.column("rollout") = data.column("log_probs");
  PolicyLossInput input = off_policy_input(data);
  const PolicyLossOutput reinforce = loss_named("gpg").apply(input, {}).value();
  for (const char* name : {"tis", "mis", "icepop", "aipo", "topr"}) {
    const PolicyLossOutput found = loss_named(name).apply(input, {}).value();
    EXPECT_EQ(found.loss, reinforce.loss) << name;
    EXPECT_EQ(found.gradient, reinforce.gradient) << name;
    EXPECT_EQ(*found.metrics.mean("actor/is_weight_mean"), 1) << name;
    EXPECT_EQ(*found.metrics.mean("actor/is_weight_squared"), 1) << name;
    EXPECT_EQ(*found.metrics.mean("actor/is_masked_fraction"), 0) << name;
    EXPECT_EQ(*found.metrics.mean("actor/is_kl"), 0) << name;
  }
  // Decoupled: w = 1 where the proximal policy is the one that sampled, however far θ has gone.
  input.rollout_log_probs = data.column("old");
  const PolicyLossOutput plain = loss_named("vanilla").apply(input, {}).value();
  const PolicyLossOutput decoupled = loss_named("decoupled").apply(input, {}).value();
  EXPECT_EQ(decoupled.loss, plain.loss);
  EXPECT_EQ(decoupled.gradient, plain.gradient);
}

TEST(OffPolicyLosses, DecoupledIsVanillaWithTheWeightsOfStageOne) {
  Rng rng(6);
  const Case data = test::random_case(rng, {.sequences = 12});
  PolicyLossInput input = off_policy_input(data);
  input.rollout_weights = {};
  const PolicyLossOutput found = loss_named("decoupled").apply(input, {}).value();
  const std::vector<float> weights =
      rollout_weights(data.view(), data.column("old"), data.column("rollout"), {.high = 5})
          .value()
          .weights;
  input.rollout_weights = weights;
  const PolicyLossOutput expected = loss_named("vanilla").apply(input, {}).value();
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.gradient, expected.gradient);
}

TEST(OffPolicyLosses, TheRightEndOfTheLineIsTheTruncatedWeightOnItsOwn) {
  // α = 1: the proximal policy is θ, r = 1, and what is left is min(θ/b, C)·A·∇log π, as in TIS.
  Rng rng(7);
  Case data = test::random_case(rng, {.sequences = 12});
  data.columns["alphas"].assign(data.tokens(), 1.0F);
  PolicyLossOptions options;
  options.importance.high = 2;
  PolicyLossInput input = off_policy_input(data);
  input.old_log_probs = {};
  const PolicyLossOutput found = loss_named("decoupled").apply(input, options).value();
  const PolicyLossOutput tis = loss_named("tis").apply(input, options).value();
  EXPECT_EQ(found.gradient, tis.gradient);
  // α = 0: the proximal policy is b and the weight 1.
  data.columns["alphas"].assign(data.tokens(), 0.0F);
  input.proximal_alphas = data.column("alphas");
  const PolicyLossOutput left = loss_named("decoupled").apply(input, options).value();
  input.old_log_probs = data.column("rollout");
  const PolicyLossOutput around_rollout = loss_named("vanilla").apply(input, options).value();
  EXPECT_EQ(left.gradient, around_rollout.gradient);
}

TEST(OffPolicyLosses, ToprNeverWeighsDownWhatWasGood) {
  Case data;
  data.offsets = {0, 2, 4};
  data.groups = data.ids = {0, 1};
  data.mask.assign(4, 1);
  data.columns["log_probs"] = {-3, -3, -3, -3};
  data.columns["old"] = {-3, -3, -3, -3};
  data.columns["rollout"] = {-1, -2, -1, -2};  // ρ of both sequences: e^-3
  data.columns["advantages"] = {1, 1, -1, -1};
  data.columns["weights"].assign(4, 1.0F);
  const PolicyLossInput input = off_policy_input(data);
  const PolicyLossOptions options{.aggregation = LossAggregation::kTokenSum};
  const PolicyLossOutput found = loss_named("topr").apply(input, options).value();
  const auto weight = static_cast<float>(std::exp(-3.0));
  EXPECT_THAT(found.gradient, ::testing::ElementsAre(-1, -1, weight, weight));
  EXPECT_THAT(loss_named("tis").apply(input, {.importance = {.low = 0.5}}).error().message,
              HasSubstr("low bound"));
}

TEST(Proximal, AlphasFollowTheVersions) {
  const std::vector<std::int64_t> offsets = {0, 4, 5};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 1, 0};
  const TokenBatchView batch{.offsets = offsets, .mask = mask};
  const std::vector<std::int64_t> versions = {10, 8, 6, 9, -77};
  // AReaL's choice: θ is one version after the proximal policy.
  EXPECT_THAT(
      proximal_alphas(batch, versions, {.proximal = 10, .policy = 11}).value(),
      ::testing::ElementsAre(0, ::testing::FloatEq(2.0F / 3), ::testing::FloatEq(0.8F), 0.5F, 0));
  // Before the first update θ is the proximal policy: exact, and with it lag 0.
  EXPECT_THAT(proximal_alphas(batch, versions, {.proximal = 10, .policy = 10}).value(),
              ::testing::ElementsAre(1, 1, 1, 1, 0));
  EXPECT_THAT(proximal_alphas(batch, versions, {.proximal = 9, .policy = 10}).error().message,
              HasSubstr("sequence 0 token 0 is of version 10, wanted 0 to 9"));
  EXPECT_THAT(proximal_alphas(batch, versions, {.proximal = 10, .policy = 9.5}).error().message,
              HasSubstr("policy version 9.5"));
  EXPECT_THAT(proximal_alphas(batch, std::vector<std::int64_t>{1}, {}).error().message,
              HasSubstr("weight_versions: 1 entries"));
  EXPECT_EQ(proximal_source_from_name("loglinear").value(), ProximalSource::kLogLinear);
  EXPECT_FALSE(proximal_source_from_name("bypass").has_value());
}

TEST(Proximal, InterpolatesInLogSpaceAndKeepsItsEnds) {
  const std::vector<std::int64_t> offsets = {0, 5};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 1, 0};
  const TokenBatchView batch{.offsets = offsets, .mask = mask};
  const std::vector<float> now = {-1, -1.1F, -2, -INFINITY, NAN};
  const std::vector<float> then = {-3, -1.7F, -4, -1, NAN};
  const std::vector<float> alphas = {0, 1, 0.25F, 0.5F, NAN};
  const auto found = interpolated_log_probs(batch, now, then, alphas).value();
  EXPECT_THAT(found, ::testing::ElementsAre(-3, -1.1F, -3.5F, -11, 0));
  EXPECT_THAT(
      interpolated_log_probs(batch, now, then, std::vector<float>{0, 0, 2, 0, 0}).error().message,
      HasSubstr("sequence 0 token 2 is 2"));
}

}  // namespace
}  // namespace troupe::actors

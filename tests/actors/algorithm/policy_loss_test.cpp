// Proves every policy loss right: its value against padded matrices in double, its gradient
// against central differences of those, and its behaviour on extreme and empty input.
#include "actors/algorithm/policy_loss.hpp"

#include "tests/actors/algorithm/loss_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using test::Case;
using test::kGarbage;

constexpr LossAggregation kModes[] = {
    LossAggregation::kTokenMean, LossAggregation::kTokenSum, LossAggregation::kSeqMeanTokenSum,
    LossAggregation::kSeqMeanTokenSumNorm, LossAggregation::kSeqMeanTokenMean};

/// Wide enough selections that small batches have some.
PolicyLossOptions wide_options() {
  PolicyLossOptions options;
  options.clip_low = 0.2;
  options.clip_high = 0.28;
  options.clip_dual = 1.6;
  options.clip_cov_ratio = 0.2;
  options.clip_cov_low = 0.05;
  options.kl_cov_ratio = 0.2;
  options.kl_cov_coefficient = 0.7;
  return options;
}

PolicyLoss loss_named(const std::string& name) {
  return default_policy_losses().find(name).value();
}

/// All stages on one undivided mini-batch.
struct Outcome {
  TokenSelection selection;
  PolicyLossOutput output;
};
Outcome run(const std::string& name, PolicyLossInput input, const PolicyLossOptions& options) {
  const PolicyLoss loss = loss_named(name);
  Outcome done;
  if (loss.selects_tokens()) {
    done.selection = loss.select(loss.collect(input, options).value(), options).value();
    input.selection = &done.selection;
  }
  auto output = loss.apply(input, options);
  EXPECT_TRUE(output.has_value()) << name << ": " << output.error().to_string();
  done.output = std::move(output).value_or(PolicyLossOutput{});
  return done;
}

class Loss : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Loss, ::testing::ValuesIn(default_policy_losses().names()),
                         [](const auto& instance) { return instance.param; });

TEST_P(Loss, ValueAndGradientAgreeWithTheMatrixReference) {
  for (int trial = 0; trial < 25; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng);
    const bool weighted = trial % 2 == 1;
    PolicyLossOptions options = wide_options();
    options.aggregation = kModes[trial % 5];
    const Outcome found = run(GetParam(), test::loss_input(data, weighted), options);
    test::LossCase reference = test::unpack_loss(data, weighted);
    for (const TokenKey& key : found.selection.keys)
      reference.selected.insert({static_cast<std::size_t>((key.sequence - 1000) / 7),
                                 static_cast<std::size_t>(key.position)});
    const test::Matrix& log_probs = reference.log_probs.value;
    const double expected = test::reference_loss(GetParam(), reference, log_probs, log_probs,
                                                 *options.aggregation, options);
    ASSERT_NEAR(found.output.loss, expected, 1e-6 * (1 + std::abs(expected)));
    for (std::size_t b = 0; b < data.sequences(); ++b) {
      for (std::int64_t t = data.offsets[b]; t < data.offsets[b + 1]; ++t) {
        const auto token = static_cast<std::size_t>(t);
        if (data.mask[token] == 0) {
          ASSERT_EQ(found.output.gradient[token], 0);
          continue;
        }
        const double slope =
            test::reference_slope(GetParam(), reference, b,
                                  static_cast<std::size_t>(t - data.offsets[b]),
                                  *options.aggregation, options);
        ASSERT_NEAR(found.output.gradient[token], slope, 1e-6 * (1 + std::abs(slope)))
            << "sequence " << b << " token " << t - data.offsets[b];
      }
    }
  }
}

TEST_P(Loss, DefaultAggregationIsThePapers) {
  Rng rng(5);
  const Case data = test::random_case(rng);
  PolicyLossOptions options = wide_options();
  const double by_default = run(GetParam(), test::loss_input(data), options).output.loss;
  const bool per_sequence = GetParam() == "gspo" || GetParam() == "geo_mean" ||
                            GetParam() == "gmpo" || GetParam() == "sapo";
  options.aggregation =
      per_sequence ? LossAggregation::kSeqMeanTokenMean : LossAggregation::kTokenMean;
  EXPECT_EQ(run(GetParam(), test::loss_input(data), options).output.loss, by_default);
  EXPECT_EQ(loss_named(GetParam()).default_aggregation, *options.aggregation);
}

TEST_P(Loss, StaysFiniteOnExtremeLogProbs) {
  Rng rng(6);
  Case data = test::random_case(rng, {.sequences = 12, .masked = 0, .all_masked = 0});
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, float>> extremes = {
      {-infinity, -1},        {-1, -infinity}, {-infinity, -infinity}, {-0.0F, -1e30F},
      {-1e30F, -0.0F},        {-88, -0.1F},    {-0.1F, -88},           {0, 0},
      {-std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()}};
  for (std::size_t i = 0; i < extremes.size(); ++i) {
    data.column("log_probs")[i] = extremes[i].first;
    data.column("old")[i] = extremes[i].second;
  }
  for (const float sign : {-1.0F, 1.0F}) {
    for (float& advantage : data.column("advantages")) advantage = sign * std::abs(advantage);
    const Outcome found = run(GetParam(), test::loss_input(data), wide_options());
    EXPECT_TRUE(std::isfinite(found.output.loss)) << found.output.loss;
    for (std::size_t t = 0; t < data.tokens(); ++t)
      ASSERT_TRUE(std::isfinite(found.output.gradient[t])) << "token " << t;
    for (const auto& [name, entry] : found.output.metrics.entries())
      EXPECT_TRUE(std::isfinite(entry.sum)) << name;
    EXPECT_EQ(found.output.gradient[0], 0) << "log-prob -inf gives no gradient";
  }
}

TEST_P(Loss, NothingToTrainOnIsLossZeroAndCounted) {
  Rng rng(7);
  const Case masked = test::random_case(rng, {.all_masked = 1.0});
  Case empty = test::take(masked, {});
  for (const Case* data : {&masked, static_cast<const Case*>(&empty)}) {
    for (const LossAggregation mode : kModes) {
      PolicyLossOptions options = wide_options();
      options.aggregation = mode;
      const Outcome found = run(GetParam(), test::loss_input(*data), options);
      EXPECT_EQ(found.output.loss, 0);
      EXPECT_THAT(found.output.gradient, ::testing::Each(0.0F));
      EXPECT_EQ(found.output.gradient.size(), data->tokens());
      EXPECT_EQ(found.output.metrics.sum("actor/empty_batches"), 1);
      EXPECT_FALSE(found.output.metrics.mean("actor/pg_clipfrac").has_value());
    }
  }
}

TEST_P(Loss, ScalesWithRolloutWeights) {
  Rng rng(8);
  Case data = test::random_case(rng);
  for (float& weight : data.column("weights")) weight = std::isnan(weight) ? weight : 0.5F;
  const Outcome plain = run(GetParam(), test::loss_input(data), wide_options());
  const Outcome half = run(GetParam(), test::loss_input(data, true), wide_options());
  EXPECT_NEAR(half.output.loss, plain.output.loss / 2, 1e-9);
  for (std::size_t t = 0; t < data.tokens(); ++t)
    EXPECT_NEAR(half.output.gradient[t], plain.output.gradient[t] / 2, 1e-9);
  for (float& weight : data.column("weights")) weight = std::isnan(weight) ? weight : 0.0F;
  const Outcome none = run(GetParam(), test::loss_input(data, true), wide_options());
  EXPECT_EQ(none.output.loss, 0);
  EXPECT_THAT(none.output.gradient, ::testing::Each(0.0F));
}

TEST_P(Loss, OnPolicyGradientIsThatOfReinforce) {
  // At π = π_old every ratio is 1: the gradient of all losses is -A w_t, up to the papers' own
  // constants (selected tokens of clip_cov are zeroed).
  Rng rng(9);
  Case data = test::random_case(rng, {.log_ratio = 0});
  // One advantage per sequence, as GRPO gives: GMPO uses the mean.
  for (std::size_t s = 0; s < data.sequences(); ++s)
    for (std::int64_t t = data.offsets[s]; t < data.offsets[s + 1]; ++t)
      if (data.mask[static_cast<std::size_t>(t)] != 0)
        data.column("advantages")[static_cast<std::size_t>(t)] = static_cast<float>(s) - 2.5F;
  data.column("old") = data.column("log_probs");
  PolicyLossOptions options = wide_options();
  options.aggregation = LossAggregation::kSeqMeanTokenMean;
  options.clip_cov_ratio = 0;
  options.sapo_tau_negative = 1;
  const Outcome found = run(GetParam(), test::loss_input(data), options);
  const Outcome reinforce = run("gpg", test::loss_input(data), options);
  for (std::size_t t = 0; t < data.tokens(); ++t)
    EXPECT_NEAR(found.output.gradient[t], reinforce.output.gradient[t], 1e-7) << "token " << t;
}

TEST_P(Loss, BadInputIsNamed) {
  Rng rng(10);
  const Case good = test::random_case(rng, {.masked = 0, .all_masked = 0});
  const PolicyLoss loss = loss_named(GetParam());
  const TokenSelection nothing;
  const auto message_of = [&](const auto& change) {
    Case data = good;
    PolicyLossOptions options;
    PolicyLossInput input = test::loss_input(data, true);
    input.selection = &nothing;
    change(data, input, options);
    const auto output = loss.apply(input, options);
    return output.has_value() ? std::string("no error") : output.error().message;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message_of([](Case& data, auto& input, auto&) {
                data.column("log_probs")[3] = NAN;
                input.log_probs = data.column("log_probs");
              }),
              HasSubstr("log_probs: sequence"));
  EXPECT_THAT(message_of([](Case& data, auto&, auto&) {
                data.column("advantages")[3] = INFINITY;
              }),
              HasSubstr("advantages: sequence"));
  EXPECT_THAT(message_of([](Case& data, auto&, auto&) { data.column("weights")[3] = -1; }),
              HasSubstr("rollout_weights"));
  EXPECT_THAT(message_of([](Case&, auto& input, auto&) {
                input.advantages = input.advantages.subspan(1);
              }),
              HasSubstr("advantages"));
  EXPECT_THAT(message_of([](Case&, auto& input, auto&) {
                input.tokens.offsets = input.tokens.offsets.subspan(1);
              }),
              HasSubstr("offsets"));
  EXPECT_THAT(message_of([](Case&, auto& input, auto&) { input.normaliser.global.tokens = 1; }),
              HasSubstr("normaliser"));
  EXPECT_THAT(message_of([](Case&, auto& input, auto& options) {
                options.aggregation = LossAggregation::kSeqMeanTokenSumNorm;
                input.normaliser.scale_factor = 0;
              }),
              HasSubstr("scale factor"));
  EXPECT_THAT(message_of([](Case&, auto&, auto& options) { options.clip_low = -0.1; }),
              HasSubstr("clip_ratio_low"));
  EXPECT_THAT(message_of([](Case&, auto&, auto& options) { options.clip_high = NAN; }),
              HasSubstr("clip_ratio_high"));
  EXPECT_THAT(message_of([](Case&, auto&, auto& options) { options.clip_dual = 1; }),
              HasSubstr("clip_ratio_c"));
  if (loss.selects_tokens()) {
    EXPECT_THAT(message_of([](Case&, auto& input, auto&) { input.selection = nullptr; }),
                HasSubstr("selection"));
    EXPECT_THAT(message_of([](Case&, auto& input, auto&) { input.tokens.sequence_ids = {}; }),
                HasSubstr("sequence_ids"));
  }
}

/// One sequence of tokens with given log-ratios and advantages; log π = -0.5 + ratio.
Case tokens_with(const std::vector<float>& log_ratios, const std::vector<float>& advantages) {
  Case data;
  data.offsets = {0, static_cast<std::int64_t>(log_ratios.size())};
  data.groups = {0};
  data.ids = {1000};
  data.mask.assign(log_ratios.size(), 1);
  for (const float ratio : log_ratios) {
    data.columns["old"].push_back(-2.0F);
    data.columns["log_probs"].push_back(-2.0F + ratio);
  }
  data.columns["advantages"] = advantages;
  data.columns["weights"].assign(log_ratios.size(), 1.0F);
  return data;
}

TEST(Vanilla, ClipsEachSideByItsOwnBoundAndCounts) {
  // ratios: e^0.5 = 1.65 (above 1.28), e^-0.5 = 0.61 (below 0.8), e^1.5 = 4.48 (above c = 3)
  const Case data = tokens_with({0.5F, 0.5F, -0.5F, -0.5F, 1.5F}, {1, -1, 1, -1, -1});
  const PolicyLossOptions options{.aggregation = LossAggregation::kTokenSum, .clip_high = 0.28};
  const PolicyLossOutput output = vanilla_loss(test::loss_input(data), options).value();
  const double expected = -1.28 + std::exp(0.5) - std::exp(-0.5) + 0.8 + 3.0;
  EXPECT_NEAR(output.loss, expected, 1e-6);
  EXPECT_THAT(output.gradient,
              ::testing::ElementsAre(0, ::testing::FloatNear(1.6487212F, 1e-5F),
                                     ::testing::FloatNear(-0.60653066F, 1e-5F), 0, 0));
  EXPECT_DOUBLE_EQ(*output.metrics.mean("actor/pg_clipfrac"), 2.0 / 5);
  EXPECT_DOUBLE_EQ(*output.metrics.mean("actor/pg_clipfrac_lower"), 1.0 / 5);
  EXPECT_NEAR(*output.metrics.mean("actor/ppo_kl"), -1.5 / 5, 1e-6);
}

TEST(Vanilla, HugeRatiosAreHeldAtTwentyNats) {
  const Case data = tokens_with({60, 60, -60}, {1, -1, 1});
  const PolicyLossOptions options{.aggregation = LossAggregation::kTokenSum, .clip_dual = 1e12};
  const PolicyLossOutput output = vanilla_loss(test::loss_input(data), options).value();
  EXPECT_NEAR(output.loss, -1.2 + std::exp(20.0) - std::exp(-20.0), 1e-3);
  EXPECT_THAT(output.gradient, ::testing::Each(0.0F));
}

TEST(Gspo, GradientIsThatOfTheSequenceRatioWhenAdvantagesAreShared) {
  Rng rng(12);
  for (int trial = 0; trial < 20; ++trial) {
    Case data = test::random_case(rng, {.sequences = 1, .length_max = 6, .masked = 0, .all_masked = 0});
    if (data.tokens() == 0) continue;
    for (float& advantage : data.column("advantages")) advantage = trial % 2 == 0 ? 1.5F : -0.7F;
    PolicyLossOptions options;
    options.clip_low = options.clip_high = 0.1;
    const PolicyLossOutput output = gspo_loss(test::loss_input(data), options).value();
    const auto loss_at = [&](std::size_t moved, double step) {
      double sum = 0;
      for (std::size_t t = 0; t < data.tokens(); ++t)
        sum += data.column("log_probs")[t] - data.column("old")[t] + (t == moved ? step : 0);
      return test::ppo(data.column("advantages")[0],
                       std::exp(sum / static_cast<double>(data.tokens())), options);
    };
    for (std::size_t t = 0; t < data.tokens(); ++t)
      EXPECT_NEAR(output.gradient[t], (loss_at(t, 1e-6) - loss_at(t, -1e-6)) / 2e-6, 1e-5);
  }
}

TEST(Gspo, HoldsTheSequenceRatioAtTenNats) {
  const Case data = tokens_with({12, 15}, {-1, -1});
  const PolicyLossOutput output = gspo_loss(test::loss_input(data), {}).value();
  EXPECT_NEAR(output.loss, std::exp(10.0), 1e-6);
  EXPECT_THAT(output.gradient, ::testing::Each(0.0F));
}

TEST(Cispo, KeepsTheGradientOfClippedTokensAndCountsThem) {
  const Case data = tokens_with({1, -1, 0.1F}, {1, 1, 1});
  const PolicyLossOptions options{.aggregation = LossAggregation::kTokenSum};
  const PolicyLossOutput output = cispo_loss(test::loss_input(data), options).value();
  EXPECT_FLOAT_EQ(output.gradient[0], -1.2F);
  EXPECT_FLOAT_EQ(output.gradient[1], -0.8F);
  EXPECT_DOUBLE_EQ(*output.metrics.mean("actor/pg_clipfrac"), 2.0 / 3);
}

TEST(KlCov, PullsSelectedTokensBackUnlessTheyAreTwentyNatsAway) {
  const Case data = tokens_with({0.5F, -0.5F, 60, 0}, {0, 0, 0, 0});
  const PolicyLossOptions options{.aggregation = LossAggregation::kTokenSum,
                                  .kl_cov_coefficient = 0.5};
  PolicyLossInput input = test::loss_input(data);
  const TokenSelection all{.keys = {{1000, 0}, {1000, 1}, {1000, 2}, {1000, 3}}};
  input.selection = &all;
  const PolicyLossOutput output = kl_cov_loss(input, options).value();
  EXPECT_NEAR(output.loss, 0.5 * (0.5 + 0.5 + 20), 1e-6);
  EXPECT_THAT(output.gradient, ::testing::ElementsAre(0.5F, -0.5F, 0.0F, 0.0F));
  EXPECT_EQ(*output.metrics.mean("actor/selected_fraction"), 1);
}

TEST(ClipCov, SelectsByItsOptionsAndNeverATokenThatPpoClipped) {
  Rng rng(21);
  const Case data = test::random_case(rng, {.sequences = 100});
  const PolicyLoss loss = loss_named("clip_cov");
  PolicyLossOptions options = wide_options();
  options.clip_cov_ratio = 1;
  options.clip_cov_low = -1e9;
  options.clip_cov_high = 1e9;
  const PolicyLossInput input = test::loss_input(data);
  const CovarianceStatistics statistics = loss.collect(input, options).value();
  const TokenSelection selection = loss.select(statistics, options).value();
  std::size_t clipped = 0;
  for (std::size_t s = 0; s < data.sequences(); ++s)
    for (std::int64_t t = data.offsets[s]; t < data.offsets[s + 1]; ++t) {
      const auto token = static_cast<std::size_t>(t);
      if (data.mask[token] == 0) continue;
      const double advantage = data.column("advantages")[token];
      const double ratio = test::ratio_of(data.column("log_probs")[token], data.column("old")[token]);
      const bool held = test::ppo(advantage, ratio, options) > -advantage * ratio;
      clipped += held ? 1 : 0;
      EXPECT_EQ(selection.contains({data.ids[s], t - data.offsets[s]}), !held);
    }
  EXPECT_GT(clipped, 10u);
  options.clip_cov_low = 1e8;
  EXPECT_TRUE(loss.select(statistics, options).value().keys.empty());
}

TEST(GeoMean, OneHugeTokenDoesNotOverflow) {
  const Case data = tokens_with({3e4F, 0, 0}, {-1, -1, -1});
  const PolicyLossOutput output = geo_mean_loss(test::loss_input(data), {}).value();
  EXPECT_NEAR(output.loss, std::exp(20.0 / 3), 1e-3);
  EXPECT_EQ(output.gradient[0], 0);
}

}  // namespace
}  // namespace troupe::actors

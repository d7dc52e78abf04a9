// Proves that losses, gradients and metrics do not depend on how a mini-batch is cut into
// micro-batches and ranks, on the order of its sequences, or on padding, for every loss and every
// aggregation; and that losses which choose tokens choose the same ones on any split.
#include "actors/algorithm/objective.hpp"
#include "actors/algorithm/policy_loss.hpp"

#include "tests/actors/algorithm/loss_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace troupe::actors {
namespace {

using test::Case;

constexpr LossAggregation kModes[] = {
    LossAggregation::kTokenMean, LossAggregation::kTokenSum, LossAggregation::kSeqMeanTokenSum,
    LossAggregation::kSeqMeanTokenSumNorm, LossAggregation::kSeqMeanTokenMean};

PolicyObjectiveOptions objective_options(LossAggregation mode) {
  PolicyObjectiveOptions options;
  options.loss.aggregation = mode;
  options.loss.clip_cov_ratio = 0.3;
  options.loss.clip_cov_low = 0.05;
  options.loss.kl_cov_ratio = 0.3;
  options.entropy_coefficient = 0.02;
  options.kl_coefficient = 0.1;
  return options;
}

PolicyObjectiveInput objective_input(const Case& data, const LossNormaliser& normaliser) {
  PolicyObjectiveInput input{.loss = test::loss_input(data, true),
                             .entropy = data.column("entropy"),
                             .reference_log_probs = data.column("reference")};
  input.loss.normaliser = normaliser;
  return input;
}

/// What a driver does with parts that may sit on different ranks: all stages, parts in order.
PolicyObjectiveOutput train_on(const PolicyLoss& loss, const std::vector<Case>& parts,
                               const PolicyObjectiveOptions& options, TokenSelection* chosen) {
  LossNormaliser normaliser{.global = {}, .scale_factor = 7};
  for (const Case& part : parts) normaliser.global += count_tokens(part.view());
  TokenSelection selection;
  if (loss.selects_tokens()) {
    std::vector<std::int64_t> words;  // as an all-gather would lay them
    for (const Case& part : parts) {
      const auto own =
          loss.collect(objective_input(part, normaliser).loss, options.loss).value().to_words();
      words.insert(words.end(), own.begin(), own.end());
    }
    selection = loss.select(CovarianceStatistics::from_words(words).value(), options.loss).value();
    if (chosen != nullptr) *chosen = selection;
  }
  PolicyObjectiveOutput total;
  for (const Case& part : parts) {
    PolicyObjectiveInput input = objective_input(part, normaliser);
    input.loss.selection = &selection;
    const auto output = policy_objective(loss, input, options);
    EXPECT_TRUE(output.has_value()) << output.error().to_string();
    total.loss += output->loss;
    total.metrics.merge(output->metrics);
    const auto append = [](std::vector<float>& all, const std::vector<float>& own) {
      all.insert(all.end(), own.begin(), own.end());
    };
    append(total.log_prob_gradient, output->log_prob_gradient);
    append(total.entropy_gradient, output->entropy_gradient);
  }
  return total;
}

class Split : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Split, ::testing::ValuesIn(default_policy_losses().names()),
                         [](const auto& instance) { return instance.param; });

TEST_P(Split, LossGradientAndMetricsAreThoseOfTheWhole) {
  const PolicyLoss loss = default_policy_losses().find(GetParam()).value();
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng, {.sequences = 12});
    const PolicyObjectiveOptions options = objective_options(kModes[trial % 5]);
    TokenSelection whole_choice;
    const PolicyObjectiveOutput whole = train_on(loss, {data}, options, &whole_choice);
    const auto rows = test::random_split(data.sequences(), 1 + rng.below(6), rng);
    std::vector<Case> parts;
    std::vector<std::size_t> tokens;
    for (const auto& part : rows) {
      parts.push_back(test::take(data, part));
      for (const std::size_t t : test::tokens_of(data, part)) tokens.push_back(t);
    }
    TokenSelection choice;
    const PolicyObjectiveOutput sum = train_on(loss, parts, options, &choice);
    EXPECT_EQ(choice.keys, whole_choice.keys);
    ASSERT_NEAR(sum.loss, whole.loss, 1e-9 * (1 + std::abs(whole.loss)));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      ASSERT_EQ(sum.log_prob_gradient[t], whole.log_prob_gradient[tokens[t]]);
      ASSERT_EQ(sum.entropy_gradient[t], whole.entropy_gradient[tokens[t]]);
    }
    for (const auto& [name, entry] : whole.metrics.entries()) {
      if (name == "actor/empty_batches") continue;
      ASSERT_TRUE(sum.metrics.mean(name).has_value()) << name;
      EXPECT_NEAR(*sum.metrics.mean(name), *whole.metrics.mean(name), 1e-9) << name;
    }
    EXPECT_NEAR(*whole.metrics.mean("actor/loss"), whole.loss, 1e-12);
  }
}

TEST_P(Split, PaddingAndMaskedGarbageChangeNothing) {
  const PolicyLoss loss = default_policy_losses().find(GetParam()).value();
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial) + 500);
    const Case data = test::random_case(rng);
    const test::Padded padded = test::pad(data, rng);
    const PolicyObjectiveOptions options = objective_options(kModes[trial % 5]);
    const PolicyObjectiveOutput plain = train_on(loss, {data}, options, nullptr);
    const PolicyObjectiveOutput other = train_on(loss, {padded.data}, options, nullptr);
    EXPECT_EQ(other.loss, plain.loss);
    for (std::size_t t = 0; t < padded.origin.size(); ++t) {
      const std::int64_t origin = padded.origin[t];
      ASSERT_EQ(other.log_prob_gradient[t],
                origin < 0 ? 0 : plain.log_prob_gradient[static_cast<std::size_t>(origin)]);
    }
    EXPECT_EQ(other.metrics, plain.metrics);
  }
}

TEST(Covariance, LargestAreThoseOfASlowSort) {
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng);
    const auto statistics = collect_covariance(test::loss_input(data), {}).value();
    const test::LossCase matrix = test::unpack_loss(data, false);
    std::vector<std::pair<double, TokenKey>> slow;
    double advantages = 0;
    double log_probs = 0;
    double count = 0;
    for (std::size_t b = 0; b < data.sequences(); ++b)
      for (std::size_t j = 0; j < matrix.log_probs.mask[b].size(); ++j)
        if (matrix.log_probs.mask[b][j]) {
          advantages += matrix.advantages.value[b][j];
          log_probs += matrix.log_probs.value[b][j];
          count += 1;
        }
    for (std::size_t b = 0; b < data.sequences(); ++b)
      for (std::size_t j = 0; j < matrix.log_probs.mask[b].size(); ++j)
        if (matrix.log_probs.mask[b][j])
          slow.emplace_back(-(matrix.advantages.value[b][j] - advantages / count) *
                                (matrix.log_probs.value[b][j] - log_probs / count),
                            TokenKey{data.ids[b], static_cast<std::int64_t>(j)});
    std::sort(slow.begin(), slow.end());
    const auto wanted = std::max<std::size_t>(1, static_cast<std::size_t>(0.1 * count));
    std::vector<TokenKey> keys;
    for (std::size_t i = 0; i < std::min(wanted, slow.size()); ++i) keys.push_back(slow[i].second);
    std::sort(keys.begin(), keys.end());
    EXPECT_EQ(statistics.select_largest(0.1).value().keys, keys);
    EXPECT_TRUE(statistics.select_largest(0).value().keys.empty());
    EXPECT_EQ(statistics.select_largest(1).value().keys.size(), statistics.size());
  }
}

TEST(Covariance, RandomPicksComeFromTheRangeAndFollowTheSeed) {
  Rng rng(3);
  const Case data = test::random_case(rng, {.sequences = 200, .log_ratio = 0.1});
  const auto statistics = collect_covariance(test::loss_input(data), {}).value();
  const CovarianceStatistics::Range range{.low = 0.2, .high = 1};
  const auto all = statistics.select_random(1.0, range, 1).value();
  const auto some = statistics.select_random(0.02, range, 1).value();
  const auto count = static_cast<std::size_t>(0.02 * static_cast<double>(statistics.size()));
  ASSERT_GT(all.keys.size(), 2 * count);
  EXPECT_EQ(some.keys.size(), count);
  for (const TokenKey& key : some.keys) EXPECT_TRUE(all.contains(key));
  EXPECT_EQ(statistics.select_random(0.02, range, 1).value().keys, some.keys);
  EXPECT_NE(statistics.select_random(0.02, range, 2).value().keys, some.keys);
  // Over many seeds every candidate is picked about equally often.
  std::map<TokenKey, double> picks;
  constexpr int kSeeds = 4000;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto picked = statistics.select_random(0.02, range, seed).value();
    for (const TokenKey& key : picked.keys) picks[key] += 1;
  }
  const double expected = kSeeds * static_cast<double>(count) / static_cast<double>(all.keys.size());
  EXPECT_EQ(picks.size(), all.keys.size());
  for (const auto& [key, times] : picks)
    EXPECT_NEAR(times, expected, 6 * std::sqrt(expected)) << key.sequence << "/" << key.position;
}

TEST(Covariance, PicksAtLeastOneAndAnyPositionOfASequence) {
  CovarianceStatistics statistics;
  for (std::int64_t position = 0; position < 40; ++position)
    statistics.add({.key = {1, position},
                    .advantage = position % 2 == 0 ? 1.0F : -1.0F,
                    .log_prob = position % 2 == 0 ? -1.0F : -2.0F});
  EXPECT_EQ(statistics.select_largest(1e-6).value().keys.size(), 1u);
  const CovarianceStatistics::Range range{.low = 0, .high = 5};
  std::set<std::int64_t> picked;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const TokenSelection one = statistics.select_random(1e-6, range, seed).value();
    ASSERT_EQ(one.keys.size(), 1u);
    picked.insert(one.keys[0].position);
  }
  EXPECT_EQ(picked.size(), 40u);
}

TEST(Covariance, RefusesBadWordsAndRepeatedTokens) {
  CovarianceStatistics statistics;
  statistics.add({.key = {5, 1}, .advantage = 1, .log_prob = -1, .clipped = true});
  statistics.add({.key = {-5, 0}, .advantage = -1, .log_prob = -2, .clipped = false});
  statistics.add({.key = {6, 0}, .advantage = 0, .log_prob = -INFINITY});
  EXPECT_EQ(statistics.size(), 2u) << "a log-prob of -inf takes no part";
  std::vector<std::int64_t> words = statistics.to_words();
  EXPECT_EQ(CovarianceStatistics::from_words(words).value().to_words(), words);
  words.pop_back();
  EXPECT_EQ(CovarianceStatistics::from_words(words).error().code, ErrorCode::kCorrupt);
  words = statistics.to_words();
  words[1] = -4;
  EXPECT_EQ(CovarianceStatistics::from_words(words).error().code, ErrorCode::kCorrupt);
  words = statistics.to_words();
  words[2] = -1;  // two NaN
  EXPECT_EQ(CovarianceStatistics::from_words(words).error().code, ErrorCode::kCorrupt);
  statistics.merge(statistics);
  const auto twice = statistics.select_largest(0.5);
  ASSERT_FALSE(twice.has_value());
  EXPECT_THAT(twice.error().message, ::testing::HasSubstr("twice"));
  EXPECT_TRUE(CovarianceStatistics{}.select_largest(0.5).value().keys.empty());
  EXPECT_TRUE(CovarianceStatistics{}.select_random(0.5, {}, 0).value().keys.empty());
}

TEST(Objective, IsTheSumOfItsTerms) {
  Rng rng(14);
  const Case data = test::random_case(rng);
  const PolicyLoss loss = default_policy_losses().find("vanilla").value();
  const auto mode = LossAggregation::kSeqMeanTokenSum;
  const PolicyObjectiveOptions options = objective_options(mode);
  const PolicyObjectiveInput input = objective_input(data, data.normaliser());
  const PolicyObjectiveOutput found = policy_objective(loss, input, options).value();
  const PolicyLossOutput policy = vanilla_loss(input.loss, options.loss).value();
  const TokenLoss entropy =
      aggregate(data.view(), data.column("entropy"), mode, data.normaliser()).value();
  const TokenLoss kl = kl_loss(data.view(), data.column("log_probs"), data.column("reference"),
                               options.kl, mode, data.normaliser())
                           .value();
  EXPECT_NEAR(found.loss, policy.loss - 0.02 * entropy.value + 0.1 * kl.value, 1e-12);
  for (std::size_t t = 0; t < data.tokens(); ++t) {
    EXPECT_NEAR(found.log_prob_gradient[t], policy.gradient[t] + 0.1 * kl.gradient[t], 1e-6);
    EXPECT_NEAR(found.entropy_gradient[t], -0.02 * entropy.gradient[t], 1e-8);
  }
  EXPECT_NEAR(*found.metrics.mean("actor/entropy"), entropy.value, 1e-12);
  EXPECT_NEAR(*found.metrics.mean("actor/kl_loss"), kl.value, 1e-12);
}

TEST(Objective, LeavesOutWhatHasNoCoefficientAndMissesWhatHas) {
  Rng rng(15);
  const Case data = test::random_case(rng);
  const PolicyLoss loss = default_policy_losses().find("vanilla").value();
  PolicyObjectiveInput input = objective_input(data, data.normaliser());
  const PolicyLossOutput policy = vanilla_loss(input.loss, {}).value();
  const PolicyObjectiveOutput watched = policy_objective(loss, input, {}).value();
  EXPECT_EQ(watched.loss, policy.loss);
  EXPECT_EQ(watched.log_prob_gradient, policy.gradient);
  EXPECT_TRUE(watched.entropy_gradient.empty());
  EXPECT_TRUE(watched.metrics.mean("actor/kl_loss").has_value());
  input.entropy = {};
  EXPECT_THAT(policy_objective(loss, input, {.entropy_coefficient = 0.1}).error().message,
              ::testing::HasSubstr("entropy"));
  input.reference_log_probs = {};
  EXPECT_THAT(policy_objective(loss, input, {.kl_coefficient = 0.1}).error().message,
              ::testing::HasSubstr("kl_loss_coef"));
  EXPECT_FALSE(policy_objective(loss, input, {}).value().metrics.mean("actor/kl_loss"));
}

}  // namespace
}  // namespace troupe::actors

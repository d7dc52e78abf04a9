// Proves log-probs of truncated distributions: one row against a plain walk over sorted
// probabilities, the gradient against central differences, ratio 1 at lag 0 under every cut, and
// the error that one-sided processing makes (TRL #6789).
#include "actors/algorithm/processed_distribution.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace troupe::actors {
namespace {

using ::testing::HasSubstr;

std::vector<float> random_logits(Rng& rng, std::size_t vocabulary) {
  std::vector<float> logits(vocabulary);
  for (float& logit : logits) logit = static_cast<float>(2 * rng.normal());
  return logits;
}

SamplingTransform transform_of(int trial) {
  SamplingTransform transform{.temperature = trial % 2 == 0 ? 1.0 : 0.7};
  if (trial % 3 == 1) transform.top_p = 0.8;
  if (trial % 4 == 1) transform.top_k = 5;
  if (trial % 5 == 1) transform.min_p = 0.1;
  return transform;
}

/// The kept set, from probabilities sorted once: each rule keeps a prefix.
std::vector<bool> slow_kept(const std::vector<float>& logits, const SamplingTransform& transform) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights;
  for (const std::size_t v : order)
    weights.push_back(
        std::exp((double{logits[v]} - double{logits[order[0]]}) / transform.temperature));
  std::size_t count = weights.size();
  while (count > 1 && weights[count - 1] < transform.min_p) --count;
  if (transform.top_k > 0) count = std::min(count, static_cast<std::size_t>(transform.top_k));
  const double total =
      std::accumulate(weights.begin(), weights.begin() + static_cast<int>(count), 0.0);
  double sum = 0;
  std::size_t prefix = 0;
  while (prefix < count && (prefix == 0 || sum < transform.top_p * total)) sum += weights[prefix++];
  std::vector<bool> kept(logits.size(), false);
  for (std::size_t i = 0; i < (transform.top_p < 1 ? prefix : count); ++i) kept[order[i]] = true;
  return kept;
}

TEST(ProcessedRow, IsTheRenormalisedShareOfTheKeptSet) {
  for (int trial = 0; trial < 120; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const std::vector<float> logits = random_logits(rng, 30);
    const SamplingTransform transform = transform_of(trial);
    std::vector<bool> kept = slow_kept(logits, transform);
    RowProcessor processor;
    for (std::int32_t token = 0; token < 30; ++token) {
      const auto at = static_cast<std::size_t>(token);
      const ProcessedRow row = processor.process(logits, token, transform).value();
      double whole = 0;
      double inside = 0;
      std::int64_t count = 0;
      for (std::size_t v = 0; v < logits.size(); ++v) {
        const double weight = std::exp(double{logits[v]} / transform.temperature);
        whole += weight;
        if (kept[v] || v == at) inside += weight;
        count += kept[v] || v == at ? 1 : 0;
      }
      const double own = double{logits[at]} / transform.temperature;
      EXPECT_EQ(row.added, !kept[at]);
      EXPECT_EQ(row.kept, count);
      EXPECT_NEAR(row.log_prob, own - std::log(inside), 1e-9);
      EXPECT_NEAR(row.full_log_prob, own - std::log(whole), 1e-9);
      EXPECT_NEAR(row.kept_mass, inside / whole, 1e-12);
    }
  }
}

TEST(ProcessedRow, GradientIsThatOfCentralDifferences) {
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial) + 300);
    std::vector<float> logits = random_logits(rng, 12);
    const SamplingTransform transform = transform_of(trial);
    RowProcessor processor;
    const auto token = static_cast<std::int32_t>(rng.below(12));
    ASSERT_TRUE(processor.process(logits, token, transform).has_value());
    const std::vector<std::uint8_t> kept(processor.kept().begin(), processor.kept().end());
    std::vector<double> found(12);
    processor.gradient(1.5, found);
    const auto log_prob = [&](std::size_t moved, double step) {  // the set is held
      double sum = 0;
      const auto scaled = [&](std::size_t v) {
        return (double{logits[v]} + (v == moved ? step : 0)) / transform.temperature;
      };
      for (std::size_t v = 0; v < 12; ++v) sum += kept[v] != 0 ? std::exp(scaled(v)) : 0;
      return scaled(static_cast<std::size_t>(token)) - std::log(sum);
    };
    for (std::size_t v = 0; v < 12; ++v)
      EXPECT_NEAR(found[v], 1.5 * (log_prob(v, 1e-6) - log_prob(v, -1e-6)) / 2e-6, 1e-6);
    EXPECT_NEAR(std::accumulate(found.begin(), found.end(), 0.0), 0, 1e-12);
  }
}

TEST(ProcessedRow, TiesStayUnderTopKAndGoByIdUnderTopP) {
  RowProcessor processor;
  const std::vector<float> logits = {1, 1, 1, 0};
  EXPECT_EQ(processor.process(logits, 0, {.top_k = 2}).value().kept, 3);
  EXPECT_EQ(processor.process(logits, 0, {.top_p = 0.5}).value().kept, 2);
  EXPECT_THAT(processor.kept(), ::testing::ElementsAre(1, 1, 0, 0));
  EXPECT_EQ(processor.process(logits, 3, {.top_p = 0.1}).value().log_prob,
            processor.process(logits, 3, {.top_p = 0.1, .top_k = 1}).value().log_prob);
}

TEST(ProcessedRow, RefusesWhatHasNoRatio) {
  RowProcessor processor;
  const std::vector<float> logits = {1, 2};
  EXPECT_THAT(processor.process(logits, 2, {}).error().message, HasSubstr("token 2"));
  EXPECT_THAT(processor.process(std::vector<float>{1, NAN}, 0, {}).error().message,
              HasSubstr("logit of token 1 is nan"));
  EXPECT_THAT(processor.process(logits, 0, {.temperature = 0}).error().message,
              HasSubstr("greedy"));
  EXPECT_FALSE(processor.process(logits, 0, {.top_p = 0}).has_value());
  EXPECT_FALSE(processor.process(logits, 0, {.min_p = 2}).has_value());
}

TEST(LogProbRule, SaysWhichOfTheTwoAndWhatTheTrainerDoes) {
  const auto rule = [](SamplingTransform transform, LogProbKind wanted) {
    return log_prob_rule(transform, wanted).value();
  };
  for (const LogProbKind wanted : {LogProbKind::kFull, LogProbKind::kProcessed}) {
    const LogProbRule plain = rule({.temperature = 0.6}, wanted);
    EXPECT_EQ(plain.rollout, LogProbKind::kFull) << "without a cut both are the same";
    EXPECT_EQ(plain.temperature, 0.6);
    EXPECT_FALSE(plain.trainer_filters);
    EXPECT_TRUE(plain.exact);
  }
  const LogProbRule full = rule({.top_p = 0.9}, LogProbKind::kFull);
  EXPECT_FALSE(full.exact);
  EXPECT_FALSE(full.trainer_filters);
  const LogProbRule processed = rule({.top_k = 20}, LogProbKind::kProcessed);
  EXPECT_EQ(processed.rollout, LogProbKind::kProcessed);
  EXPECT_TRUE(processed.trainer_filters && processed.exact);
  EXPECT_THAT(log_prob_rule({.has_penalties = true}, LogProbKind::kFull).error().message,
              HasSubstr("penalties"));
  EXPECT_THAT(log_prob_rule({.temperature = 0}, LogProbKind::kFull).error().message,
              HasSubstr("greedy"));
  EXPECT_EQ(log_prob_kind_from_name("processed").value(), LogProbKind::kProcessed);
  EXPECT_FALSE(log_prob_kind_from_name("raw").has_value());
}

TEST(KeptMass, OneSidedProcessingIsOffByItAndTwoSidedIsOne) {
  // Mean over sampled tokens of p_full / p_processed is the mean kept mass, not 1.
  Rng rng(1);
  double one_sided = 0;
  double masses = 0;
  constexpr int kRows = 400;
  for (int row = 0; row < kRows; ++row) {
    const std::vector<float> logits = random_logits(rng, 40);
    const SamplingTransform transform{.top_p = 0.8};
    RowProcessor processor;
    const auto best =
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const ProcessedRow found = processor.process(logits, best, transform).value();
    const ProcessedRow again = processor.process(logits, best, transform).value();
    EXPECT_EQ(std::exp(found.log_prob - again.log_prob), 1);
    one_sided += std::exp(found.full_log_prob - found.log_prob) / kRows;
    masses += found.kept_mass / kRows;
  }
  EXPECT_NEAR(one_sided, masses, 1e-9);
  EXPECT_GT(masses, 0.8);
  EXPECT_LT(masses, 0.92);
}

TEST(KeptMass, ComesFromTheTwoListsOfTheEngine) {
  const std::vector<std::int64_t> offsets = {0, 2, 3};
  const std::vector<std::uint8_t> mask = {1, 0, 1};
  const TokenBatchView batch{.offsets = offsets, .mask = mask};
  const std::vector<float> full = {-2, NAN, -1};
  const std::vector<float> processed = {-1.5F, NAN, -1};
  EXPECT_THAT(kept_masses(batch, full, processed).value(),
              ::testing::ElementsAre(::testing::FloatEq(std::exp(-0.5F)), 1, 1));
  EXPECT_THAT(kept_masses(batch, processed, full).error().message,
              HasSubstr("sequence 0 token 0 is -2, below its full log-prob -1.5"));
  EXPECT_THAT(log_probs_at_kept_mass(batch, std::vector<float>{-3, 0, -4}, full, processed).value(),
              ::testing::ElementsAre(-2.5F, 0, -4));
}

}  // namespace
}  // namespace troupe::actors

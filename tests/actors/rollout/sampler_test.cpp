// The sampler against a naive one that sorts everything (with ties), its draws against the exact
// distribution (chi-square, one test per option), its log-probs, and bad logits.

#include "actors/rollout/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

namespace troupe::actors {
namespace {

using Tokens = std::vector<std::int32_t>;

/// Written from the definition: full sorts, doubles, one pass per option.
std::vector<double> naive_distribution(const std::vector<float>& logits,
                                       const SamplingOptions& options, const Tokens& tokens,
                                       std::size_t prompt_tokens) {
  const std::size_t vocab = logits.size();
  std::vector<double> score(logits.begin(), logits.end());
  for (const std::int32_t t : std::set<std::int32_t>(tokens.begin(), tokens.end())) {
    double& s = score[static_cast<std::size_t>(t)];
    s = s > 0 ? s / options.repetition_penalty : s * options.repetition_penalty;
  }
  std::map<std::int32_t, int> counts;
  for (std::size_t i = prompt_tokens; i < tokens.size(); ++i) ++counts[tokens[i]];
  for (const auto& [t, count] : counts)
    score[static_cast<std::size_t>(t)] -=
        options.frequency_penalty * count + options.presence_penalty;
  std::vector<double> p(vocab, 0.0);
  if (options.temperature < 1e-5) {
    p[static_cast<std::size_t>(std::ranges::max_element(score) - score.begin())] = 1.0;
    return p;
  }
  const double top = *std::ranges::max_element(score);
  for (std::size_t t = 0; t < vocab; ++t) p[t] = std::exp((score[t] - top) / options.temperature);
  for (double& x : p) x = x < options.min_p ? 0.0 : x;
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < vocab) {
    std::vector<double> sorted;
    for (std::size_t t = 0; t < vocab; ++t)
      if (p[t] > 0.0) sorted.push_back(score[t]);
    std::ranges::sort(sorted, std::greater<>());
    if (sorted.size() > static_cast<std::size_t>(options.top_k))
      for (std::size_t t = 0; t < vocab; ++t)
        if (score[t] < sorted[static_cast<std::size_t>(options.top_k) - 1]) p[t] = 0.0;
  }
  double total = 0.0;
  for (const double x : p) total += x;
  std::vector<std::size_t> order(vocab);
  for (std::size_t t = 0; t < vocab; ++t) order[t] = t;
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
  double before = 0.0;
  for (const std::size_t t : order) {
    const double mass = p[t] / total;
    if (before >= options.top_p) p[t] = 0.0;
    before += mass;
  }
  total = 0.0;
  for (const double x : p) total += x;
  for (double& x : p) x /= total;
  return p;
}

std::vector<float> random_logits(Rng& rng, std::size_t vocab, bool ties) {
  std::vector<float> logits(vocab);
  for (float& x : logits)
    x = ties ? static_cast<float>(rng.below(7)) * 0.5f : static_cast<float>(2.0 * rng.normal());
  return logits;
}

TEST(Sampler, DistributionEqualsANaiveOneForRandomOptionsAndTies) {
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const std::size_t vocab = 1 + rng.below(90);
    const auto logits = random_logits(rng, vocab, seed % 2 == 0);
    SamplingOptions options;
    options.temperature = rng.below(10) == 0 ? 0.0 : 0.2 + 2 * rng.uniform();
    // Odd fractions: a sum that ties with top_p exactly would be decided by rounding.
    if (rng.below(2) == 0) options.top_p = 0.0317 + 0.96 * rng.uniform();
    if (rng.below(2) == 0) options.top_k = static_cast<std::int32_t>(rng.below(vocab + 5));
    if (rng.below(2) == 0) options.min_p = rng.uniform() * 0.3;
    if (rng.below(2) == 0) options.repetition_penalty = 0.6 + rng.uniform();
    if (rng.below(3) == 0) options.frequency_penalty = 2 * rng.uniform() - 1;
    if (rng.below(3) == 0) options.presence_penalty = 2 * rng.uniform() - 1;
    Tokens tokens;
    for (std::uint64_t i = rng.below(20); i > 0; --i)
      tokens.push_back(static_cast<std::int32_t>(rng.below(vocab)));
    const std::size_t prompt = tokens.empty() ? 0 : rng.below(tokens.size());
    Sampler sampler(static_cast<std::int64_t>(vocab), kernel_table());
    const auto wanted = naive_distribution(logits, options, tokens, prompt);
    const auto found =
        sampler.distribution(logits, options, tokens, static_cast<std::int64_t>(prompt)).value();
    for (std::size_t t = 0; t < vocab; ++t) ASSERT_NEAR(found[t], wanted[t], 2e-6) << "token " << t;
  }
}

/// Pearson's statistic of `draws` samples against the naive distribution, standardised.
void expect_draws_follow(SamplingOptions options, const std::string& name) {
  SCOPED_TRACE(name);
  constexpr int kDraws = 40000;
  Rng rng(99);
  const std::size_t vocab = 37;
  const auto logits = random_logits(rng, vocab, false);
  const Tokens tokens = {3, 5, 5, 9, 11, 11, 11};
  const auto wanted = naive_distribution(logits, options, tokens, 3);
  Sampler sampler(static_cast<std::int64_t>(vocab), kernel_table());
  std::vector<int> counts(vocab, 0);
  for (int i = 0; i < kDraws; ++i) {
    const SampleKey key{.seed = 5,
                        .prompt = 8,
                        .sample = static_cast<std::uint32_t>(i / 200),
                        .position = static_cast<std::uint32_t>(i % 200)};
    const SampledToken drawn = sampler.sample(logits, options, tokens, 3, key).value();
    const auto token = static_cast<std::size_t>(drawn.token);
    ASSERT_GT(wanted[token], 0.0) << "token " << token << " is excluded";
    ASSERT_NEAR(drawn.log_prob, std::log(wanted[token]), 1e-5);
    ++counts[token];
  }
  double statistic = 0.0;
  int cells = 0;
  for (std::size_t t = 0; t < vocab; ++t) {
    const double expected = wanted[t] * kDraws;
    if (expected < 5.0) continue;
    statistic += (counts[t] - expected) * (counts[t] - expected) / expected;
    ++cells;
  }
  ASSERT_GT(cells, 1);
  const double freedom = cells - 1;
  EXPECT_LT(statistic, freedom + 4.5 * std::sqrt(2 * freedom)) << cells << " cells";
}

TEST(Sampler, DrawsFollowTheExactDistributionForEachOption) {
  expect_draws_follow({}, "plain");
  expect_draws_follow({.temperature = 0.5}, "cold");
  expect_draws_follow({.temperature = 2.5}, "hot");
  expect_draws_follow({.top_p = 0.8}, "top-p");
  expect_draws_follow({.top_k = 6}, "top-k");
  expect_draws_follow({.min_p = 0.05}, "min-p");
  expect_draws_follow({.repetition_penalty = 1.6}, "repetition penalty");
  expect_draws_follow({.frequency_penalty = 0.7}, "frequency penalty");
  expect_draws_follow({.presence_penalty = 1.2}, "presence penalty");
  expect_draws_follow(
      {.temperature = 1.3, .top_p = 0.9, .top_k = 12, .min_p = 0.02, .repetition_penalty = 1.2},
      "all");
}

TEST(Sampler, GreedyTakesTheLowestIdOnTiesAndReportsTemperatureOne) {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f};
  Sampler sampler(4, kernel_table());
  const SamplingOptions greedy{.temperature = 0.0, .top_p = 0.1, .top_k = 1};
  const SampledToken drawn = sampler.sample(logits, greedy, {}, 0, {}).value();
  EXPECT_EQ(drawn.token, 1);
  const double total = std::exp(0.5) + 2 * std::exp(2.0) + std::exp(-1.0);
  EXPECT_NEAR(drawn.log_prob, 2.0 - std::log(total), 1e-6);
  EXPECT_NEAR(drawn.full_log_prob, 2.0 - std::log(total), 1e-6);
}

TEST(Sampler, FullLogProbLeavesOutPenaltiesAndTruncation) {
  const std::vector<float> logits = {1.0f, 0.4f, -0.3f, 0.9f};
  const Tokens tokens = {0, 3};
  Sampler sampler(4, kernel_table());
  const SamplingOptions options{.temperature = 0.7, .top_k = 2, .repetition_penalty = 1.4};
  for (std::uint32_t i = 0; i < 20; ++i) {
    const SampledToken drawn =
        sampler.sample(logits, options, tokens, 1, {.seed = 1, .position = i}).value();
    double total = 0.0;
    for (const float x : logits) total += std::exp(x / 0.7);
    const double wanted = logits[static_cast<std::size_t>(drawn.token)] / 0.7 - std::log(total);
    EXPECT_NEAR(drawn.full_log_prob, wanted, 1e-6);
    EXPECT_GT(drawn.log_prob, drawn.full_log_prob);
  }
}

TEST(Sampler, GivesTheSameTokenOnEveryKernelPath) {
  Rng rng(12);
  const auto logits = random_logits(rng, 301, false);
  const SamplingOptions options{.temperature = 0.9, .top_p = 0.95};
  Sampler portable(301, kernel_table(KernelPath::kPortable));
  Sampler fastest(301, kernel_table());
  for (std::uint32_t i = 0; i < 500; ++i) {
    const SampleKey key{.seed = 3, .position = i};
    const auto a = portable.sample(logits, options, {}, 0, key).value();
    const auto b = fastest.sample(logits, options, {}, 0, key).value();
    ASSERT_EQ(a.token, b.token);
    ASSERT_EQ(a.log_prob, b.log_prob);
  }
}

TEST(Sampler, RefusesLogitsThatAreNotFiniteAndStaysUsable) {
  Sampler sampler(20, kernel_table());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits(20, 0.25f);
    logits[17] = bad;
    const auto drawn = sampler.sample(logits, {}, {}, 0, {});
    ASSERT_FALSE(drawn);
    EXPECT_NE(drawn.error().message.find("token 17"), std::string::npos) << drawn.error().message;
    logits[17] = 0.25f;
    EXPECT_TRUE(sampler.sample(logits, {}, {}, 0, {}));
  }
}

TEST(Sampler, CopesWithExtremeOptions) {
  Sampler sampler(5, kernel_table());
  const std::vector<float> logits = {-3e38f, 3e38f, 0.0f, 1.0f, 2.0f};
  EXPECT_EQ(sampler.sample(logits, {}, {}, 0, {}).value().token, 1);
  EXPECT_EQ(sampler.sample(logits, {.temperature = 1e-4}, {}, 0, {}).value().token, 1);
  const std::vector<float> equal(5, 1.0f);
  std::set<std::int32_t> seen;
  for (std::uint32_t i = 0; i < 200; ++i)
    seen.insert(
        sampler
            .sample(equal, {.temperature = 1e6, .top_k = 1, .min_p = 1.0}, {}, 0, {.position = i})
            .value()
            .token);
  EXPECT_EQ(seen.size(), 5u) << "ties with the k-th stay";
  seen.clear();
  for (std::uint32_t i = 0; i < 200; ++i)
    seen.insert(sampler.sample(equal, {.top_p = 0.3}, {}, 0, {.position = i}).value().token);
  EXPECT_EQ(seen, (std::set<std::int32_t>{0, 1})) << "the token that crosses p stays";
}

}  // namespace
}  // namespace troupe::actors

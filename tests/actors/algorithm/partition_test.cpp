// Proves partitions complete and nearly as good as the best by brute force, and micro-batch plans
// within their budget on every random set, with any count that the ranks agree on.
#include "actors/algorithm/partition.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace troupe::actors {
namespace {

std::int64_t sum_of(std::span<const std::int64_t> values, const std::vector<std::int64_t>& items) {
  std::int64_t sum = 0;
  for (const std::int64_t item : items) sum += values[static_cast<std::size_t>(item)];
  return sum;
}

std::int64_t heaviest(std::span<const std::int64_t> weights, const Partition& parts) {
  std::int64_t most = 0;
  for (const auto& part : parts) most = std::max(most, sum_of(weights, part));
  return most;
}

void expect_covers(const Partition& parts, std::size_t count) {
  std::vector<std::int64_t> items;
  for (const auto& part : parts) {
    EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
    items.insert(items.end(), part.begin(), part.end());
  }
  std::sort(items.begin(), items.end());
  std::vector<std::int64_t> all(count);
  std::iota(all.begin(), all.end(), std::int64_t{0});
  EXPECT_EQ(items, all);
}

/// The least possible heaviest part, by trying everything.
std::int64_t best_possible(std::span<const std::int64_t> weights, std::size_t parts,
                           std::size_t items_max) {
  std::int64_t best = INT64_MAX;
  std::vector<std::int64_t> sums(parts, 0);
  std::vector<std::size_t> counts(parts, 0);
  const auto place = [&](const auto& self, std::size_t item) -> void {
    if (item == weights.size()) {
      best = std::min(best, *std::max_element(sums.begin(), sums.end()));
      return;
    }
    for (std::size_t p = 0; p < parts; ++p) {
      if (counts[p] == items_max) continue;
      sums[p] += weights[item];
      ++counts[p];
      if (sums[p] < best) self(self, item + 1);
      sums[p] -= weights[item];
      --counts[p];
      if (counts[p] == 0) break;  // the empty parts are alike
    }
  };
  place(place, 0);
  return best;
}

/// Fewest parts of at most `cap`, by trying everything.
std::size_t fewest_possible(std::span<const std::int64_t> lengths, std::int64_t cap) {
  for (std::size_t parts = 1;; ++parts)
    if (best_possible(lengths, parts, lengths.size()) <= cap) return parts;
}

std::vector<std::int64_t> random_weights(Rng& rng, std::size_t count, std::uint64_t max) {
  std::vector<std::int64_t> weights;
  for (std::size_t i = 0; i < count; ++i)
    weights.push_back(static_cast<std::int64_t>(rng.below(max + 1)));
  return weights;
}

TEST(KarmarkarKarp, IsCloseToTheBestByBruteForce) {
  double worst_free = 1;
  double worst_equal = 1;
  for (int trial = 0; trial < 150; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const std::size_t k = 2 + rng.below(3);
    const auto weights = random_weights(rng, 1 + rng.below(9), 100);
    for (const PartSizes sizes : {PartSizes::kFree, PartSizes::kEqual}) {
      const auto parts = karmarkar_karp(weights, static_cast<std::int64_t>(k), sizes).value();
      ASSERT_EQ(parts.size(), k);
      expect_covers(parts, weights.size());
      const bool equal = sizes == PartSizes::kEqual;
      if (equal)
        for (const auto& part : parts) {
          EXPECT_GE(part.size(), weights.size() / k);
          EXPECT_LE(part.size(), (weights.size() + k - 1) / k);
        }
      const auto best = static_cast<double>(best_possible(
          weights, k, equal ? (weights.size() + k - 1) / k : weights.size()));
      if (best == 0) continue;
      double& worst = equal ? worst_equal : worst_free;
      worst = std::max(worst, static_cast<double>(heaviest(weights, parts)) / best);
    }
  }
  // 4/3 - 1/(3k) bounds the method for free sizes.
  EXPECT_LE(worst_free, 4.0 / 3);
  EXPECT_LE(worst_equal, 1.6);
}

TEST(KarmarkarKarp, SolvesThePapersExample) {
  // {8,7,6,5,4} in two: differencing leaves 2 (16 | 14), as in Karmarkar and Karp.
  const std::vector<std::int64_t> weights = {8, 7, 6, 5, 4};
  const auto parts = karmarkar_karp(weights, 2, PartSizes::kFree).value();
  EXPECT_EQ(heaviest(weights, parts), 16);
}

TEST(KarmarkarKarp, EdgesAndBadInput) {
  EXPECT_THAT(karmarkar_karp({}, 3, PartSizes::kEqual).value(),
              ::testing::ElementsAre(::testing::IsEmpty(), ::testing::IsEmpty(), ::testing::IsEmpty()));
  const std::vector<std::int64_t> one = {5};
  expect_covers(karmarkar_karp(one, 4, PartSizes::kFree).value(), 1);
  expect_covers(karmarkar_karp(one, 4, PartSizes::kEqual).value(), 1);
  const std::vector<std::int64_t> zeros(10, 0);
  const auto quarters = karmarkar_karp(zeros, 4, PartSizes::kEqual).value();
  for (const auto& part : quarters) {
    EXPECT_GE(part.size(), 2u);
    EXPECT_LE(part.size(), 3u);
  }
  expect_covers(karmarkar_karp(zeros, 4, PartSizes::kFree).value(), 10);
  EXPECT_EQ(karmarkar_karp(one, 0, PartSizes::kFree).error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(karmarkar_karp(std::vector<std::int64_t>{1, -2}, 2, PartSizes::kFree).error().message,
              ::testing::HasSubstr("item 1"));
  EXPECT_THAT(karmarkar_karp(std::vector<std::int64_t>{INT64_MAX, 2}, 2, PartSizes::kFree)
                  .error()
                  .message,
              ::testing::HasSubstr("overflow"));
}

TEST(KarmarkarKarp, EveryPartHasItsShareAtScaleAndIsFast) {
  Rng rng(5);
  const auto lengths = random_weights(rng, 8192, 4096);
  const auto start = std::chrono::steady_clock::now();
  const auto parts = balance_ranks(lengths, 8).value();
  const auto elapsed = std::chrono::steady_clock::now() - start;
  expect_covers(parts, lengths.size());
  std::vector<std::int64_t> work = sequence_works(lengths).value();
  const auto total = static_cast<double>(std::accumulate(work.begin(), work.end(), std::int64_t{0}));
  EXPECT_LT(static_cast<double>(heaviest(work, parts)), total / 8 * 1.0001);
  for (const auto& part : parts) EXPECT_EQ(part.size(), 1024u);
  EXPECT_LT(elapsed, std::chrono::seconds(2));
}

TEST(MicroBatches, NeverExceedTheBudgetWhateverCountIsAgreed) {
  for (int trial = 0; trial < 2000; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const auto cap = static_cast<std::int64_t>(1 + rng.below(64));
    const auto lengths = random_weights(rng, rng.below(24), static_cast<std::uint64_t>(cap));
    const std::int64_t own = micro_batch_count(lengths, cap).value();
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    EXPECT_GE(own * cap, total);
    EXPECT_LE(own, static_cast<std::int64_t>(lengths.size()));
    EXPECT_EQ(own == 0, lengths.empty());
    const std::int64_t agreed = own + static_cast<std::int64_t>(rng.below(8));
    const auto plan = plan_micro_batches(lengths, cap, agreed).value();
    ASSERT_EQ(static_cast<std::int64_t>(plan.size()), agreed);
    expect_covers(plan, lengths.size());
    ASSERT_LE(heaviest(lengths, plan), cap);
    const auto first_empty = std::find_if(plan.begin(), plan.end(), [](auto& p) { return p.empty(); });
    EXPECT_TRUE(std::all_of(first_empty, plan.end(), [](auto& p) { return p.empty(); }));
    if (agreed <= static_cast<std::int64_t>(lengths.size())) {
      EXPECT_EQ(first_empty, plan.end());
    }
    if (own > 0) {
      EXPECT_FALSE(plan_micro_batches(lengths, cap, own - 1).has_value() && own * cap < total);
    }
  }
}

TEST(MicroBatches, AreFewComparedWithTheBestByBruteForce) {
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial) + 50);
    const auto cap = static_cast<std::int64_t>(10 + rng.below(40));
    const auto lengths = random_weights(rng, 1 + rng.below(9), static_cast<std::uint64_t>(cap));
    const auto best = static_cast<double>(fewest_possible(lengths, cap));
    const auto own = static_cast<double>(micro_batch_count(lengths, cap).value());
    EXPECT_LE(own, 11.0 / 9 * best + 1);
  }
}

TEST(MicroBatches, TheCaseThatVerlGetsWrong) {
  // 6, 6, 6 with budget 10: ⌈18/10⌉ = 2 micro-batches would hold 12 in one of them.
  const std::vector<std::int64_t> lengths = {6, 6, 6};
  EXPECT_EQ(micro_batch_count(lengths, 10).value(), 3);
  EXPECT_EQ(heaviest(lengths, plan_micro_batches(lengths, 10, 3).value()), 6);
  const auto two = plan_micro_batches(lengths, 10, 2);
  ASSERT_FALSE(two.has_value());
  EXPECT_THAT(two.error().message, ::testing::HasSubstr("wanted 3"));
}

TEST(MicroBatches, AnAgreedCountAboveTheRowsGivesEmptyOnes) {
  const std::vector<std::int64_t> lengths = {3, 4};
  const auto plan = plan_micro_batches(lengths, 10, 5).value();
  EXPECT_THAT(plan, ::testing::ElementsAre(::testing::ElementsAre(1), ::testing::ElementsAre(0),
                                           ::testing::IsEmpty(), ::testing::IsEmpty(),
                                           ::testing::IsEmpty()));
  EXPECT_EQ(plan_micro_batches({}, 10, 3).value().size(), 3u);
  EXPECT_EQ(micro_batch_count({}, 10).value(), 0);
}

TEST(MicroBatches, ASequenceLongerThanTheBudgetIsNamed) {
  const std::vector<std::int64_t> lengths = {3, 11, 4};
  for (const auto& error : {micro_batch_count(lengths, 10).error(),
                            plan_micro_batches(lengths, 10, 2).error()}) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message, ::testing::HasSubstr("sequence 1: 11 tokens"));
    EXPECT_THAT(error.message, ::testing::HasSubstr("10"));
  }
  EXPECT_EQ(micro_batch_count(lengths, 0).error().code, ErrorCode::kConfig);
  EXPECT_THAT(micro_batch_count(std::vector<std::int64_t>{-1}, 5).error().message,
              ::testing::HasSubstr("sequence 0"));
  EXPECT_FALSE(plan_micro_batches(std::vector<std::int64_t>{1}, 5, -1).has_value());
  EXPECT_FALSE(plan_micro_batches({}, 5, -1).has_value());
}

TEST(MicroBatches, BalanceWorkAndStartWithTheHeaviest) {
  Rng rng(11);
  std::vector<std::int64_t> lengths = random_weights(rng, 256, 1000);
  const std::int64_t count = micro_batch_count(lengths, 8192).value();
  const auto plan = plan_micro_batches(lengths, 8192, count + 2).value();
  const std::vector<std::int64_t> work = sequence_works(lengths).value();
  std::vector<std::int64_t> sums;
  for (const auto& part : plan) sums.push_back(sum_of(work, part));
  EXPECT_TRUE(std::is_sorted(sums.rbegin(), sums.rend()));
  EXPECT_LT(static_cast<double>(sums.front()), 1.01 * static_cast<double>(sums.back()));
  EXPECT_EQ(plan_micro_batches(lengths, 8192, count + 2).value(), plan);
}

}  // namespace
}  // namespace troupe::actors

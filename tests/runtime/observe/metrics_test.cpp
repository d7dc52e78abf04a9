// Proves that each reduction joins parts as if all had been added to one, that conflicts change
// nothing and name both sides, and that edge values (NaN, infinity, weight 0, no addition) have one
// meaning. Oracle: adding everything to one `Metrics`, and plain formulas.

#include "runtime/observe/metrics.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Reduction kAll[] = {Reduction::kMean, Reduction::kSum,  Reduction::kMin,
                              Reduction::kMax,  Reduction::kLast, Reduction::kHistogram};

TEST(Metrics, ReducesByTheDeclaredRule) {
  Metrics metrics;
  for (const Reduction reduction : kAll) {
    metrics.add(reduction_name(reduction), 1, reduction, 3);
    metrics.add(reduction_name(reduction), 5, reduction, 1);
  }
  EXPECT_EQ(metrics.value("mean"), 2.0);
  EXPECT_EQ(metrics.value("sum"), 8.0);
  EXPECT_EQ(metrics.value("min"), 1.0);
  EXPECT_EQ(metrics.value("max"), 5.0);
  EXPECT_EQ(metrics.value("last"), 5.0);
  EXPECT_EQ(metrics.value("histogram"), 2.0);
  EXPECT_EQ(metrics.value("none"), std::nullopt);
  std::vector<std::string> names;
  for (const auto& [name, entry] : metrics) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("histogram", "last", "max", "mean", "min", "sum"));
}

TEST(Metrics, MergeOfPartsEqualsAddingAllToOne) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    Metrics whole;
    std::vector<Metrics> parts(1 + rng.below(4));
    for (Metrics& part : parts) {
      for (std::uint64_t i = rng.below(8); i > 0; --i) {
        const Reduction reduction = kAll[rng.below(6)];
        // Small integers, so that sums are exact and equality is the right question.
        const double value = static_cast<double>(rng.below(9)) - 4;
        const auto weight = static_cast<double>(rng.below(3));
        part.add(reduction_name(reduction), value, reduction, weight);
        whole.add(reduction_name(reduction), value, reduction, weight);
      }
    }
    Metrics left;
    for (const Metrics& part : parts) ASSERT_TRUE(left.merge(part));
    EXPECT_EQ(left, whole);
    Metrics right;  // merged from the other end: associative
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      Metrics joined = *part;
      ASSERT_TRUE(joined.merge(right));
      right = joined;
    }
    EXPECT_EQ(right, whole);
  }
}

TEST(Metrics, ConflictingReductionsChangeNothingAndNameBoth) {
  Metrics metrics;
  metrics.add("actor/pg_loss", 1, Reduction::kMean);
  Metrics other;
  other.add("a_new_one", 1, Reduction::kSum);
  other.add("actor/pg_loss", 1, Reduction::kMax);
  const Metrics before = metrics;
  const result<void> merged = metrics.merge(other);
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().code, ErrorCode::kConflict);
  EXPECT_THAT(merged.error().message,
              AllOf(HasSubstr("actor/pg_loss"), HasSubstr("mean"), HasSubstr("max")));
  EXPECT_EQ(metrics, before);
  EXPECT_THROW(metrics.add("actor/pg_loss", 1, Reduction::kSum), CheckFailure);
}

TEST(Metrics, WeightZeroStandsForNothing) {
  Metrics metrics;
  metrics.add("mean", kNan, Reduction::kMean, 0);
  EXPECT_EQ(metrics.value("mean"), std::nullopt);
  metrics.add("mean", 4, Reduction::kMean, 2);
  EXPECT_EQ(metrics.value("mean"), 4.0);
  EXPECT_THROW(metrics.add("mean", 1, Reduction::kMean, -1), CheckFailure);
  EXPECT_THROW(metrics.add("mean", 1, Reduction::kMean, kNan), CheckFailure);
}

TEST(Metrics, NanIsSeenWhereverItCounts) {
  Metrics metrics;
  for (const double value : {1.0, kNan, 2.0}) {
    metrics.add("mean", value, Reduction::kMean);
    metrics.add("min", value, Reduction::kMin);
    metrics.add("max", value, Reduction::kMax);
    metrics.add("histogram", value, Reduction::kHistogram);
  }
  EXPECT_TRUE(std::isnan(*metrics.value("mean")));
  EXPECT_TRUE(std::isnan(*metrics.value("min")));
  EXPECT_TRUE(std::isnan(*metrics.value("max")));
  EXPECT_EQ(metrics.value("histogram"), 1.5);
  EXPECT_EQ(metrics.find("histogram")->histogram.non_finite_weight, 1.0);
}

TEST(Metrics, EqualTheirCopyAlsoWithNan) {
  Metrics metrics;
  for (const Reduction reduction : kAll) metrics.add(reduction_name(reduction), kNan, reduction);
  EXPECT_EQ(Metrics(metrics), metrics);
  Metrics other = metrics;
  other.add("last", 1, Reduction::kLast);
  EXPECT_NE(other, metrics);
}

TEST(Metrics, QuantilesAreWithinTheBucketWidth) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    Histogram histogram;
    std::vector<double> values;
    for (int i = 0; i < 501; ++i) {
      values.push_back(rng.below(10) == 0 ? 0 : rng.normal() * std::pow(10, rng.uniform() * 6 - 3));
      histogram.add(values.back(), 1);
    }
    std::sort(values.begin(), values.end());
    for (const double q : {0.0, 0.1, 0.5, 0.9, 0.99, 1.0}) {
      const auto at = static_cast<std::size_t>(std::max(0.0, std::ceil(q * 501) - 1));
      EXPECT_NEAR(*histogram.quantile(q), values[at], 0.0251 * std::abs(values[at])) << q;
    }
  }
}

TEST(Metrics, HistogramHoldsEveryFiniteDouble) {
  Histogram histogram;
  const std::vector<double> values{std::numeric_limits<double>::max(),
                                   -std::numeric_limits<double>::max(),
                                   std::numeric_limits<double>::denorm_min(),
                                   -0.0,
                                   kInfinity,
                                   kNan};
  for (const double value : values) histogram.add(value, 1);
  EXPECT_EQ(histogram.buckets.size(), 4U);
  EXPECT_EQ(histogram.non_finite_weight, 2.0);
  for (const auto& [key, weight] : histogram.buckets)
    EXPECT_LE(std::abs(key), kHistogramBucketsMax / 2);
  EXPECT_TRUE(std::isfinite(*histogram.quantile(1.0)));
  EXPECT_TRUE(std::isfinite(*histogram.quantile(0.0)));
  EXPECT_EQ(Histogram{}.quantile(0.5), std::nullopt);
}

TEST(Metrics, MergingAnEntryWithoutAdditionsChangesNothing) {
  Metrics metrics;
  metrics.add("max", 3, Reduction::kMax);
  Metrics other;
  other.put("max", MetricEntry{.reduction = Reduction::kMax});
  EXPECT_EQ(other.value("max"), std::nullopt);
  ASSERT_TRUE(metrics.merge(other));
  EXPECT_EQ(metrics.value("max"), 3.0);
  ASSERT_TRUE(other.merge(metrics));
  EXPECT_EQ(other.value("max"), 3.0);
}

}  // namespace
}  // namespace troupe::runtime

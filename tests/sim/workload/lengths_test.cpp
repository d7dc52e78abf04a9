// Proves length models: published medians and masses at the cap, moments of draws, correlation
// inside groups, drift, and refusals.

#include "sim/workload/lengths.hpp"

#include "sim/engine/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace troupe::sim {
namespace {

LengthModel make(const LengthOptions& options) {
  auto model = LengthModel::create(options);
  EXPECT_TRUE(model) << model.error().to_string();
  return *model;
}

TEST(Lengths, LogNormalsWithThePublishedMeansHaveTheKnownMedians) {
  // reference/simulator.md §4: mean, cap, σ → median, share at the cap.
  struct Known {
    double mean, sigma;
    std::int64_t cap;
    double median, at_cap;
  };
  for (const Known& known :
       {Known{22'386, 0.8, 65'536, 17'326, 0.048}, Known{7'615, 1.0, 40'960, 4'831, 0.016},
        Known{38'959, 0.8, 98'304, 31'047, 0.075}}) {
    const auto shape = log_normal_with_mean(known.mean, known.sigma, known.cap);
    ASSERT_TRUE(shape) << shape.error().to_string();
    EXPECT_NEAR(shape->median, known.median, 0.005 * known.median);
    const double z = std::log(static_cast<double>(known.cap) / shape->median) / known.sigma;
    EXPECT_NEAR(normal_cdf(-z), known.at_cap, 0.001);
    LengthOptions options;
    options.shape = *shape;
    options.tokens_max = known.cap;
    EXPECT_NEAR(make(options).mean(), known.mean, 0.002 * known.mean);
  }
}

TEST(Lengths, DrawsHaveTheMeanOfTheirDistribution) {
  LengthOptions options;
  options.tokens_max = 8192;
  for (const LengthShape& shape :
       {LengthShape(LogNormalLength{900, 0.9}), LengthShape(WeibullLength{1000, 1.3}),
        LengthShape(MixtureLength{{700, 0.6}, 0.1}),
        LengthShape(EmpiricalLength{{10, 20, 40, 800, 8000}}), LengthShape(FixedLength{77})}) {
    options.shape = shape;
    const LengthModel model = make(options);
    double sum = 0;
    const int n = 60'000;
    for (int i = 0; i < n; ++i)
      sum += static_cast<double>(model.draw(1, 0, static_cast<std::uint64_t>(i), 0)) / n;
    EXPECT_NEAR(sum, model.mean(), 0.02 * model.mean()) << shape.index();
  }
}

TEST(Lengths, SamplesOfAGroupAreCorrelatedAsAsked) {
  for (const double share : {0.0, 0.5, 1.0}) {
    LengthOptions options;
    options.shape = LogNormalLength{1000, 0.8};
    options.tokens_max = 1'000'000'000;
    options.group_share = share;
    const LengthModel model = make(options);
    double product = 0, square = 0;
    const int n = 40'000;
    for (int i = 0; i < n; ++i) {
      const auto prompt = static_cast<std::uint64_t>(i);
      const double a = std::log(static_cast<double>(model.draw(1, 0, prompt, 0)) / 1000) / 0.8;
      const double b = std::log(static_cast<double>(model.draw(1, 0, prompt, 1)) / 1000) / 0.8;
      product += a * b / n;
      square += (a * a + b * b) / 2 / n;
    }
    EXPECT_NEAR(product / square, share, 0.03);
  }
}

TEST(Lengths, DriftGrowsThemUpToItsBound) {
  LengthOptions options;
  options.shape = FixedLength{100};
  options.tokens_max = 100'000;
  options.drift_per_step = std::log(2.0);
  options.drift_factor_max = 8;
  const LengthModel model = make(options);
  EXPECT_EQ(model.draw(1, 0, 1, 0), 100);
  EXPECT_EQ(model.draw(1, 2, 1, 0), 400);
  EXPECT_EQ(model.draw(1, 9, 1, 0), 800);
}

TEST(Lengths, ReadsFilesAndNamesTheLineThatIsWrong) {
  const auto read = parse_lengths("tokens,reward\n12,0.5\n# a remark\n7,1\n\n 30\n", "mine.csv");
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->sorted, (std::vector<double>{7, 12, 30}));
  const auto wrong = parse_lengths("tokens\n12\nmany\n", "mine.csv");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("mine.csv:3: many"), std::string::npos);
  EXPECT_FALSE(parse_lengths("", "mine.csv"));
  EXPECT_FALSE(parse_lengths("tokens\n", "mine.csv"));
  EXPECT_EQ(read_lengths("/nowhere/lengths.csv").error().code, ErrorCode::kNotFound);
}

TEST(Lengths, RefusesNumbersThatMakeNoSense) {
  LengthOptions options;
  options.shape = LogNormalLength{-3, 1};
  EXPECT_NE(LengthModel::create(options).error().message.find("median is -3"), std::string::npos);
  options = {};
  options.group_share = 1.5;
  EXPECT_NE(LengthModel::create(options).error().message.find("group_share is 1.5"),
            std::string::npos);
  options = {};
  options.tokens_max = 0;
  EXPECT_FALSE(LengthModel::create(options));
  EXPECT_FALSE(log_normal_with_mean(5000, 0.8, 4096));
}

}  // namespace
}  // namespace troupe::sim

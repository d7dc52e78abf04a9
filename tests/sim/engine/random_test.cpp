// Proves keyed draws: the normal quantile against published digits and its inverse, moments of the
// samplers, and that draws of one key do not depend on any other.

#include "sim/engine/random.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace troupe::sim {
namespace {

TEST(Random, QuantileHasThePublishedDigits) {
  // Wichura 1988, the three values given to check an implementation.
  EXPECT_NEAR(normal_quantile(0.25), -0.6744897501960817, 1e-15);
  EXPECT_NEAR(normal_quantile(0.001), -3.090232306167814, 1e-14);
  EXPECT_NEAR(normal_quantile(1e-20), -9.262340089798408, 1e-13);
  EXPECT_EQ(normal_quantile(0.5), 0.0);
}

TEST(Random, QuantileInvertsTheDistributionFunction) {
  for (double p = 1e-6; p < 1; p += 0.0037) EXPECT_NEAR(normal_cdf(normal_quantile(p)), p, 1e-14);
}

TEST(Random, DrawsHaveTheirMoments) {
  const int n = 200'000;
  double mean = 0, square = 0, expo = 0, flat = 0;
  for (int i = 0; i < n; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const double z = normal({1, 2, Purpose::kTest, index});
    mean += z / n;
    square += z * z / n;
    expo += exponential({1, 3, Purpose::kTest, index}) / n;
    flat += uniform({1, 4, Purpose::kTest, index}) / n;
  }
  EXPECT_NEAR(mean, 0, 4 / std::sqrt(n));
  EXPECT_NEAR(square, 1, 4 * std::sqrt(2.0 / n));
  EXPECT_NEAR(expo, 1, 4 / std::sqrt(n));
  EXPECT_NEAR(flat, 0.5, 4 * 0.289 / std::sqrt(n));
}

TEST(Random, EveryPartOfTheKeyMatters) {
  std::set<double> seen;
  for (const DrawKey& key :
       {DrawKey{1, 1, Purpose::kTest, 1}, DrawKey{2, 1, Purpose::kTest, 1},
        DrawKey{1, 2, Purpose::kTest, 1}, DrawKey{1, 1, Purpose::kFailure, 1},
        DrawKey{1, 1, Purpose::kTest, 2}, DrawKey{1, 1, Purpose::kTest, std::uint64_t{1} << 32}})
    EXPECT_TRUE(seen.insert(uniform(key)).second);
  EXPECT_EQ(uniform({7, 7, Purpose::kTest, 7}), uniform({7, 7, Purpose::kTest, 7}));
}

}  // namespace
}  // namespace troupe::sim

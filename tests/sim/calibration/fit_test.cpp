// Fits: constants come back from times that were computed with them, whatever the seed; what the
// times do not determine stays and is named; values stay in their ranges; wrong input is refused.

#include "sim/calibration/fit.hpp"

#include "sim/engine/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace troupe::sim {
namespace {

using testing::HasSubstr;

/// A made-up time: what a machine does at a share of its rate, and what software adds.
Observation made_up(const std::string& name, double work, double steps, double measured_s) {
  return {.name = name, .measured_s = measured_s, .predict = [work, steps](const Constants& c) {
            return result<double>(work / (c[Constant::kGemmShare] * c[Constant::kTrainShare]) +
                                  steps * c[Constant::kDecodeStepHost] +
                                  c[Constant::kIterationHost]);
          }};
}

std::vector<Observation> observed_with(const Constants& truth) {
  std::vector<Observation> all;
  const std::pair<double, double> cases[] = {{1, 0}, {20, 100}, {5, 4000}, {80, 1000}, {2, 9000}};
  for (const auto& [work, steps] : cases) {
    Observation one = made_up("case " + std::to_string(all.size()), work, steps, 1);
    one.measured_s = one.predict(truth).value();
    all.push_back(std::move(one));
  }
  return all;
}

TEST(Fit, FindsTheConstantsThatTimesWereMadeWith) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Constants truth;
    const auto draw = [&](Constant constant, double low, double high) {
      const double u = uniform({seed, static_cast<std::uint64_t>(constant), Purpose::kReward, 0});
      ASSERT_TRUE(truth.set(constant, low * std::pow(high / low, u)));
    };
    draw(Constant::kGemmShare, 0.52, 0.83);
    draw(Constant::kDecodeStepHost, 3e-4, 8e-3);
    draw(Constant::kIterationHost, 1, 25);
    const Constant wanted[] = {Constant::kGemmShare, Constant::kDecodeStepHost,
                               Constant::kIterationHost};
    const auto observations = observed_with(truth);
    const auto fitted = fit(observations, wanted, Constants{}, {});
    ASSERT_TRUE(fitted) << fitted.error().to_string();
    EXPECT_LT(fitted->worst_error(), 0.005) << fitted->to_text();
    for (const FittedConstant& one : fitted->fitted) {
      EXPECT_NEAR(one.value / truth[one.constant], 1, 0.03) << fitted->to_text();
      EXPECT_TRUE(one.identified) << fitted->to_text();
    }
  }
}

TEST(Fit, SameInputGivesTheSameBits) {
  Constants truth;
  ASSERT_TRUE(truth.set(Constant::kGemmShare, 0.61));
  const auto observations = observed_with(truth);
  const Constant wanted[] = {Constant::kGemmShare, Constant::kIterationHost};
  EXPECT_EQ(fit(observations, wanted, Constants{})->constants,
            fit(observations, wanted, Constants{})->constants);
}

TEST(Fit, NamesWhatTheTimesDoNotDetermine) {
  // Only the product of two shares shows, and the KV share not at all.
  Constants truth;
  ASSERT_TRUE(truth.set(Constant::kTrainShare, 0.6));
  const auto observations = observed_with(truth);
  const Constant wanted[] = {Constant::kGemmShare, Constant::kTrainShare, Constant::kKvReadShare};
  const auto fitted = fit(observations, wanted, Constants{});
  ASSERT_TRUE(fitted) << fitted.error().to_string();
  EXPECT_LT(fitted->worst_error(), 0.01);
  const FittedConstant& kv = fitted->fitted[2];
  EXPECT_FALSE(kv.identified);
  EXPECT_NEAR(kv.value, kv.prior, 1e-9);
  EXPECT_FALSE(fitted->fitted[0].identified && fitted->fitted[1].identified) << fitted->to_text();
  EXPECT_THAT(fitted->to_text(), HasSubstr("not identified"));
}

TEST(Fit, StaysInsideTheRangesAndSaysSo) {
  // Ten times slower than any share allows.
  const std::vector<Observation> slow = {made_up("slow", 10, 0, 1000)};
  const Constant wanted[] = {Constant::kGemmShare};
  const auto fitted = fit(slow, wanted, Constants{});
  ASSERT_TRUE(fitted) << fitted.error().to_string();
  EXPECT_DOUBLE_EQ(fitted->fitted[0].value, info_of(Constant::kGemmShare).low);
  EXPECT_TRUE(fitted->fitted[0].at_bound);
}

TEST(Fit, RefusesWhatCannotBeFitted) {
  const std::vector<Observation> one = {made_up("one", 1, 1, 5)};
  const Constant gemm[] = {Constant::kGemmShare};
  const Constant twice[] = {Constant::kGemmShare, Constant::kGemmShare};
  EXPECT_THAT(fit({}, gemm, Constants{}).error().message, HasSubstr("0 observations"));
  EXPECT_THAT(fit(one, {}, Constants{}).error().message, HasSubstr("0 constants"));
  EXPECT_THAT(fit(one, twice, Constants{}).error().message, HasSubstr("twice"));
  const std::vector<Observation> bad = {made_up("a bad clock", 1, 1, -2)};
  EXPECT_THAT(fit(bad, gemm, Constants{}).error().message, HasSubstr("a bad clock measured -2"));
  std::vector<Observation> broken = {made_up("no model", 1, 1, 1)};
  broken[0].predict = [](const Constants&) -> result<double> {
    return fail(ErrorCode::kResourceExhausted, "too large");
  };
  EXPECT_THAT(fit(broken, gemm, Constants{}).error().to_string(), HasSubstr("no model"));
}

}  // namespace
}  // namespace troupe::sim

// Proves the KL estimators, their gradients, the in-reward form and the controllers: against the
// formulas in double, central differences, and the statistical fact that k1 and k3 estimate the KL.
#include "actors/algorithm/kl.hpp"

#include "tests/actors/algorithm/matrix_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using test::Case;

constexpr KlEstimator kEstimators[] = {KlEstimator::kK1, KlEstimator::kAbs, KlEstimator::kK2,
                                       KlEstimator::kK3};

/// The formulas for moderate ratios, where nothing is bounded.
double plain_value(double d, KlEstimator estimator) {
  switch (estimator) {
    case KlEstimator::kK1: return d;
    case KlEstimator::kAbs: return d < 0 ? -d : d;
    case KlEstimator::kK2: return 0.5 * d * d;
    case KlEstimator::kK3: return std::exp(-d) - 1 + d;
  }
  return 0;
}

TEST(Kl, ValuesAreTheFormulas) {
  for (const KlEstimator estimator : kEstimators)
    for (double d = -2.5; d < 15; d += 0.173)
      EXPECT_NEAR(kl_term(-1 + d, -1, {.estimator = estimator}).value, plain_value(d, estimator),
                  1e-9 * (1 + std::abs(d)));
}

TEST(Kl, SlopesAreTheDerivatives) {
  for (const KlEstimator estimator : kEstimators) {
    for (double d = -25; d < 25; d += 0.371) {
      const auto value_at = [&](double x) { return kl_term(x - 3, -3, {.estimator = estimator}).value; };
      const double slope = kl_term(d - 3, -3, {.estimator = estimator}).slope;
      EXPECT_NEAR(slope, (value_at(d + 1e-6) - value_at(d - 1e-6)) / 2e-6, 2e-5) << "d = " << d;
    }
  }
}

TEST(Kl, StraightThroughHasTheBasesValueAndTheSlopeOfK2) {
  for (const KlEstimator estimator : kEstimators) {
    for (double d = -25; d < 25; d += 0.371) {
      const KlTerm base = kl_term(d - 3, -3, {.estimator = estimator});
      const KlTerm through = kl_term(d - 3, -3, {.estimator = estimator, .straight_through = true});
      EXPECT_EQ(through.value, base.value);
      EXPECT_NEAR(through.slope, std::abs(d) > 20 ? 0 : d, 1e-9);
    }
  }
}

TEST(Kl, K3KeepsPullingWhereVerlsClampLetsGo) {
  // Beyond k3 = 10 (d < -2.6) a clamped k3 has no gradient: the tokens farthest from the
  // reference would be free.
  for (const double d : {-2.7, -5.0, -10.0, -19.0}) {
    const KlTerm term = kl_term(-21 + d, -21, {.estimator = KlEstimator::kK3});
    EXPECT_LT(term.slope, -10) << d;
    EXPECT_GT(term.value, 10) << d;
    EXPECT_LT(term.value, 300) << d;
  }
}

TEST(Kl, IsConvexAndNonNegativeWhereItShouldBe) {
  double last_slope = -1e9;
  for (double d = -19.9; d < 19.9; d += 0.01) {
    const KlTerm term = kl_term(d, 0, {.estimator = KlEstimator::kK3});
    EXPECT_GE(term.value, 0);
    EXPECT_GE(term.slope, last_slope - 1e-12);
    last_slope = term.slope;
  }
}

TEST(Kl, InfiniteLogProbsStayFiniteAndGiveNoGradient) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const KlEstimator estimator : kEstimators) {
    for (const bool through : {false, true}) {
      for (const auto& [a, b] : {std::pair{-infinity, -1.0}, {-1.0, -infinity}, {-infinity, -infinity}}) {
        const KlTerm term = kl_term(a, b, {.estimator = estimator, .straight_through = through});
        EXPECT_TRUE(std::isfinite(term.value));
        EXPECT_EQ(term.slope, 0);
      }
    }
  }
}

TEST(Kl, K1AndK3EstimateTheDivergenceAndK2sGradientIsUnbiased) {
  // A three-way choice, exact expectations: E k1 = E k3 = KL; E[∇k2] = ∇KL while E[∇k3] is not.
  const std::vector<double> p = {0.5, 0.3, 0.2};
  const std::vector<double> q = {0.25, 0.35, 0.4};
  double kl = 0;
  double k1 = 0;
  double k3 = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    kl += p[i] * std::log(p[i] / q[i]);
    k1 += p[i] * kl_term(std::log(p[i]), std::log(q[i]), {KlEstimator::kK1}).value;
    k3 += p[i] * kl_term(std::log(p[i]), std::log(q[i]), {KlEstimator::kK3}).value;
  }
  EXPECT_NEAR(k1, kl, 1e-12);
  EXPECT_NEAR(k3, kl, 1e-12);
  // ∂ KL / ∂ logit_0 = p_0 (log(p_0/q_0) - KL); E[slope · ∂ log p / ∂ logit_0] the same way.
  double through = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double slope = kl_term(std::log(p[i]), std::log(q[i]),
                                 {.estimator = KlEstimator::kK3, .straight_through = true})
                             .slope;
    through += p[i] * slope * ((i == 0 ? 1 : 0) - p[0]);
  }
  EXPECT_NEAR(through, p[0] * (std::log(p[0] / q[0]) - kl), 1e-12);
}

TEST(Kl, NamesAndAliases) {
  const std::pair<const char*, KlKind> names[] = {
      {"k1", {KlEstimator::kK1, false}},         {"kl", {KlEstimator::kK1, false}},
      {"abs", {KlEstimator::kAbs, false}},       {"k2", {KlEstimator::kK2, false}},
      {"mse", {KlEstimator::kK2, false}},        {"k3", {KlEstimator::kK3, false}},
      {"low_var_kl", {KlEstimator::kK3, false}}, {"k1+", {KlEstimator::kK1, true}},
      {"k3+", {KlEstimator::kK3, true}},         {"low_var_kl+", {KlEstimator::kK3, true}}};
  for (const auto& [name, kind] : names) {
    EXPECT_EQ(kl_kind_from_name(name).value(), kind) << name;
    EXPECT_EQ(kl_kind_from_name(kl_kind_name(kind)).value(), kind);
  }
  EXPECT_EQ(kl_kind_from_name("full").error().code, ErrorCode::kUnsupported);
  for (const char* bad : {"", "+", "k4", "k3++", "K3"})
    EXPECT_EQ(kl_kind_from_name(bad).error().code, ErrorCode::kConfig) << bad;
}

TEST(Kl, LossAggregatesValuesAndSlopes) {
  for (int trial = 0; trial < 20; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    Case data = test::random_case(rng);
    // Within ±2.5 nats, where no bound acts.
    for (std::size_t t = 0; t < data.tokens(); ++t)
      if (data.mask[t] != 0)
        data.column("reference")[t] = data.column("log_probs")[t] +
                                      static_cast<float>(5 * rng.uniform() - 2.5);
    const KlKind kind{.estimator = kEstimators[trial % 4]};
    const auto mode = static_cast<LossAggregation>(trial % 5);
    const auto loss = kl_loss(data.view(), data.column("log_probs"), data.column("reference"), kind,
                              mode, data.normaliser())
                          .value();
    const auto log_probs = test::unpack(data, data.column("log_probs"));
    const auto reference = test::unpack(data, data.column("reference"));
    const auto value_with = [&](std::size_t row, std::size_t column, double step) {
      test::Matrix terms = test::zeros_like(log_probs);
      for (std::size_t b = 0; b < terms.size(); ++b)
        for (std::size_t j = 0; j < terms[b].size(); ++j)
          if (log_probs.mask[b][j])
            terms[b][j] = plain_value(log_probs.value[b][j] - reference.value[b][j] +
                                          (b == row && j == column ? step : 0),
                                      kind.estimator);
      return test::aggregate_matrix(terms, log_probs.mask, mode);
    };
    EXPECT_NEAR(loss.value, value_with(0, 0, 0), 1e-9);
    for (std::size_t b = 0; b < data.sequences(); ++b)
      for (std::int64_t t = data.offsets[b]; t < data.offsets[b + 1]; ++t) {
        const auto j = static_cast<std::size_t>(t - data.offsets[b]);
        const double slope = data.mask[static_cast<std::size_t>(t)] == 0
                                 ? 0
                                 : (value_with(b, j, 1e-6) - value_with(b, j, -1e-6)) / 2e-6;
        EXPECT_NEAR(loss.gradient[static_cast<std::size_t>(t)], slope, 1e-6 * (1 + std::abs(slope)));
      }
  }
}

TEST(Kl, InRewardTakesAwayBetaTimesKlAndReportsTheSequenceMean) {
  Rng rng(4);
  const Case data = test::random_case(rng);
  const auto penalty = kl_in_reward(data.view(), data.column("rewards"), data.column("log_probs"),
                                    data.column("reference"), {.estimator = KlEstimator::kK1}, 0.25)
                           .value();
  double sum = 0;
  double rows = 0;
  for (std::size_t s = 0; s < data.sequences(); ++s) {
    double row = 0;
    double length = 0;
    for (auto t = static_cast<std::size_t>(data.offsets[s]);
         t < static_cast<std::size_t>(data.offsets[s + 1]); ++t) {
      if (data.mask[t] == 0) {
        EXPECT_EQ(penalty.rewards[t], 0);
        continue;
      }
      const double d = double{data.column("log_probs")[t]} - data.column("reference")[t];
      EXPECT_NEAR(penalty.rewards[t], data.column("rewards")[t] - 0.25 * d, 1e-6);
      row += d;
      length += 1;
    }
    if (length > 0) {
      sum += row / length;
      rows += 1;
    }
  }
  EXPECT_NEAR(penalty.kl.sum, sum, 1e-9);
  EXPECT_EQ(penalty.kl.weight, rows);
}

TEST(Kl, BadInputIsNamed) {
  Rng rng(5);
  const Case data = test::random_case(rng, {.masked = 0, .all_masked = 0});
  std::vector<float> bad = data.column("reference");
  bad[0] = NAN;
  EXPECT_THAT(kl_loss(data.view(), data.column("log_probs"), bad, {}, LossAggregation::kTokenMean,
                      data.normaliser())
                  .error()
                  .message,
              ::testing::HasSubstr("reference_log_probs: sequence"));
  EXPECT_EQ(kl_in_reward(data.view(), data.column("rewards"), data.column("log_probs"),
                         data.column("reference"), {}, -1)
                .error()
                .code,
            ErrorCode::kConfig);
}

TEST(KlController, FixedNeverMoves) {
  KlController controller{.beta = 0.05};
  controller.update(100, 1000);
  EXPECT_EQ(controller, (KlController{.beta = 0.05}));
}

TEST(KlController, AdaptiveMovesTowardsItsTarget) {
  KlController controller{.beta = 0.1, .adaptive = true, .target = 0.5, .horizon = 1000};
  controller.update(0.55, 100);  // 10 % above: β grows by 10 % · 100/1000
  EXPECT_NEAR(controller.beta, 0.1 * 1.01, 1e-12);
  controller.update(50, 100);  // far above: held at 20 %
  EXPECT_NEAR(controller.beta, 0.1 * 1.01 * 1.02, 1e-12);
  controller.update(0, 100);
  EXPECT_NEAR(controller.beta, 0.1 * 1.01 * 1.02 * 0.98, 1e-12);
  const double before = controller.beta;
  controller.update(NAN, 100);
  controller.update(3, 0);
  EXPECT_EQ(controller.beta, before);
  controller.update(0, 1'000'000);
  EXPECT_EQ(controller.beta, 0) << "never negative";
}

TEST(KlController, RefusesNonsense) {
  EXPECT_TRUE(KlController{}.check().has_value());
  for (const KlController& bad :
       {KlController{.beta = -1}, KlController{.beta = NAN}, KlController{.target = 0},
        KlController{.horizon = -5}})
    EXPECT_EQ(bad.check().error().code, ErrorCode::kConfig);
}

}  // namespace
}  // namespace troupe::actors

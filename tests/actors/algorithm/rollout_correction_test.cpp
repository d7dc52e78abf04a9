// Proves the correction of off-policy data: weights and masks against formulas written out row by
// row in double, identity where the policies are equal, independence of split and order, and the
// names and keys that configure it. Diagnostics are recomputed from the tokens.
#include "actors/algorithm/rollout_correction.hpp"

#include "actors/algorithm/ratio_metrics.hpp"
#include "runtime/wire/wire.hpp"
#include "tests/actors/algorithm/loss_reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace troupe::actors {
namespace {

using Criterion = RejectionCriterion;
using Level = RolloutWeightLevel;
using test::Case;
using ::testing::HasSubstr;

CorrectionInput input_of(const Case& data) {
  return {.tokens = data.view(),
          .log_probs = data.column("old"),
          .rollout_log_probs = data.column("rollout"),
          .advantages = data.column("advantages")};
}

/// A correction with everything on, or parts of it by the bits of `trial`.
CorrectionOptions some_options(int trial) {
  CorrectionOptions options;
  if (trial % 4 != 0) {
    options.weight_level = static_cast<Level>(trial % 3);
    options.weight_high = 1.3;
    options.mask_outside = trial % 5 == 0;
    if (options.mask_outside) options.weight_low = 0.8;
    options.normalise = trial % 7 == 0;
  }
  const auto criterion = static_cast<Criterion>(trial % 11);
  const bool is_ratio = rejection_criterion_name(criterion).ends_with("k1");
  options.rejections.push_back(
      {.criterion = criterion, .low = is_ratio ? 0.8 : 0, .high = is_ratio ? 1.25 : 0.05});
  if (trial % 2 == 1) options.veto_least = 0.6;
  if (trial % 3 == 1) options.negative_kl_max = 0.02;
  if (trial % 3 == 2) options.second_moment_max = 0.05;
  return options;
}

/// What the header says, without a thought for cost. δ [S][n].
struct Slow {
  test::Matrix delta;
  std::vector<std::vector<bool>> mask;
  test::MaskedMatrix advantages;

  explicit Slow(const Case& data) : advantages(test::unpack(data, data.column("advantages"))) {
    const auto a = test::unpack(data, data.column("old"));
    const auto b = test::unpack(data, data.column("rollout"));
    mask = a.mask;
    delta = test::zeros_like(a);
    for (std::size_t s = 0; s < delta.size(); ++s)
      for (std::size_t j = 0; j < delta[s].size(); ++j)
        if (mask[s][j]) delta[s][j] = test::clip(a.value[s][j] - b.value[s][j], -20, 20);
  }

  double mean(std::size_t s, const std::function<double(double)>& f) const {
    return test::row_mean(mask[s], [&](std::size_t j) { return f(delta[s][j]); });
  }
  double length(std::size_t s) const {
    return static_cast<double>(std::count(mask[s].begin(), mask[s].end(), true));
  }
  double largest(std::size_t s, const std::function<double(double)>& f) const {
    double found = 0;
    for (std::size_t j = 0; j < mask[s].size(); ++j)
      if (mask[s][j]) found = std::max(found, f(delta[s][j]));
    return found;
  }

  bool passes(const Rejection& r, std::size_t s, std::size_t j) const {
    const std::string name(rejection_criterion_name(r.criterion));
    const auto k1 = [](double d) { return d; };
    const auto k2 = [](double d) { return d * d / 2; };
    const auto k3 = [](double d) { return std::exp(d) - 1 - d; };
    const std::function<double(double)> k =
        name.ends_with("k1") ? std::function<double(double)>(k1)
                             : (name.ends_with("k2") ? std::function<double(double)>(k2) : k3);
    double value = 0;
    if (name.starts_with("token")) value = k(delta[s][j]);
    if (name.starts_with("seq_mean")) value = mean(s, k);
    if (name.starts_with("seq_sum")) value = mean(s, k) * length(s);
    if (name.starts_with("seq_max")) value = largest(s, k);
    if (!name.ends_with("k1")) return value <= r.high;
    return std::exp(value) <= r.high && std::exp(value) >= r.low;
  }

  /// Largest δ² that M2PO keeps, found by trying every value.
  double moment_bound(double moment_max) const {
    std::vector<double> squares;
    for (std::size_t s = 0; s < mask.size(); ++s)
      for (std::size_t j = 0; j < mask[s].size(); ++j)
        if (mask[s][j]) squares.push_back(delta[s][j] * delta[s][j]);
    double best = -1;
    for (const double bound : squares) {
      double sum = 0;
      double count = 0;
      for (const double square : squares)
        if (square <= bound) {
          sum += square;
          count += 1;
        }
      if (sum / count <= moment_max) best = std::max(best, bound);
    }
    return best;
  }

  bool kept(const CorrectionOptions& o, std::size_t s, std::size_t j, double bound) const {
    for (const Rejection& r : o.rejections)
      if (!passes(r, s, j)) return false;
    if (o.veto_least && largest(s, [](double d) { return -d; }) > -std::log(*o.veto_least))
      return false;
    if (o.negative_kl_max && advantages.value[s][j] < 0 &&
        mean(s, [](double d) { return -d; }) > *o.negative_kl_max)
      return false;
    return !o.second_moment_max || delta[s][j] * delta[s][j] <= bound;
  }

  double importance(const CorrectionOptions& o, std::size_t s, std::size_t j) const {
    if (!o.weight_level) return 1;
    double x = delta[s][j];
    if (*o.weight_level != Level::kToken) x = mean(s, [](double d) { return d; });
    if (*o.weight_level == Level::kSequence) x = test::clip(x * length(s), -20, 20);
    const double weight = std::exp(x);
    if (o.mask_outside && (weight > o.weight_high || weight < o.weight_low)) return 0;
    return std::min(weight, o.weight_high);
  }

  test::Matrix weights(const CorrectionOptions& o) const {
    double sum = 0;
    double count = 0;
    const bool by_token = o.weight_level == Level::kToken;
    for (std::size_t s = 0; s < mask.size(); ++s)
      for (std::size_t j = 0; j < mask[s].size(); ++j)
        if (mask[s][j]) {
          sum += importance(o, s, j) / (by_token ? 1 : length(s));
          count += 1 / (by_token ? 1 : length(s));
        }
    const double scale = o.normalise && sum > 0 ? count / sum : 1;
    const double bound = o.second_moment_max ? moment_bound(*o.second_moment_max) : 0;
    test::Matrix found = delta;
    for (std::size_t s = 0; s < mask.size(); ++s)
      for (std::size_t j = 0; j < mask[s].size(); ++j)
        found[s][j] = mask[s][j] && kept(o, s, j, bound) ? scale * importance(o, s, j) : 0;
    return found;
  }
};

TEST(RolloutCorrection, WeightsAreThoseOfTheFormulas) {
  std::size_t dropped = 0;
  std::size_t left = 0;
  for (int trial = 0; trial < 220; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng);
    const CorrectionOptions options = some_options(trial);
    const CorrectionOutput found = rollout_correction(input_of(data), options).value();
    const std::vector<double> expected = test::repack(data, Slow(data).weights(options));
    for (std::size_t t = 0; t < data.tokens(); ++t) {
      ASSERT_NEAR(found.weights[t], expected[t], 1e-6 * (1 + expected[t])) << "token " << t;
      dropped += data.mask[t] != 0 && expected[t] == 0 ? 1 : 0;
      left += expected[t] != 0 ? 1 : 0;
    }
  }
  EXPECT_GT(dropped, 500U);
  EXPECT_GT(left, 500U);
}

TEST(RolloutCorrection, EqualPoliciesGiveOnesAndTheSameLossBits) {
  // All options of every preset, and random ones, on data whose policies are equal.
  std::vector<CorrectionOptions> all;
  const CorrectionRegistry presets = default_corrections();
  for (const std::string& name : presets.names()) all.push_back(presets.find(name)->options);
  for (int trial = 0; trial < 40; ++trial) all.push_back(some_options(trial));
  Rng rng(3);
  Case data = test::random_case(rng, {.sequences = 12});
  data.column("rollout") = data.column("old");
  for (const CorrectionOptions& options : all) {
    const CorrectionOutput found = rollout_correction(input_of(data), options).value();
    for (std::size_t t = 0; t < data.tokens(); ++t)
      ASSERT_EQ(found.weights[t], data.mask[t] != 0 ? 1.0F : 0.0F);
    EXPECT_EQ(*found.metrics.mean("rollout_corr/masked_fraction"), 0);
    EXPECT_EQ(*found.metrics.mean("rollout_corr/weight_mean"), 1);
    for (const char* name : {"vanilla", "gspo", "cispo"}) {
      const PolicyLoss loss = default_policy_losses().find(name).value();
      PolicyLossInput input = test::loss_input(data);
      const PolicyLossOutput plain = loss.apply(input, {}).value();
      input.rollout_weights = found.weights;
      const PolicyLossOutput weighted = loss.apply(input, {}).value();
      EXPECT_EQ(weighted.loss, plain.loss) << name;
      EXPECT_EQ(weighted.gradient, plain.gradient) << name;
    }
  }
}

TEST(RolloutCorrection, RowsGoTheirOwnWayUnlessTheWholeBatchIsNeeded) {
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << trial);
    Rng rng(static_cast<std::uint64_t>(trial));
    const Case data = test::random_case(rng, {.sequences = 12});
    const CorrectionOptions options = some_options(trial);
    const CorrectionOutput whole = rollout_correction(input_of(data), options).value();
    // A permutation changes nothing for any options; parts only for those that need the whole.
    const std::size_t parts = options.needs_whole_batch() ? 1 : 1 + rng.below(5);
    WeightedSums sums;
    for (const auto& rows : test::random_split(data.sequences(), parts, rng)) {
      const Case part = test::take(data, rows);
      const CorrectionOutput own = rollout_correction(input_of(part), options).value();
      const std::vector<std::size_t> tokens = test::tokens_of(data, rows);
      for (std::size_t t = 0; t < tokens.size(); ++t)
        ASSERT_FLOAT_EQ(own.weights[t], whole.weights[tokens[t]]);
      sums.merge(own.metrics);
    }
    for (const auto& [name, entry] : whole.metrics.entries())
      EXPECT_NEAR(*sums.mean(name), *whole.metrics.mean(name), 1e-9) << name;
  }
}

TEST(RolloutCorrection, MetricsOfPartsAreThoseOfTheWholeAndOfTheTokens) {
  Rng rng(11);
  const Case data = test::random_case(rng, {.sequences = 60, .log_ratio = 1});
  CorrectionOptions options;
  options.weight_level = Level::kToken;
  options.rejections = {{.criterion = Criterion::kSeqMaxK2, .high = 0.2}};
  const auto metrics_of = [&](std::size_t parts) {
    runtime::Metrics all;
    for (const auto& rows : test::random_split(data.sequences(), parts, rng)) {
      const Case part = test::take(data, rows);
      runtime::Metrics own;
      const auto output = rollout_correction(input_of(part), options).value();
      EXPECT_TRUE(add_correction_metrics(input_of(part), output, own).has_value());
      EXPECT_TRUE(all.merge(own).has_value());
    }
    finish_ratio_metrics("rollout_corr", all);
    return all;
  };
  const runtime::Metrics whole = metrics_of(1);
  const runtime::Metrics merged = metrics_of(7);
  EXPECT_EQ(merged.size(), whole.size());
  for (const auto& [name, entry] : whole)
    EXPECT_NEAR(*merged.value(name), *entry.value(), 1e-9 * (1 + std::abs(*entry.value()))) << name;

  const Slow slow(data);
  std::vector<double> ratios;
  double kl = 0;
  double k3 = 0;
  double none = 0;
  double weights = 0;
  double squares = 0;
  const test::Matrix expected = slow.weights(options);
  for (std::size_t s = 0; s < slow.mask.size(); ++s)
    for (std::size_t j = 0; j < slow.mask[s].size(); ++j) {
      if (!slow.mask[s][j]) continue;
      ratios.push_back(std::exp(slow.delta[s][j]));
      kl -= slow.delta[s][j];
      k3 += ratios.back() - 1 - slow.delta[s][j];
      none += expected[s][j] == 0 ? 1 : 0;
      weights += expected[s][j];
      squares += expected[s][j] * expected[s][j];
    }
  std::sort(ratios.begin(), ratios.end());
  const auto n = static_cast<double>(ratios.size());
  const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
  const double sum_squares = std::inner_product(ratios.begin(), ratios.end(), ratios.begin(), 0.0);
  const auto value = [&](const char* name) {
    return *whole.value(std::string("rollout_corr/") + name);
  };
  EXPECT_NEAR(value("ratio"), sum / n, 1e-9);
  EXPECT_NEAR(value("ratio_max"), ratios.back(), 1e-9) << "of raw ratios, whatever is rejected";
  EXPECT_NEAR(value("ratio_min"), ratios.front(), 1e-9);
  EXPECT_NEAR(value("ratio_ess"), sum * sum / (n * sum_squares), 1e-9);
  EXPECT_NEAR(value("kl"), kl / n, 1e-9);
  EXPECT_NEAR(value("k3_kl"), k3 / n, 1e-9);
  EXPECT_NEAR(value("masked_fraction"), none / n, 1e-12);
  EXPECT_NEAR(value("masked_fraction/seq_max_k2"), none / n, 1e-12);
  EXPECT_NEAR(value("ess"), weights * weights / (n * squares), 1e-6);
  const double p95 = ratios[static_cast<std::size_t>(0.95 * (n - 1))];
  EXPECT_NEAR(value("ratio_p95"), p95, 0.06 * p95);
}

TEST(RolloutCorrection, ExtremesAreFiniteAndBadTokensAreNamed) {
  Case data;
  data.offsets = {0, 60, 62, 64, 64};
  data.mask.assign(64, 1);
  data.mask[62] = data.mask[63] = 0;  // a sequence without a token of the policy
  data.groups = data.ids = {0, 1, 2, 3};
  data.columns["old"].assign(64, -0.1F);
  data.columns["rollout"].assign(64, -9.0F);
  data.columns["advantages"].assign(64, -1.0F);
  for (std::size_t t = 62; t < 64; ++t) data.column("old")[t] = data.column("rollout")[t] = NAN;
  data.column("old")[0] = -INFINITY;
  data.column("rollout")[60] = -INFINITY;
  for (const std::string& name : default_corrections().names()) {
    const CorrectionOptions options = default_corrections().find(name)->options;
    const auto found = rollout_correction(input_of(data), options).value();
    for (const float weight : found.weights) EXPECT_TRUE(std::isfinite(weight)) << name;
    EXPECT_EQ(found.weights[62], 0);
    for (const auto& [metric, entry] : found.metrics.entries())
      EXPECT_TRUE(std::isfinite(entry.sum)) << metric;
    runtime::Metrics metrics;
    ASSERT_TRUE(add_correction_metrics(input_of(data), found, metrics).has_value());
    finish_ratio_metrics("rollout_corr", metrics);
    for (const auto& [metric, entry] : metrics)
      EXPECT_TRUE(std::isfinite(*entry.value())) << metric;
  }
  data.column("rollout")[61] = NAN;
  const auto refused = rollout_correction(input_of(data), {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("rollout_log_probs: sequence 1 token 1 is nan"));
  runtime::Metrics metrics;
  EXPECT_THAT(
      add_ratio_metrics(data.view(), data.column("old"), data.column("rollout"), "x", metrics)
          .error()
          .message,
      HasSubstr("sequence 1 token 1"));
  CorrectionInput without = input_of(data);
  without.advantages = {};
  data.column("rollout")[61] = -1;
  EXPECT_THAT(rollout_correction(without, {.negative_kl_max = 0.1}).error().message,
              HasSubstr("advantages"));
}

TEST(RolloutCorrection, NothingToTrainOnIsNoWeightAndNoMetric) {
  Rng rng(5);
  const Case masked = test::random_case(rng, {.all_masked = 1});
  const Case empty = test::take(masked, {});
  for (const Case* data : {&masked, &empty})
    for (int trial = 0; trial < 22; ++trial) {
      const auto found = rollout_correction(input_of(*data), some_options(trial)).value();
      EXPECT_THAT(found.weights, ::testing::Each(0.0F));
      EXPECT_FALSE(found.metrics.mean("rollout_corr/weight_mean").has_value());
      runtime::Metrics metrics;
      ASSERT_TRUE(add_correction_metrics(input_of(*data), found, metrics).has_value());
      finish_ratio_metrics("rollout_corr", metrics);
      EXPECT_TRUE(metrics.empty());
    }
}

/// One sequence a row; δ of its tokens, advantages ±1.
Case rows_of(const std::vector<std::vector<float>>& deltas, const std::vector<float>& advantages) {
  Case data;
  for (std::size_t s = 0; s < deltas.size(); ++s) {
    for (const float delta : deltas[s]) {
      data.columns["old"].push_back(-3.0F + delta);
      data.columns["rollout"].push_back(-3.0F);
      data.columns["advantages"].push_back(advantages[s]);
      data.mask.push_back(1);
    }
    data.offsets.push_back(static_cast<std::int64_t>(data.mask.size()));
    data.groups.push_back(0);
    data.ids.push_back(static_cast<std::int64_t>(s));
  }
  return data;
}

std::vector<float> weights_of(const Case& data, const CorrectionOptions& options) {
  return rollout_correction(input_of(data), options).value().weights;
}

TEST(RolloutCorrection, EachRejectionDropsWhatItSays) {
  using ::testing::ElementsAre;
  const Case data = rows_of({{0, -1}, {0, -1}, {0.5F, 0.5F}}, {1, -1, -1});
  EXPECT_THAT(weights_of(data, {.negative_kl_max = 0.3}), ElementsAre(1, 1, 0, 0, 1, 1));
  EXPECT_THAT(weights_of(data, {.veto_least = 0.5}), ElementsAre(0, 0, 0, 0, 1, 1));
  // Squares 0 0 1 1 .25 .25: with both of 1 the mean is .42, without them .125.
  EXPECT_THAT(weights_of(data, {.second_moment_max = 0.2}), ElementsAre(1, 0, 1, 0, 1, 1));
  EXPECT_THAT(weights_of(data, {.second_moment_max = 0.41}), ElementsAre(1, 0, 1, 0, 1, 1))
      << "equal distances go together";
  EXPECT_THAT(weights_of(data, {.second_moment_max = 0.42}), ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(weights_of(rows_of({{2, 2}}, {1}), {.second_moment_max = 0.1}), ElementsAre(0, 0));
  const auto by = [](Criterion criterion, double low, double high) {
    return CorrectionOptions{.rejections = {{.criterion = criterion, .low = low, .high = high}}};
  };
  EXPECT_THAT(weights_of(data, by(Criterion::kTokenK1, 0.5, 2)), ElementsAre(1, 0, 1, 0, 1, 1));
  EXPECT_THAT(weights_of(data, by(Criterion::kSeqSumK1, 0.5, 2)), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(weights_of(data, by(Criterion::kSeqMeanK1, 0.5, 2)), ElementsAre(1, 1, 1, 1, 1, 1));
}

TEST(RolloutCorrection, ALossCorrectedInsideUsesTheCurrentPolicy) {
  Rng rng(9);
  const Case data = test::random_case(rng, {.sequences = 12});
  CorrectionOptions options = some_options(1);
  options.second_moment_max = {};
  const PolicyLoss vanilla = default_policy_losses().find("vanilla").value();
  const PolicyLoss inside = corrected_loss(vanilla, options).value();
  EXPECT_TRUE(inside.reads_rollout);
  PolicyLossInput input = test::loss_input(data, true);
  input.rollout_log_probs = data.column("rollout");
  const PolicyLossOutput found = inside.apply(input, {}).value();
  CorrectionInput outside = input_of(data);
  outside.log_probs = data.column("log_probs");
  std::vector<float> weights = rollout_correction(outside, options).value().weights;
  for (std::size_t t = 0; t < weights.size(); ++t) weights[t] *= data.column("weights")[t];
  input.rollout_weights = weights;
  const PolicyLossOutput expected = vanilla.apply(input, {}).value();
  EXPECT_EQ(found.loss, expected.loss);
  EXPECT_EQ(found.gradient, expected.gradient);
  EXPECT_TRUE(found.metrics.mean("rollout_corr/masked_fraction").has_value());
  EXPECT_FALSE(corrected_loss(vanilla, {}).value().reads_rollout);
  EXPECT_THAT(corrected_loss(vanilla, {.second_moment_max = 1}).error().message,
              HasSubstr("whole batch"));
}

TEST(RolloutCorrection, RefusesOptionsThatAreWrongOrUnused) {
  const auto message_of = [](const CorrectionOptions& options) {
    const auto checked = options.check();
    return checked.has_value() ? std::string("no error") : checked.error().message;
  };
  EXPECT_THAT(message_of({.normalise = true}), HasSubstr("batch_normalize"));
  EXPECT_THAT(message_of({.mask_outside = true}), HasSubstr("rollout_is_threshold"));
  EXPECT_THAT(message_of({.weight_level = Level::kToken, .weight_low = 0.5}), HasSubstr("low"));
  EXPECT_THAT(message_of({.weight_level = Level::kToken, .weight_high = 0.5}), HasSubstr("0.5"));
  EXPECT_THAT(message_of({.weight_level = Level::kToken, .weight_low = 1.5, .mask_outside = true}),
              HasSubstr("1.5"));
  EXPECT_THAT(message_of({.veto_least = 1}), HasSubstr("veto"));
  EXPECT_THAT(message_of({.veto_least = 1e-12}), HasSubstr("veto"));
  EXPECT_THAT(message_of({.negative_kl_max = NAN}), HasSubstr("opsm_delta"));
  EXPECT_THAT(message_of({.second_moment_max = 0}), HasSubstr("m2_threshold"));
  EXPECT_THAT(
      message_of({.rejections = {{.criterion = Criterion::kTokenK2, .low = 0.1, .high = 1}}}),
      HasSubstr("token_k2"));
  EXPECT_THAT(message_of({.rejections = {{.criterion = Criterion::kTokenK1, .high = 0.5}}}),
              HasSubstr("token_k1"));
}

TEST(CorrectionKeys, ReadWhatUsersOfVerlWrite) {
  const CorrectionOptions icepop =
      correction_from_keys({.rollout_is = "token", .rollout_is_threshold = "0.5_5.0"}).value();
  EXPECT_EQ(icepop, default_corrections().find("icepop")->options);
  EXPECT_EQ(correction_from_keys({.rollout_is = "token"}).value(),
            default_corrections().find("decoupled_token_is")->options);
  EXPECT_EQ(
      correction_from_keys(
          {.rollout_is = "sequence", .rollout_rs = "seq_sum_k1", .rollout_rs_threshold = "0.5_2.0"})
          .value(),
      default_corrections().find("decoupled_seq_is_rs")->options);
  EXPECT_EQ(correction_from_keys({}).value(), CorrectionOptions{});
  const CorrectionOptions two = correction_from_keys({.rollout_rs = "token_k1, seq_max_k3",
                                                      .rollout_rs_threshold = "2.0,0.25",
                                                      .rollout_token_veto_threshold = 1e-4,
                                                      .bypass_mode = true})
                                    .value();
  EXPECT_EQ(two.rejections,
            (std::vector<Rejection>{{.criterion = Criterion::kTokenK1, .low = 0.5, .high = 2},
                                    {.criterion = Criterion::kSeqMaxK3, .high = 0.25}}));
  EXPECT_EQ(two.proximal, ProximalSource::kRollout);
  EXPECT_EQ(two.veto_least, 1e-4);
}

TEST(CorrectionKeys, NameTheKeyThatIsWrong) {
  const auto message_of = [](const CorrectionKeys& keys) {
    const auto found = correction_from_keys(keys);
    return found.has_value() ? std::string("no error") : found.error().message;
  };
  EXPECT_THAT(message_of({.rollout_is = "tokens"}), HasSubstr("rollout_is: unknown 'tokens'"));
  EXPECT_THAT(message_of({.rollout_is = "token", .rollout_is_threshold = "2,0"}),
              HasSubstr("rollout_is_threshold: '2,0'"));
  EXPECT_THAT(message_of({.rollout_rs = "token_k4", .rollout_rs_threshold = "1"}),
              HasSubstr("seq_max_k3"));
  EXPECT_THAT(message_of({.rollout_rs = "token_k1,token_k2", .rollout_rs_threshold = "2"}),
              HasSubstr("1 bounds for 2"));
  EXPECT_THAT(message_of({.rollout_rs = "token_k1"}), HasSubstr("0 bounds for 1"));
  EXPECT_THAT(message_of({.rollout_rs_threshold = "2"}), HasSubstr("rollout_rs is not"));
  EXPECT_THAT(message_of({.rollout_rs = "token_k2", .rollout_rs_threshold = "0.5_2"}),
              HasSubstr("token_k2"));
  EXPECT_THAT(message_of({.rollout_is_batch_normalize = true}), HasSubstr("batch_normalize"));
}

TEST(CorrectionPresets, AreAllLegalAndNameLossesThatExist) {
  const CorrectionRegistry presets = default_corrections();
  const PolicyLossRegistry losses = default_policy_losses();
  for (const std::string& name : presets.names()) {
    const CorrectionPreset preset = presets.find(name).value();
    EXPECT_TRUE(preset.options.check().has_value()) << name;
    const auto loss = losses.find(preset.policy_loss);
    ASSERT_TRUE(loss.has_value()) << name;
    if (preset.on_current) {
      EXPECT_TRUE(corrected_loss(*loss, preset.options).has_value()) << name;
    } else if (preset.options.proximal == ProximalSource::kRollout) {
      EXPECT_FALSE(preset.options.changes_weights())
          << name << ": stage 1 would compare the rollout with itself";
    }
  }
  EXPECT_THAT(presets.find("ice_pop").error().message, HasSubstr("did you mean 'icepop'"));
}

TEST(CorrectionOptions, TravelByWire) {
  const CorrectionOptions options{.proximal = ProximalSource::kLogLinear,
                                  .weight_level = Level::kGeometric,
                                  .weight_low = 0.25,
                                  .weight_high = 3,
                                  .mask_outside = true,
                                  .normalise = true,
                                  .rejections = {{.criterion = Criterion::kSeqMaxK2, .high = 7}},
                                  .veto_least = 1e-5,
                                  .negative_kl_max = 0.5,
                                  .second_moment_max = 0.1};
  const auto bytes = runtime::encode_value(options).value();
  EXPECT_EQ(runtime::decode_value<CorrectionOptions>(bytes).value(), options);
}

}  // namespace
}  // namespace troupe::actors

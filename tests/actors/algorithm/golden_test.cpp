// Proves agreement with verl's own formulas, where we agree with them, on one fixed batch.
// golden.json is written by golden.py beside it; see its head for the recipe.
#include "actors/algorithm/advantage.hpp"
#include "actors/algorithm/correction.hpp"
#include "actors/algorithm/kl.hpp"
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/reward_shaping.hpp"
#include "actors/algorithm/value_loss.hpp"

#include "tests/actors/algorithm/case.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace troupe::actors {
namespace {

using nlohmann::json;
using test::Case;

class Golden : public ::testing::Test {
 protected:
  Golden() {
    std::ifstream file(TROUPE_SOURCE_DIR "/tests/actors/algorithm/golden.json");
    golden_ = json::parse(file);
    const json& batch = golden_.at("batch");
    const json& mask = batch.at("mask");
    for (std::size_t b = 0; b < mask.size(); ++b) {
      for (std::size_t t = 0; t < mask[b].size(); ++t) {
        data_.mask.push_back(mask[b][t].get<std::uint8_t>());
        for (const auto& [name, rows] : batch.items())
          if (rows[0].is_array() && name != "mask")
            data_.columns[name].push_back(data_.mask.back() != 0 ? rows[b][t].get<float>()
                                                                 : test::kGarbage);
      }
      data_.offsets.push_back(static_cast<std::int64_t>(data_.mask.size()));
      data_.groups.push_back(batch.at("uids")[b].get<std::int64_t>());
      data_.ids.push_back(static_cast<std::int64_t>(b));
    }
    baselines_ = batch.at("baselines").get<std::vector<float>>();
    data_.columns["weights"].assign(data_.tokens(), 1.0F);
  }

  /// Compares a packed result with a table of the golden file, which is 0 where masked.
  void expect_table(const std::vector<float>& found, const json& expected, const std::string& what) {
    std::size_t t = 0;
    ASSERT_EQ(found.size(), data_.tokens());
    for (const json& row : expected)
      for (const json& value : row) {
        EXPECT_NEAR(found[t], value.get<double>(), 3e-6 * (1 + std::abs(value.get<double>())))
            << what << " token " << t;
        ++t;
      }
  }

  json golden_;
  Case data_;
  std::vector<float> baselines_;
};

TEST_F(Golden, Advantages) {
  for (const auto& [name, expected] : golden_.at("advantages").items()) {
    const bool returns = name == "gae_returns";
    AdvantageOptions options;
    if (name.starts_with("gae")) options = {.gamma = 0.97, .lambda = 0.9};
    if (name == "reinforce_plus_plus") options = {.gamma = 0.95};
    const AdvantageInput input{.tokens = data_.view(),
                               .rewards = data_.column("rewards"),
                               .values = data_.column("values"),
                               .baselines = baselines_};
    const auto estimator = default_advantages().find(returns ? "gae" : name).value();
    const AdvantageOutput output = estimator(input, options).value();
    expect_table(returns ? output.returns : output.advantages, expected, name);
  }
}

TEST_F(Golden, PolicyLosses) {
  for (const auto& [name, by_mode] : golden_.at("losses").items()) {
    const PolicyLoss loss = default_policy_losses().find(name).value();
    for (const auto& [mode, expected] : by_mode.items()) {
      PolicyLossOptions options{.aggregation = loss_aggregation_from_name(mode).value(),
                                .clip_high = 0.28,
                                .kl_cov_ratio = 0.1,
                                .kl_cov_coefficient = 0.5};
      PolicyLossInput input = test::loss_input(data_);
      TokenSelection selection;
      if (loss.selects_tokens()) {
        selection = loss.select(loss.collect(input, options).value(), options).value();
        input.selection = &selection;
      }
      const double found = loss.apply(input, options).value().loss;
      EXPECT_NEAR(found, expected.get<double>(), 3e-6 * (1 + std::abs(found))) << name << " " << mode;
    }
  }
}

TEST_F(Golden, Kl) {
  for (const auto& [name, expected] : golden_.at("kl").items()) {
    const KlKind kind = kl_kind_from_name(name).value();
    std::vector<float> found(data_.tokens(), 0.0F);
    for (std::size_t t = 0; t < found.size(); ++t)
      if (data_.mask[t] != 0)
        found[t] = static_cast<float>(
            kl_term(data_.column("log_probs")[t], data_.column("reference")[t], kind).value);
    expect_table(found, expected, name);
  }
}

TEST_F(Golden, ValueLossWeightsControllerAndPenalty) {
  const auto value = value_loss({.tokens = data_.view(),
                                 .values = data_.column("values"),
                                 .old_values = data_.column("old_values"),
                                 .returns = data_.column("returns"),
                                 .normaliser = data_.normaliser()},
                                {});
  EXPECT_NEAR(value.value().loss.value, golden_.at("value_loss").get<double>(), 1e-6);
  expect_table(rollout_weights(data_.view(), data_.column("old"), data_.column("rollout"), {})
                   .value()
                   .weights,
               golden_.at("rollout_weights_token"), "rollout weights");
  KlController controller{.adaptive = true};
  const double kls[] = {0.5, 0.12, 0.02, 0.1};
  for (std::size_t i = 0; i < 4; ++i) {
    controller.update(kls[i], 1024);
    EXPECT_NEAR(controller.beta, golden_.at("adaptive_controller")[i].get<double>(), 1e-12);
  }
  const OverlongOptions overlong{.response_tokens_max = 100, .buffer_tokens = 20, .factor = 1.5};
  for (const json& entry : golden_.at("overlong"))
    EXPECT_NEAR(overlong_penalty(entry[0].get<std::int64_t>(), overlong), entry[1].get<double>(),
                1e-12);
}

}  // namespace
}  // namespace troupe::actors

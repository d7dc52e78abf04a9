// Proves the test oracle itself: the double-precision reference decoder gives the logits of Hugging
// Face transformers (golden files made by make_fixtures.py) for tiny models of every family, loaded
// from folders that transformers wrote, and for stories260K. Also causality and cache-free laws.

#include "tests/support/reference_model.hpp"

#include "actors/model/hf_folder.hpp"
#include "tests/support/test_files.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using nlohmann::json;
using troupe::testing::ReferenceModel;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

fs::path fixtures() { return fs::path(TROUPE_SOURCE_DIR) / "tests/actors/model/fixtures"; }

class GoldenModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenModel, GivesTheLogitsOfTransformers) {
  const fs::path folder = fixtures() / GetParam();
  const auto config = ModelConfig::load(folder);
  ASSERT_TRUE(config) << config.error().message;
  const auto weights = load_hf_weights(folder, *config);
  ASSERT_TRUE(weights) << weights.error().message;
  const json golden = json::parse(troupe::testing::read_file(folder / "golden.json"));
  EXPECT_EQ(config->parameter_count(), golden.at("parameters"));
  const ReferenceModel model(*config, weights->tensors());
  const auto logits = model.logits(golden.at("ids").get<Ids>());
  for (std::size_t i = 0; i < golden.at("rows").size(); ++i) {
    const auto row = logits.row(golden.at("rows")[i]);
    const auto wanted = golden.at("logits")[i].get<std::vector<double>>();
    ASSERT_EQ(row.size(), wanted.size());
    // transformers computes its angles in fp32 whatever the weights are.
    for (std::size_t v = 0; v < row.size(); ++v)
      EXPECT_NEAR(row[v], wanted[v], 2e-5) << "row " << i;
  }
}

TEST_P(GoldenModel, DoesNotLookAhead) {
  const fs::path folder = fixtures() / GetParam();
  const auto config = ModelConfig::load(folder);
  ASSERT_TRUE(config);
  const auto weights = load_hf_weights(folder, *config);
  ASSERT_TRUE(weights);
  const ReferenceModel model(*config, weights->tensors());
  const Ids whole = {3, 1, 4, 1, 5, 9};
  const auto long_logits = model.logits(whole);
  const auto short_logits = model.logits(std::span(whole).first(3));
  EXPECT_TRUE(std::ranges::equal(short_logits.row(2), long_logits.row(2)));
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenModel,
                         ::testing::Values("llama_biases", "llama3_scaling", "llama_linear",
                                           "qwen2_sharded", "qwen3_bf16", "qwen3_biases"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ReferenceModel, TellsTheStoryThatTransformersTells) {
  const fs::path folder = troupe::testing::stories_folder();
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there";
  const auto config = ModelConfig::load(folder);
  ASSERT_TRUE(config);
  const auto weights = load_hf_weights(folder, *config);
  ASSERT_TRUE(weights);
  const ReferenceModel model(*config, weights->tensors());
  const json golden = json::parse(troupe::testing::read_file(fixtures() / "stories260K.json"));
  const auto ids = golden.at("ids").get<Ids>();
  const auto log_probs = model.log_probs(ids);
  const auto wanted = golden.at("log_probs").get<std::vector<double>>();
  ASSERT_EQ(log_probs.size(), wanted.size());
  for (std::size_t t = 0; t < wanted.size(); ++t) EXPECT_NEAR(log_probs[t], wanted[t], 1e-5) << t;
  const auto logits = model.logits(ids);
  const auto last = golden.at("last_logits").get<std::vector<double>>();
  for (std::size_t v = 0; v < last.size(); ++v)
    EXPECT_NEAR(logits.row(ids.size() - 1)[v], last[v], 1e-4);
  EXPECT_EQ(model.greedy(std::span(ids).first(1), 40), Ids(ids.begin() + 1, ids.begin() + 41));
}

TEST(ReferenceModel, NormalisesItsLogProbabilities) {
  const std::vector<double> logits = {1000.0, 999.0, -1000.0};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0;
    for (const double value : ReferenceModel::log_softmax(logits, temperature))
      sum += std::exp(value);
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

}  // namespace
}  // namespace troupe::actors

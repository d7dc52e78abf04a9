// Proves the test oracle itself: the double-precision reference decoder gives what Hugging Face
// transformers gives for stories260K (golden file made by make_fixtures.py; tiny models of every
// family are in tests/actors/transformers), and its laws: causality, normalised probabilities.

#include "tests/support/reference_model.hpp"

#include "actors/model/hf_folder.hpp"
#include "tests/support/transformers_case.hpp"

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

TEST(ReferenceModel, DoesNotLookAhead) {
  for (const std::string& name : troupe::testing::transformers_cases()) {
    const auto golden = troupe::testing::load_transformers_case(name);
    const ReferenceModel model(golden.config, golden.weights.tensors());
    const Ids whole = {3, 1, 4, 1, 5, 9};
    const auto long_logits = model.logits(whole);
    const auto short_logits = model.logits(std::span(whole).first(3));
    EXPECT_TRUE(std::ranges::equal(short_logits.row(2), long_logits.row(2))) << name;
  }
}

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

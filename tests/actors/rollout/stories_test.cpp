// The engine against the slow double-precision reference: on random models of every family, and on
// a real one (stories260K, skipped where the shared folder is absent), whose golden text is known.

#include "actors/model/hf_folder.hpp"
#include "actors/text/tokenizer.hpp"
#include "tests/actors/rollout/engine_case.hpp"
#include "tests/support/reference_model.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace troupe::actors {
namespace {

using troupe::testing::ReferenceModel;

/// Every log-prob of `out` within 1e-4 of the reference at `temperature`.
void expect_reference_log_probs(const ReferenceModel& reference, const GenerateRequest& request,
                                const GeneratedSequence& out, double temperature) {
  std::vector<std::int32_t> ids = request.prompt;
  ids.insert(ids.end(), out.tokens.begin(), out.tokens.end());
  const std::vector<double> wanted = reference.log_probs(ids, temperature);
  ASSERT_EQ(out.full_log_probs.size(), out.tokens.size());
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    const double expected = wanted[request.prompt.size() - 1 + i];
    ASSERT_NEAR(out.full_log_probs[i], expected, 1e-4) << "output token " << i;
    ASSERT_NEAR(out.log_probs[i], expected, 1e-4) << "output token " << i;
  }
}

TEST(RolloutEngine, LogProbsMatchTheDoubleReferenceForEveryFamily) {
  for (const ModelConfig& config :
       {tiny_config(), switched_config(ModelFamily::kLlama), switched_config(ModelFamily::kQwen2),
        switched_config(ModelFamily::kQwen3)}) {
    const WeightSet weights = weights_for(config, 5);
    const ReferenceModel reference(config, weights.tensors());
    auto engine =
        engine_for(config, weights, EngineOptions{.max_num_seqs = 3, .max_num_batched_tokens = 11});
    std::vector<GenerateRequest> requests;
    for (const double temperature : {1.0, 0.6, 1.7}) {
      GenerateRequest request;
      request.prompt_id = requests.size();
      request.sample_indices = {0, 1};
      request.prompt = {5, 60, 0, 33, 7, 7, 12, 9, 1, 2, 3, 4, 44, 18, 21, 50, 31, 8};
      request.sampling.temperature = temperature;
      request.sampling.max_new_tokens = 60;
      requests.push_back(request);
    }
    const auto out = generate_all(*engine, requests);
    for (std::size_t i = 0; i < out.size(); ++i)
      expect_reference_log_probs(reference, requests[i / 2], out[i],
                                 requests[i / 2].sampling.temperature);
  }
}

class Stories : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("TROUPE_SHARED");
    const std::filesystem::path root =
        shared != nullptr ? std::filesystem::path(shared)
                          : std::filesystem::path(TROUPE_SOURCE_DIR) / ".." / "shared";
    folder_ = root / "models" / "stories260K";
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << folder_ << " is not there";
    config_ = ModelConfig::load(folder_).value();
    weights_.emplace(load_hf_weights(folder_, config_).value());
  }
  std::filesystem::path folder_;
  ModelConfig config_;
  std::optional<WeightSet> weights_;
};

TEST_F(Stories, TellsItsGoldenTextGreedilyFromBos) {
  auto engine = engine_for(config_, *weights_);
  GenerateRequest request;
  request.prompt = {1};
  request.sampling.temperature = 0.0;
  request.sampling.max_new_tokens = 100;
  const auto out = generate_all(*engine, {request});
  const std::vector<std::int32_t> first = {403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315,
                                           421, 395, 317, 426, 338, 401, 396, 267, 337, 410, 408,
                                           419, 292, 411, 322, 265, 282, 295, 433, 426};
  ASSERT_EQ(out[0].tokens.size(), 100u);
  EXPECT_EQ(std::vector<std::int32_t>(out[0].tokens.begin(), out[0].tokens.begin() + 31), first);
  const Tokenizer tokenizer = Tokenizer::load(folder_).value();
  std::string text;
  for (const std::int32_t id : out[0].tokens) text += tokenizer.token_bytes(id);
  EXPECT_EQ(text.find("Once upon a time, there was a little girl named Lily. She loved to play "
                      "outside in the park."),
            text.front() == ' ' ? 1u : 0u)
      << text;
}

TEST_F(Stories, GreedyTokensAndLogProbsMatchTheDoubleReference) {
  const ReferenceModel reference(config_, weights_->tensors());
  auto engine = engine_for(config_, *weights_);
  GenerateRequest request;
  request.prompt = {1};
  request.sampling.temperature = 0.0;
  request.sampling.max_new_tokens = 60;
  const auto out = generate_all(*engine, {request});
  EXPECT_EQ(out[0].tokens, reference.greedy(request.prompt, 60));
  expect_reference_log_probs(reference, request, out[0], 1.0);
}

TEST_F(Stories, SampledLogProbsMatchTheDoubleReferenceOverALongContext) {
  const ReferenceModel reference(config_, weights_->tensors());
  auto engine =
      engine_for(config_, *weights_, EngineOptions{.max_num_seqs = 4, .max_num_batched_tokens = 8});
  GenerateRequest request;
  request.prompt = {1};
  request.sample_indices = {0, 1, 2};
  request.sampling.max_new_tokens = 250;
  request.sampling.temperature = 0.8;
  for (const GeneratedSequence& out : generate_all(*engine, {request}))
    expect_reference_log_probs(reference, request, out, 0.8);
}

}  // namespace
}  // namespace troupe::actors

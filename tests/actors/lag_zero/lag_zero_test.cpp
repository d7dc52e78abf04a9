// Proves that at lag 0 the importance ratio between trainer and rollout engine is 1 under
// temperature, top-k, top-p and min-p, when both log-probs are of the distribution that was drawn
// from: real engines of both kinds, the same weights, several families. And what it is when only
// one side is: the kept mass.
#include "actors/train/train_engine.hpp"
#include "tests/actors/rollout/engine_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace troupe::actors {
namespace {

struct Drawn {
  SequencePack pack;
  std::vector<float> full;
  std::vector<float> processed;
};

Drawn draw(const ModelConfig& config, const WeightSet& weights,
           const SamplingTransform& transform) {
  const auto engine = engine_for(config, weights);
  std::vector<GenerateRequest> requests;
  for (std::uint64_t prompt = 0; prompt < 8; ++prompt)
    requests.push_back({.prompt_id = prompt,
                        .sample_indices = {0, 1, 2, 3},
                        .prompt = {static_cast<std::int32_t>(3 + prompt), 5, 9},
                        .sampling = {.temperature = transform.temperature,
                                     .top_p = transform.top_p,
                                     .top_k = transform.top_k,
                                     .min_p = transform.min_p,
                                     .max_new_tokens = 24,
                                     .seed = 77}});
  Drawn drawn;
  const auto prompts = requests;
  const auto sequences =
      engine->generate(std::move(requests), Deadline::in(std::chrono::minutes(1)));
  TROUPE_CHECK(sequences.has_value(), "{}", sequences.error().to_string());
  for (std::size_t i = 0; i < sequences->size(); ++i) {
    const GeneratedSequence& sequence = (*sequences)[i];
    drawn.pack.add(prompts[i / 4].prompt, sequence.tokens);
    drawn.full.insert(drawn.full.end(), sequence.full_log_probs.begin(),
                      sequence.full_log_probs.end());
    drawn.processed.insert(drawn.processed.end(), sequence.log_probs.begin(),
                           sequence.log_probs.end());
  }
  return drawn;
}

double worst_ratio(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t t = 0; t < a.size(); ++t)
    worst = std::max(worst, std::abs(std::expm1(double{a[t]} - double{b[t]})));
  return worst;
}

TEST(LagZero, TheRatioIsOneUnderEveryCut) {
  const SamplingTransform transforms[] = {
      {.temperature = 0.7},
      {.top_p = 0.8},
      {.top_k = 5},
      {.min_p = 0.1},
      {.temperature = 1.3, .top_p = 0.9, .top_k = 20, .min_p = 0.01}};
  for (const ModelConfig& config : {tiny_config(), switched_config(ModelFamily::kQwen3),
                                    switched_config(ModelFamily::kLlama)}) {
    const WeightSet weights = weights_for(config);
    TrainEngineOptions options;
    options.trainable = false;
    const auto trainer = TrainEngine::create(config, weights.tensors(), options).value();
    for (const SamplingTransform& transform : transforms) {
      SCOPED_TRACE(::testing::Message() << "temperature " << transform.temperature << " top_p "
                                        << transform.top_p << " top_k " << transform.top_k);
      const Drawn drawn = draw(config, weights, transform);
      ASSERT_GT(drawn.full.size(), 300U);
      const auto processed = trainer->log_probs(drawn.pack.view(), transform).value().log_probs;
      const auto full =
          trainer->log_probs(drawn.pack.view(), {.temperature = transform.temperature})
              .value()
              .log_probs;
      EXPECT_LT(worst_ratio(processed, drawn.processed), 1e-3);
      EXPECT_LT(worst_ratio(full, drawn.full), 1e-3);
      if (transform.has_truncation()) {
        EXPECT_GT(worst_ratio(full, drawn.processed), 0.02) << "the two kinds mixed";
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors

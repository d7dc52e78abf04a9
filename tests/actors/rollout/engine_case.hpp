#pragma once

// Shared by the engine tests: small random models of every switch, random requests, and comparison
// of results by bits.
// **Threads:** one test, one thread.

#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe::actors {

/// Odd sizes on purpose: hidden and vocabulary are no multiples of 16, heads are grouped.
inline ModelConfig tiny_config() {
  ModelConfig config;
  config.hidden_size = 40;
  config.intermediate_size = 52;
  config.layer_count = 2;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = 10;
  config.vocab_size = 61;
  config.positions_max = 160;
  config.tie_embeddings = true;
  config.initializer_range = 0.3;
  return config;
}

/// Qwen-like: biases or qk-norm, untied head, head width unlike hidden/heads.
inline ModelConfig switched_config(ModelFamily family) {
  ModelConfig config = tiny_config();
  config.family = family;
  config.head_dim = 16;
  config.tie_embeddings = false;
  config.qkv_bias = family == ModelFamily::kQwen2;
  config.qk_norm = family == ModelFamily::kQwen3;
  if (family == ModelFamily::kLlama) {
    config.qkv_bias = config.o_bias = config.mlp_bias = true;
    config.rope = RopeConfig{
        .kind = RopeKind::kLlama3, .theta = 10000.0, .factor = 4.0, .original_positions = 64};
  }
  return config;
}

inline WeightSet weights_for(const ModelConfig& config, std::uint64_t seed = 1) {
  return random_weights(config, seed, {.bias_and_norm_spread = 0.2});
}

inline std::unique_ptr<RolloutEngine> engine_for(const ModelConfig& config,
                                                 const WeightSet& weights,
                                                 EngineOptions options = {}) {
  auto engine = RolloutEngine::create(config, std::move(options));
  TROUPE_CHECK(engine.has_value(), "{}", engine.error().to_string());
  const auto loaded = (*engine)->load_weights(weights.tensors(), WeightVersion{1});
  TROUPE_CHECK(loaded.has_value(), "{}", loaded.error().to_string());
  return std::move(*engine);
}

/// Requests of mixed lengths, group sizes and sampling options.
inline std::vector<GenerateRequest> random_requests(Rng& rng, std::int64_t count,
                                                    std::int64_t vocab_size) {
  std::vector<GenerateRequest> requests;
  for (std::int64_t i = 0; i < count; ++i) {
    GenerateRequest request;
    request.prompt_id = 1000 + static_cast<std::uint64_t>(i);
    request.sample_indices.clear();
    for (std::uint64_t s = rng.below(4) + 1; s > 0; --s)
      request.sample_indices.push_back(static_cast<std::uint32_t>(s));
    for (std::uint64_t t = rng.below(40) + 1; t > 0; --t)
      request.prompt.push_back(
          static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab_size))));
    SamplingOptions& sampling = request.sampling;
    sampling.seed = 77;
    sampling.max_new_tokens = static_cast<std::int32_t>(rng.below(40) + 1);
    sampling.temperature = rng.below(4) == 0 ? 0.0 : 0.5 + rng.uniform();
    if (rng.below(3) == 0) sampling.top_p = 0.5 + rng.uniform() / 2;
    if (rng.below(3) == 0) sampling.top_k = static_cast<std::int32_t>(rng.below(20) + 1);
    if (rng.below(4) == 0) sampling.min_p = 0.1 * rng.uniform();
    if (rng.below(4) == 0) sampling.repetition_penalty = 1.0 + rng.uniform();
    if (rng.below(4) == 0) sampling.frequency_penalty = rng.uniform();
    if (rng.below(4) == 0) sampling.presence_penalty = rng.uniform();
    if (rng.below(2) == 0) sampling.stop_ids = {3, 17};
    requests.push_back(request);
  }
  return requests;
}

inline std::vector<GeneratedSequence> generate_all(RolloutEngine& engine,
                                                   std::vector<GenerateRequest> requests) {
  auto out = engine.generate(std::move(requests));
  TROUPE_CHECK(out.has_value(), "{}", out.error().to_string());
  return std::move(*out);
}

inline std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

/// Same tokens, same bits of log-probs, same reason and text.
inline void expect_identical(const GeneratedSequence& a, const GeneratedSequence& b,
                             const std::string& place) {
  SCOPED_TRACE(place);
  EXPECT_EQ(a.prompt_id, b.prompt_id);
  EXPECT_EQ(a.sample_index, b.sample_index);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(bits_of(a.log_probs), bits_of(b.log_probs));
  EXPECT_EQ(bits_of(a.full_log_probs), bits_of(b.full_log_probs));
  EXPECT_EQ(a.reason, b.reason);
  EXPECT_EQ(a.text, b.text);
}

inline void expect_identical(const std::vector<GeneratedSequence>& a,
                             const std::vector<GeneratedSequence>& b, const std::string& place) {
  ASSERT_EQ(a.size(), b.size()) << place;
  for (std::size_t i = 0; i < a.size(); ++i)
    expect_identical(a[i], b[i], place + ", sequence " + std::to_string(i));
}

}  // namespace troupe::actors

#pragma once

// Tiny configurations that between them turn every switch of the decoder, and random sequences.
//
// **Threads:** pure functions.

#include "actors/model/model_config.hpp"
#include "actors/model/weight_set.hpp"
#include "runtime/base/rng.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {

struct TinyModel {
  std::string name;
  actors::ModelConfig config;
};

/// Sizes that are no multiples of the kernels' lanes or blocks.
inline std::vector<TinyModel> tiny_models() {
  using actors::ModelFamily;
  using actors::RopeKind;
  actors::ModelConfig base;
  base.hidden_size = 24;
  base.intermediate_size = 37;
  base.layer_count = 2;
  base.head_count = 4;
  base.kv_head_count = 2;
  base.head_dim = 6;
  base.vocab_size = 29;
  base.positions_max = 512;
  base.initializer_range = 0.3;
  std::vector<TinyModel> models;
  const auto add = [&models](std::string name, const actors::ModelConfig& config) {
    models.push_back({std::move(name), config});
  };
  add("llama", base);
  actors::ModelConfig tied = base;
  tied.tie_embeddings = true;
  tied.kv_head_count = 1;
  add("smollm2: tied, one kv head", tied);
  actors::ModelConfig biased = base;
  biased.qkv_bias = biased.o_bias = biased.mlp_bias = true;
  biased.kv_head_count = 4;
  add("llama with all biases, no groups", biased);
  actors::ModelConfig llama3 = base;
  llama3.rope = {.kind = RopeKind::kLlama3,
                 .theta = 500.0,
                 .factor = 8.0,
                 .low_freq_factor = 1.0,
                 .high_freq_factor = 4.0,
                 .original_positions = 64};
  add("llama 3 rope", llama3);
  actors::ModelConfig linear = base;
  linear.rope.kind = RopeKind::kLinear;
  linear.rope.factor = 4.0;
  add("linear rope", linear);
  actors::ModelConfig qwen2 = base;
  qwen2.family = ModelFamily::kQwen2;
  qwen2.qkv_bias = true;
  qwen2.tie_embeddings = true;
  add("qwen2", qwen2);
  actors::ModelConfig qwen3 = base;
  qwen3.family = ModelFamily::kQwen3;
  qwen3.qk_norm = true;
  qwen3.head_dim = 10;  // q is wider than hidden
  add("qwen3", qwen3);
  actors::ModelConfig wide = base;
  wide.head_dim = 16;
  wide.head_count = 2;
  wide.hidden_size = 32;
  wide.kv_head_count = 1;
  wide.vocab_size = 600;  // more than one block of the log-softmax
  add("wide heads, larger vocabulary", wide);
  return models;
}

/// Weights where no bias is 0 and no norm is 1, so that a forgotten one shows.
inline actors::WeightSet tiny_weights(const actors::ModelConfig& config, std::uint64_t seed) {
  return actors::random_weights(config, seed, {.bias_and_norm_spread = 0.3});
}

inline std::vector<std::int32_t> random_tokens(Rng& rng, std::int64_t count, std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab))));
  return tokens;
}

/// Sequences laid end to end.
struct Packed {
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int64_t> all_rows() const {
    std::vector<std::int64_t> rows;
    for (std::size_t t = 0; t < tokens.size(); ++t) rows.push_back(static_cast<std::int64_t>(t));
    return rows;
  }
  void add(const std::vector<std::int32_t>& sequence) {
    tokens.insert(tokens.end(), sequence.begin(), sequence.end());
    offsets.push_back(static_cast<std::int64_t>(tokens.size()));
  }
};

inline Packed random_packed(Rng& rng, const std::vector<std::int64_t>& lengths,
                            std::int64_t vocab) {
  Packed packed;
  for (const std::int64_t length : lengths) packed.add(random_tokens(rng, length, vocab));
  return packed;
}

}  // namespace troupe::testing

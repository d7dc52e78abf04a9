#pragma once

// A model small enough to train in milliseconds, in memory or as a folder with its tokenizer.
// **Threads:** pure functions over files.

#include "actors/model/hf_folder.hpp"
#include "actors/text/byte_level_tokenizer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

namespace troupe::testing {

/// Llama shape with heads of 8 and two query heads to a kv head; `hidden` is a multiple of 16.
inline actors::ModelConfig tiny_model(std::int64_t vocabulary, std::int64_t hidden = 16,
                                      std::int64_t layers = 1) {
  actors::ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = 2 * hidden;
  config.layer_count = layers;
  config.head_dim = 8;
  config.head_count = hidden / config.head_dim;
  config.kv_head_count = config.head_count / 2;
  config.vocab_size = vocabulary;
  config.positions_max = 64;
  config.tie_embeddings = true;
  return config;
}

struct TinyFolder {
  std::int64_t hidden = 16;
  std::int64_t layers = 1;
  float spoil = 0.0F;  ///< added to one weight of the final norm
};

/// Random weights and a byte-level tokenizer, as a Hugging Face folder.
inline void make_tiny_model(const std::filesystem::path& folder, const TinyFolder& shape = {}) {
  const auto vocabulary = actors::write_byte_level_tokenizer(folder);
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().to_string();
  actors::ModelConfig config = tiny_model(*vocabulary, shape.hidden, shape.layers);
  config.eos_ids = config.stop_ids = {2};
  actors::WeightSet weights = actors::random_weights(config, 3);
  weights.mutable_data("model.norm.weight")[5] += shape.spoil;
  const auto saved = actors::save_hf_folder(folder, config, weights.tensors());
  ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
}

}  // namespace troupe::testing

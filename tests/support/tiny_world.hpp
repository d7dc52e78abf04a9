#pragma once

// What tests of worlds begin with: a byte-level tokenizer, and options of a world of tiny models.
// **Threads:** one.

#include "actors/model/weight_set.hpp"
#include "actors/roles/world_place.hpp"
#include "actors/text/byte_level_tokenizer.hpp"
#include "actors/text/tokenizer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace troupe::testing {

/// Writes a tokenizer into `folder` and opens it; its vocabulary's size.
inline void make_tokenizer(const std::filesystem::path& folder,
                           std::optional<actors::Tokenizer>& tokenizer, std::int64_t& vocabulary) {
  const auto written = actors::write_byte_level_tokenizer(folder);
  ASSERT_TRUE(written.has_value()) << written.error().to_string();
  auto opened = actors::Tokenizer::load(folder);
  ASSERT_TRUE(opened.has_value()) << opened.error().to_string();
  vocabulary = *written;
  tokenizer.emplace(std::move(*opened));
}

/// A world that scores by rule `odd` and learns by `vanilla`, here or in rank processes, which make
/// the weights of seed 1 themselves.
inline actors::WorldOptions tiny_world_options(const actors::ModelConfig& model,
                                               const actors::WeightSet& weights,
                                               const std::string& tokenizer_folder, int devices) {
  actors::WorldOptions options;
  options.devices = devices;
  options.reward_rule = "odd";
  options.call_deadline = std::chrono::seconds(60);
  options.create_deadline = std::chrono::seconds(60);
  options.policy.model = model;
  options.policy.weights = weights.tensors();
  options.policy.source = {
      .config = model.to_json(), .random = true, .seed = 1, .tokenizer_folder = tokenizer_folder};
  options.policy.engine.micro_batch_tokens_max = 256;
  options.policy.engine.optimizer.lr = 1e-2;
  options.policy_update.loss = "vanilla";
  options.rollout.kv_bytes_max = mebibytes(1);
  return options;
}

}  // namespace troupe::testing

#pragma once

// The small model that benches of the train engine share.
// **Threads:** pure.

#include "actors/model/model_config.hpp"

#include <cstdint>

namespace troupe::bench {

/// Four query heads to two kv heads, tied embeddings.
inline actors::ModelConfig small_model(std::int64_t hidden, std::int64_t layers) {
  actors::ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = hidden * 3;
  config.layer_count = layers;
  config.head_count = 4;
  config.kv_head_count = 2;
  config.head_dim = hidden / 4;
  config.vocab_size = 300;
  config.positions_max = 4096;
  config.tie_embeddings = true;
  return config;
}

}  // namespace troupe::bench

#pragma once

// Weights whose values do not matter, made faster than random ones.
// **Threads:** pure.

#include "actors/model/weight_set.hpp"

#include <cstddef>
#include <cstdint>

namespace troupe::bench {

inline actors::WeightSet rough_weights(const actors::ModelConfig& config) {
  actors::WeightSet weights = actors::WeightSet::zeros(config);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < weights.tensors().size(); ++i)
    for (float& w : weights.mutable_data(i)) {
      state = state * 1664525u + 1013904223u;
      w = (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 0.07f;
    }
  return weights;
}

}  // namespace troupe::bench

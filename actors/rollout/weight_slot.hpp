#pragma once

// Which box of each canonical tensor a rank holds, and where it goes in the packed weights.
//
// **Threads:** values and pure functions.
// **Invariants:** one slot per tensor of `expected_tensors(config)`, in that order; a slot's box is
// empty only for vocabulary rows of a rank that holds nothing but padding.

#include "actors/rollout/model_share.hpp"
#include "reshard/layout.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::actors {

/// A packed matrix, vector or table of the weights.
enum class WeightPart {
  kEmbedding,
  kHead,
  kFinalNorm,
  kInputNorm,
  kPostNorm,
  kQNorm,
  kKNorm,
  kQkv,
  kO,
  kGateUp,
  kDown,
  kQkvBias,
  kOBias,
  kGateUpBias,
  kDownBias,
};

struct WeightSlot {
  std::string name;         ///< of the canonical tensor
  std::int64_t rows = 0;    ///< of the whole tensor
  std::int64_t cols = 1;    ///< 1 for a vector
  reshard::Box held;        ///< what this rank holds of it
  std::int32_t layer = -1;  ///< −1 outside of the layers
  WeightPart part = WeightPart::kEmbedding;
  std::int64_t first_output = 0;  ///< row of the part at which `held.row_begin` lies
};

std::vector<WeightSlot> weight_slots(const ModelConfig& config, const ModelShare& share);

/// The slots as segments of one buffer, a box after the other; rank = tp rank, node 0.
reshard::RankLayout layout_of(const std::vector<WeightSlot>& slots, const ModelShare& share);

}  // namespace troupe::actors

#pragma once

// Which pipeline stage owns which layers: always an explicit list, made by one of these rules.
//
// The embedding belongs to the first stage, final norm and head to the last. A tied embedding has a
// second holder, the last stage.
// **Threads:** pure functions.
// **Invariants:** every layer belongs to exactly one stage; the layers of a stage ascend.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::reshard {

/// `stages[p]` are the layers of stage p.
using StageLayers = std::vector<std::vector<std::int64_t>>;

/// [begin, end) of `part` when `total` things go to `parts`, the first ones taking the rest.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const Range&) const = default;
  std::int64_t size() const { return end - begin; }
};
Range even_part(std::int64_t total, std::int64_t parts, std::int64_t part);

/// Runs of consecutive layers, run r on stage r mod `stages`: `counts` has a multiple of `stages`
/// numbers. Errors: kInvalidArgument.
result<StageLayers> interleaved_stages(std::span<const std::int64_t> counts, std::int64_t stages);

/// `virtual_stages` runs for each of `stages`, as even as possible.
result<StageLayers> even_stages(std::int64_t layers, std::int64_t stages,
                                std::int64_t virtual_stages = 1);

/// Megatron's uneven split: counts for the first and last stage (−1: as the others), the rest must
/// divide evenly over the stages without a count.
struct UnevenEnds {
  std::int64_t first_layers = -1;
  std::int64_t last_layers = -1;
};
result<StageLayers> uneven_stages(std::int64_t layers, std::int64_t stages, UnevenEnds ends);

/// Every layer of the model exactly once. Errors: kInvalidArgument naming the layer.
result<void> check_stages(const StageLayers& stages, std::int64_t layers);

}  // namespace troupe::reshard

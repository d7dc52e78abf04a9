#pragma once

// Logits of one sequence from the rollout engine's layers, token by token or many at once.
//
// **Threads:** pure functions.

#include "actors/rollout/model_runner.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace troupe::actors {

/// ids [T] → logits [T, V], run in calls of `chunk` tokens over one KV
/// cache whose blocks lie in reverse order.
inline result<std::vector<float>> runner_logits(const ModelConfig& config,
                                                std::span<const NamedTensor> tensors,
                                                std::span<const std::int32_t> ids,
                                                std::size_t chunk) {
  TROUPE_TRY(const PackedWeights weights, PackedWeights::pack(config, tensors));
  const auto tokens = static_cast<std::int64_t>(ids.size());
  const std::int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  ModelRunner runner(
      whole_model(config),
      {.rows = static_cast<std::int64_t>(chunk), .positions = tokens, .logit_rows = 16},
      kernel_table());
  KvCache cache(config, blocks);
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
  std::iota(table.rbegin(), table.rend(), 0);
  std::vector<float> logits;
  for (std::size_t begin = 0; begin < ids.size(); begin += chunk) {
    const auto part = ids.subspan(begin, std::min(chunk, ids.size() - begin));
    const auto rows = static_cast<std::int64_t>(part.size());
    const RowRun run{.first_row = 0,
                     .rows = rows,
                     .first_position = static_cast<std::int64_t>(begin),
                     .blocks = table.data()};
    std::vector<std::int32_t> selected(part.size());
    std::iota(selected.begin(), selected.end(), 0);
    TROUPE_TRY_VOID(runner.forward(weights, cache, part, {&run, 1}, selected));
    for (std::int64_t first = 0; first < rows; first += runner.logit_rows()) {
      const std::int64_t count = std::min(runner.logit_rows(), rows - first);
      TROUPE_TRY(const float* block, runner.logits(weights, first, count));
      for (std::int64_t row = 0; row < count; ++row) {
        const float* begin_of_row = block + row * runner.logit_stride();
        logits.insert(logits.end(), begin_of_row, begin_of_row + config.vocab_size);
      }
    }
  }
  return logits;
}

}  // namespace troupe::actors

#include "actors/algorithm/reward_shaping.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace troupe::actors {

result<PlacedRewards> place_rewards(const TokenBatchView& batch, std::span<const float> scores) {
  TROUPE_TRY_VOID(batch.check());
  if (scores.size() != batch.sequences())
    return fail(ErrorCode::kInvalidArgument, "scores: {} entries, wanted {} (one per sequence)",
                scores.size(), batch.sequences());
  PlacedRewards placed{.rewards = std::vector<float>(batch.tokens(), 0.0F), .empty_sequences = 0};
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    std::size_t last = batch.end(s);
    while (last > batch.begin(s) && batch.mask[last - 1] == 0) --last;
    if (last == batch.begin(s)) {
      ++placed.empty_sequences;
      continue;
    }
    if (!std::isfinite(scores[s]))
      return fail(ErrorCode::kInvalidArgument, "scores: sequence {} is {}", s, scores[s]);
    placed.rewards[last - 1] = scores[s];
  }
  return placed;
}

result<void> OverlongOptions::check() const {
  if (buffer_tokens <= 0 || buffer_tokens > response_tokens_max)
    return fail(ErrorCode::kConfig, "overlong_buffer.len: {}, wanted 1 to {}", buffer_tokens,
                response_tokens_max);
  if (!(std::isfinite(factor) && factor >= 0))
    return fail(ErrorCode::kConfig, "overlong_buffer.penalty_factor: {}, wanted 0 or more", factor);
  return {};
}

double overlong_penalty(std::int64_t response_tokens, const OverlongOptions& options) {
  const std::int64_t over = response_tokens - (options.response_tokens_max - options.buffer_tokens);
  if (over <= 0) return 0;
  return -static_cast<double>(over) / static_cast<double>(options.buffer_tokens) * options.factor;
}

result<std::vector<std::int64_t>> rows_of_varied_groups(std::span<const std::int64_t> groups,
                                                        std::span<const float> scores) {
  if (groups.size() != scores.size())
    return fail(ErrorCode::kInvalidArgument, "groups: {} entries for {} scores", groups.size(),
                scores.size());
  struct Seen {
    float first = 0;
    std::int64_t count = 0;
    bool varied = false;
  };
  std::unordered_map<std::int64_t, Seen> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!std::isfinite(scores[i]))
      return fail(ErrorCode::kInvalidArgument, "scores: row {} is {}", i, scores[i]);
    Seen& group = seen[groups[i]];
    if (group.count++ == 0) group.first = scores[i];
    group.varied = group.varied || scores[i] != group.first;
  }
  std::vector<std::int64_t> kept;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Seen& group = seen[groups[i]];
    if (group.varied || group.count == 1) kept.push_back(static_cast<std::int64_t>(i));
  }
  return kept;
}

}  // namespace troupe::actors

#include "actors/pacing/length_estimate.hpp"

#include <algorithm>

namespace troupe::actors {

void LengthEstimate::finished(GroupLength& group, std::int64_t tokens) {
  ++group.finished;
  group.tokens += tokens;
  group.longest = std::max(group.longest, tokens);
  // Halving now and then lets the mean follow as answers grow over a run.
  constexpr std::int64_t kMemory = 1 << 14;
  if (samples_ >= kMemory) {
    samples_ /= 2;
    tokens_ /= 2;
  }
  ++samples_;
  tokens_ += tokens;
}

std::int64_t LengthEstimate::length(const GroupLength& group, std::int64_t tokens) const {
  std::int64_t length = 0;
  if (group.finished > 0)
    length = (group.tokens + group.finished - 1) / group.finished;
  else if (group.hint > 0)
    length = group.hint;
  else if (samples_ > 0)
    length = (tokens_ + samples_ - 1) / samples_;
  else
    length = new_tokens_max_;  // nothing is known: room for the longest
  return std::clamp(length, std::min(tokens + 1, new_tokens_max_), new_tokens_max_);
}

}  // namespace troupe::actors

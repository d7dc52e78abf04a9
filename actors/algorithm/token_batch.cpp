#include "actors/algorithm/token_batch.hpp"

#include <cmath>
#include <unordered_map>

namespace troupe::actors {
namespace {

template <class Legal>
result<void> check_values(const TokenBatchView& batch, std::span<const float> values,
                          std::string_view name, Legal&& legal) {
  if (values.size() != batch.tokens())
    return fail(ErrorCode::kInvalidArgument, "{}: {} entries, wanted {} (one per token)", name,
                values.size(), batch.tokens());
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] != 0 && !legal(values[t]))
        return fail(ErrorCode::kInvalidArgument, "{}: sequence {} token {} is {}", name, s,
                    t - batch.begin(s), values[t]);
    }
  }
  return {};
}

}  // namespace

result<void> TokenBatchView::check() const {
  if (offsets.empty())
    return fail(ErrorCode::kInvalidArgument, "offsets: empty, wanted sequences + 1 entries");
  if (offsets.front() != 0)
    return fail(ErrorCode::kInvalidArgument, "offsets: start at {}, wanted 0", offsets.front());
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    if (offsets[s + 1] < offsets[s])
      return fail(ErrorCode::kInvalidArgument,
                  "offsets: sequence {} ends at {}, before its start {}", s, offsets[s + 1],
                  offsets[s]);
  }
  if (static_cast<std::size_t>(offsets.back()) != mask.size())
    return fail(ErrorCode::kInvalidArgument, "offsets: end at {}, but mask has {} tokens",
                offsets.back(), mask.size());
  if (!groups.empty() && groups.size() != sequences())
    return fail(ErrorCode::kInvalidArgument, "groups: {} entries, wanted {} (one per sequence)",
                groups.size(), sequences());
  if (!sequence_ids.empty() && sequence_ids.size() != sequences())
    return fail(ErrorCode::kInvalidArgument,
                "sequence_ids: {} entries, wanted {} (one per sequence)", sequence_ids.size(),
                sequences());
  return {};
}

TokenCounts& TokenCounts::operator+=(const TokenCounts& other) {
  tokens += other.tokens;
  sequences += other.sequences;
  return *this;
}

std::int64_t valid_length(const TokenBatchView& batch, std::size_t sequence) {
  std::int64_t length = 0;
  for (std::size_t t = batch.begin(sequence); t < batch.end(sequence); ++t)
    length += batch.mask[t] != 0 ? 1 : 0;
  return length;
}

TokenCounts count_tokens(const TokenBatchView& batch) {
  TokenCounts counts;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const std::int64_t length = valid_length(batch, s);
    counts.tokens += length;
    counts.sequences += length > 0 ? 1 : 0;
  }
  return counts;
}

std::vector<std::int64_t> number_groups(std::span<const std::string> ids) {
  std::unordered_map<std::string_view, std::int64_t> numbers;
  std::vector<std::int64_t> groups;
  groups.reserve(ids.size());
  for (const std::string& id : ids)
    groups.push_back(
        numbers.try_emplace(id, static_cast<std::int64_t>(numbers.size())).first->second);
  return groups;
}

result<void> check_tokens(const TokenBatchView& batch, std::span<const float> values,
                          std::string_view name) {
  return check_values(batch, values, name, [](float value) { return std::isfinite(value); });
}

result<void> check_log_probs(const TokenBatchView& batch, std::span<const float> values,
                             std::string_view name) {
  return check_values(batch, values, name,
                      [](float value) { return std::isfinite(value) || value < 0; });
}

}  // namespace troupe::actors

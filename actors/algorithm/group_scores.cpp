#include "actors/algorithm/group_scores.hpp"

#include "actors/algorithm/token_math.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::actors {

GroupStatistics group_statistics(std::span<const double> scores, std::vector<double>& scratch) {
  scratch.assign(scores.begin(), scores.end());
  std::sort(scratch.begin(), scratch.end());
  const std::size_t count = scratch.size();
  GroupStatistics statistics{.count = static_cast<std::int64_t>(count)};
  statistics.largest = scratch.back();
  statistics.second = scratch[count > 1 ? count - 2 : 0];
  statistics.all_equal = scratch.front() == scratch.back();
  if (statistics.all_equal) {
    statistics.mean = scratch.front();
    return statistics;
  }
  double sum = 0;
  for (const double score : scratch) sum += score;
  statistics.mean = sum / static_cast<double>(count);
  double squares = 0;
  for (const double score : scratch) {
    const double difference = score - statistics.mean;
    squares += difference * difference;
  }
  statistics.deviation = std::sqrt(squares / static_cast<double>(count - 1));
  return statistics;
}

result<SequenceGroups> SequenceGroups::make(const TokenBatchView& batch) {
  if (batch.groups.size() != batch.sequences())
    return fail(ErrorCode::kInvalidArgument, "groups: {} entries, wanted {} (one per sequence)",
                batch.groups.size(), batch.sequences());
  SequenceGroups groups;
  for (std::size_t s = 0; s < batch.sequences(); ++s)
    if (valid_length(batch, s) > 0) groups.rows_.push_back(s);
  std::stable_sort(groups.rows_.begin(), groups.rows_.end(),
                   [&](std::size_t a, std::size_t b) { return batch.groups[a] < batch.groups[b]; });
  for (std::size_t i = 1; i <= groups.rows_.size(); ++i) {
    const bool ends = i == groups.rows_.size() ||
                      batch.groups[groups.rows_[i]] != batch.groups[groups.rows_[i - 1]];
    if (ends) groups.starts_.push_back(i);
  }
  return groups;
}

std::vector<double> sequence_scores(const TokenBatchView& batch, std::span<const float> rewards) {
  std::vector<double> scores(batch.sequences(), 0.0);
  for_each_token(batch, [&](std::size_t s, std::size_t t) { scores[s] += rewards[t]; });
  return scores;
}

}  // namespace troupe::actors

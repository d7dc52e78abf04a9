#include "actors/loops/trajectory_batch.hpp"

#include "actors/loops/columns.hpp"
#include "actors/loops/response_columns.hpp"
#include "actors/loops/sample_numbering.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;

namespace {

/// Number and place in the group of each sample, where they are not what numbering gave.
result<void> renumber(std::span<const BatchGroup> groups, std::int64_t first_group, Batch& batch) {
  std::vector<std::int64_t> numbers;
  std::vector<std::int64_t> indices;
  for (const BatchGroup& group : groups) {
    for (const Trajectory& one : group.samples) {
      numbers.push_back(first_group);
      indices.push_back(static_cast<std::int64_t>(one.sample_index));
    }
    ++first_group;
  }
  TROUPE_TRY_VOID(batch.set(std::string(column::kGroup), Column::dense(std::move(numbers))));
  return batch.set(std::string(column::kSampleIndex), Column::dense(std::move(indices)));
}

}  // namespace

result<Batch> response_columns(std::span<const Trajectory> samples) {
  const bool truncates = std::ranges::any_of(
      samples, [](const Trajectory& one) { return one.sampling.has_truncation(); });
  ResponseColumns columns(truncates);
  for (const Trajectory& one : samples)
    columns.add(one.tokens, one.mask, one.full_log_probs, one.log_probs, one.versions, one.reason);
  return std::move(columns).batch();
}

result<Batch> sample_batch(std::span<const BatchGroup> groups, std::int64_t first_group) {
  if (groups.empty()) return fail(ErrorCode::kInvalidArgument, "trajectory batch: no groups");
  const std::size_t size = groups.front().samples.size();
  std::vector<Batch> rows;
  std::vector<Trajectory> samples;
  for (const BatchGroup& group : groups) {
    if (group.samples.size() != size || group.row.rows() != 1)
      return fail(ErrorCode::kConflict,
                  "trajectory batch: group of {} samples and {} prompts, wanted {} and 1",
                  group.samples.size(), group.row.rows(), size);
    rows.push_back(group.row);
    samples.insert(samples.end(), group.samples.begin(), group.samples.end());
  }
  TROUPE_TRY(const Batch prompts, Batch::concat(rows));
  TROUPE_TRY(Batch batch, number_samples(prompts, static_cast<std::int64_t>(size)));
  TROUPE_TRY_VOID(renumber(groups, first_group, batch));
  TROUPE_TRY(const Batch responses, response_columns(samples));
  TROUPE_TRY_VOID(batch.merge(responses));
  return batch;
}

result<Batch> trajectory_batch(std::span<const BatchGroup> groups, std::int64_t first_group) {
  TROUPE_TRY(Batch batch, sample_batch(groups, first_group));
  std::vector<Batch> rewards;
  for (const BatchGroup& group : groups)
    rewards.insert(rewards.end(), group.rewards.begin(), group.rewards.end());
  TROUPE_TRY(const Batch scored, Batch::concat(rewards));
  if (scored.rows() != batch.rows())
    return fail(ErrorCode::kConflict, "trajectory batch: {} rewards for {} samples", scored.rows(),
                batch.rows());
  TROUPE_TRY_VOID(batch.merge(scored));
  return batch;
}

}  // namespace troupe::actors

#include "actors/loops/trajectory_batch.hpp"

#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"

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
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> mask;
  std::vector<float> log_probs;
  std::vector<float> processed;
  std::vector<std::int64_t> versions;
  std::vector<std::int64_t> lengths;
  std::vector<std::string> reasons;
  bool truncates = false;
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const Trajectory& one : samples) {
    lengths.push_back(one.length());
    append(tokens, one.tokens);
    append(mask, one.mask);
    append(log_probs, one.full_log_probs);
    append(processed, one.log_probs);
    for (const WeightVersion version : one.versions) versions.push_back(version.value);
    reasons.emplace_back(stop_reason_name(one.reason));
    truncates = truncates || one.sampling.has_truncation();
  }
  Batch out(static_cast<std::int64_t>(samples.size()));
  const auto set = [&](std::string_view name, Column column) {
    return out.set(std::string(name), std::move(column));
  };
  TROUPE_TRY_VOID(set(column::kResponses, Column::jagged(std::move(tokens), lengths)));
  TROUPE_TRY_VOID(set(column::kResponseMask, Column::jagged(std::move(mask), lengths)));
  TROUPE_TRY_VOID(set(column::kRolloutLogProbs, Column::jagged(std::move(log_probs), lengths)));
  if (truncates)
    TROUPE_TRY_VOID(set(column::kProcessedLogProbs, Column::jagged(std::move(processed), lengths)));
  TROUPE_TRY_VOID(set(column::kVersions, Column::jagged(std::move(versions), lengths)));
  TROUPE_TRY_VOID(set(column::kStopReason, Column::strings(reasons)));
  return out;
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

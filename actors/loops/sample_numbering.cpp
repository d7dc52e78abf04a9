#include "actors/loops/sample_numbering.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "runtime/base/rng.hpp"

#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;

std::uint64_t step_seed(std::uint64_t run_seed, std::int64_t step) {
  return mix_seed(run_seed, static_cast<std::uint64_t>(step));
}

result<Batch> number_samples(const Batch& prompts, std::int64_t group_size) {
  if (group_size < 1)
    return fail(ErrorCode::kInvalidArgument, "rollout: group size {}, wanted at least 1",
                group_size);
  Batch samples = prompts.repeat(group_size);
  std::vector<std::int64_t> groups;
  std::vector<std::int64_t> indices;
  groups.reserve(static_cast<std::size_t>(samples.rows()));
  indices.reserve(static_cast<std::size_t>(samples.rows()));
  for (std::int64_t prompt = 0; prompt < prompts.rows(); ++prompt) {
    for (std::int64_t sample = 0; sample < group_size; ++sample) {
      groups.push_back(prompt);
      indices.push_back(sample);
    }
  }
  TROUPE_TRY_VOID(samples.set(std::string(column::kGroup), Column::dense(std::move(groups))));
  TROUPE_TRY_VOID(
      samples.set(std::string(column::kSampleIndex), Column::dense(std::move(indices))));
  return samples;
}

result<Metrics> length_metrics(const Batch& batch, runtime::PullMeter* meter) {
  TROUPE_TRY(const Column responses, batch.require(column::kResponses));
  TROUPE_TRY(const Column prompts, batch.require(column::kPrompts));
  TROUPE_TRY(const Column remote, batch.require(column::kStopReason));
  TROUPE_TRY(const Column reasons, remote.resolve(meter));
  Metrics metrics;
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const auto response = static_cast<double>(responses.row_length(row));
    const auto prompt = static_cast<double>(prompts.row_length(row));
    const std::string_view reason = reasons.text(row);
    metrics.add("response_length/mean", response, Reduction::kMean);
    metrics.add("response_length/max", response, Reduction::kMax);
    metrics.add("response_length/min", response, Reduction::kMin);
    metrics.add("response_length/clip_ratio", reason == "length" ? 1 : 0, Reduction::kMean);
    metrics.add("response/failed", reason == "failed" ? 1 : 0, Reduction::kSum);
    metrics.add("response/aborted_ratio", reason == "aborted" ? 1 : 0, Reduction::kMean);
    metrics.add("prompt_length/mean", prompt, Reduction::kMean);
    metrics.add("prompt_length/max", prompt, Reduction::kMax);
    metrics.add("prompt_length/min", prompt, Reduction::kMin);
    metrics.add("perf/total_num_tokens", prompt + response, Reduction::kSum);
  }
  return metrics;
}

}  // namespace troupe::actors

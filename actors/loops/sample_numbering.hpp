#pragma once

// Gives every sample of a step its identity before it is generated: group and place in the group.
//
// **Threads:** pure functions.

#include "runtime/batch/batch.hpp"
#include "runtime/batch/column_ref.hpp"

#include <cstdint>

namespace troupe::actors {

/// The sampling seed of a step: every step draws anew, also for a prompt that comes again.
std::uint64_t step_seed(std::uint64_t run_seed, std::int64_t step);

/// Repeats every prompt `group_size` times, interleaved, and adds `group` (the prompt's place in
/// this batch) and `sample_index` (0 … group_size − 1). Copies no payload.
result<runtime::Batch> number_samples(const runtime::Batch& prompts, std::int64_t group_size);

/// Metrics over finished samples: `response_length/*`, `prompt_length/*`,
/// `response_length/clip_ratio` (share that ran into the length bound), `response/failed` (count),
/// `response/aborted_ratio`, and the count `perf/total_num_tokens`. Reads lengths and `stop_reason`
/// only; `meter` counts bytes.
result<runtime::Metrics> length_metrics(const runtime::Batch& batch,
                                        runtime::PullMeter* meter = nullptr);

}  // namespace troupe::actors

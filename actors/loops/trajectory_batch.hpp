#pragma once

// Trajectories as the columns of a batch: the same columns, types and row order that `generate`
// and `score` make.
//
// **Threads:** pure functions.
// **Invariants:** row i is sample i of the argument; environment tokens and tokens that were masked
// have 0 in `response_mask` and go on counting in lengths.

#include "actors/pacing/trajectory.hpp"
#include "runtime/base/result.hpp"
#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::actors {

/// One group that a step uses.
struct BatchGroup {
  runtime::Batch row{};                   ///< one row: the prompt's columns
  std::vector<Trajectory> samples{};      ///< whole, rising by sample index
  std::vector<runtime::Batch> rewards{};  ///< one row each: what scoring gave
};

/// `responses`, `response_mask`, `rollout_log_probs`, `weight_versions`, `stop_reason`; with
/// truncated sampling `rollout_processed_log_probs` too.
result<runtime::Batch> response_columns(std::span<const Trajectory> samples);

/// Prompt columns repeated, `group` (from `first_group` on), `sample_index`, and the response
/// columns: what `generate` gives. kConflict when groups differ in size.
result<runtime::Batch> sample_batch(std::span<const BatchGroup> groups, std::int64_t first_group);

/// The same and the columns of the rewards. kConflict also when those differ in columns.
result<runtime::Batch> trajectory_batch(std::span<const BatchGroup> groups,
                                        std::int64_t first_group);

}  // namespace troupe::actors

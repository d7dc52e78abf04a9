#pragma once

// What asynchronous rollout tells of a step, under the names that people look for.
//
// **Threads:** value types and pure functions.

#include "actors/loops/rollout_book.hpp"
#include "runtime/observe/metrics.hpp"

#include <cstdint>

namespace troupe::actors {

/// Counters at the end of the last step, so that the next one reports what came since.
struct RolloutMark {
  RolloutCounts counts{};
  TokenAccount tokens{};
  std::int64_t issued = 0;
};
RolloutMark mark_of(const RolloutBook& book);

/// `staleness/{min,mean,max,publish_lag}`, `staleness/age_<k>/groups` (k up to 16, then `17_up`),
/// `staleness/span/{mean,max}`, `async/{queue_depth,in_flight,groups_open}`,
/// `async/{dropped_<reason>,aborted,requeued,failed_attempts,replicas_lost,environment_turns}`,
/// `async/{resumed,wasted_tokens,wasted_<reason>_tokens,recomputed_tokens,oversample_ratio}`,
/// `async/length_bias`. `before` is from the end of the last step.
runtime::Metrics step_metrics(const RolloutBook& book, const StepAccount& account,
                              const RolloutMark& before);

}  // namespace troupe::actors

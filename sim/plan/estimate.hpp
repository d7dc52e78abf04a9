#pragma once

// What a candidate would take, in closed form: the first level of the search.
//
// A step is generation, scores, forward passes, updates and the move of weights. Inside a set of
// colocated roles times add, across sets the longest counts, stage by stage. Loops that run ahead
// take the longer of both sides, and never less than their longest sample over η + 1 steps.
// **Threads:** pure.
// **Invariants:** memory is judged as by `SimJob::check`; equal candidates have equal estimates.

#include "sim/plan/plan_request.hpp"
#include "sim/plan/role_times.hpp"

#include <string>

namespace troupe::sim {

/// Seconds, and what is behind them.
struct Estimate {
  double generate_s = 0;  ///< until the last sample of a batch, alone
  double steady_s = 0;    ///< of a batch, when batches follow each other without a gap
  double longest_s = 0;   ///< of one sample
  double score_s = 0;
  double pass_s = 0;  ///< log-probs, values
  double update_s = 0;
  double publish_s = 0;
  double step_s = 0;
  std::int64_t running_most = 0;  ///< samples of an engine that its KV cache holds at a time
  std::int64_t samples_a_replica = 0;
  double objective = 0;  ///< what the search makes small
};

/// kResourceExhausted or kInvalidArgument when the candidate cannot be.
result<Estimate> estimate(const PlanRequest& request, const Candidate& candidate);
/// The same, with what was computed before.
result<Estimate> estimate(RoleTimes& times, const Candidate& candidate);

/// A step of `parts`; rises with each of them.
double step_of(SimMode mode, std::int64_t staleness, const Estimate& parts, double reward_s);
double objective_of(const PlanRequest& request, double step_s, double price_per_hour);

}  // namespace troupe::sim

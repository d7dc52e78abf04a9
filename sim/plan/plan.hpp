#pragma once

// `plan`: searches placements for a training run, simulates the best few, and says why they win.
//
//   TROUPE_TRY(const Plan plan, make_plan(request));
//   fmt::print("{}", to_text(plan, request));
//
// HybridFlow's mapping search (arXiv 2409.19256, algorithm 1) over set partitions, device counts
// and layouts, with what that leaves out: lengths that vary, KV caches that do not hold all samples
// at once, loops in which rollout runs ahead, devices of several kinds. A closed-form estimate
// ranks all candidates; the simulator runs the best of them and decides.
// **Threads:** any; nothing is shared between calls.
// **Invariants:** the same request gives the same plan; every candidate in it fits the memory of
// its devices, by the ledger that the simulator checks.

#include "sim/plan/estimate.hpp"
#include "sim/plan/plan_request.hpp"
#include "sim/world/simulate.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::sim {

struct PlannedRun {
  Candidate candidate{};
  Estimate estimate{};
  double step_s = 0;  ///< simulated, mean of steps behind the first ones of loops that run ahead
  double tokens_per_s_device = 0;
  double cost_per_step = 0;     ///< US dollars
  double cost_per_mtokens = 0;  ///< of prompts and answers
  double staleness_mean = 0;
  double preemptions = 0;  ///< of a step
  std::map<std::string, double> phases_s{};
  std::vector<PoolMemory> memory{};
  double objective = 0;
  std::string why{};  ///< which part is the longest, and what binds it
};

/// A usual placement to compare with.
struct Baseline {
  std::string name{};
  std::optional<PlannedRun> run{};  ///< none: nothing of this form fits
};

struct Plan {
  std::vector<PlannedRun> best{};  ///< by the objective, simulated
  std::vector<Baseline> baselines{};
  std::optional<PlannedRun> runnable{};  ///< best of those that `troupe train` can run
  std::vector<std::string> refused{};    ///< what the simulator did not accept, and why
  std::uint64_t shapes = 0;              ///< partitions with a loop
  std::uint64_t looked_at = 0;           ///< combinations that were estimated as a whole
};

/// Steps of a candidate that are simulated, and the first of them that its numbers leave out. What
/// is written for `troupe simulate` says the same.
struct StepWindow {
  std::int64_t steps = 1;
  std::int64_t warm_up = 0;
};
StepWindow window_of(const PlanRequest& request, const Candidate& candidate);

/// kResourceExhausted when nothing fits: what is missing, and the nearest number of devices that
/// would do.
result<Plan> make_plan(const PlanRequest& request);

/// Tables and sentences, the first `top` of the best.
std::string to_text(const Plan& plan, const PlanRequest& request, std::size_t top);
std::string to_json(const Plan& plan, const PlanRequest& request, std::size_t top);

/// `key=value` overrides that make the configuration of a run this candidate.
std::vector<std::string> overrides_of(const PlanRequest& request, const Candidate& candidate);

}  // namespace troupe::sim

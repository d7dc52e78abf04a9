#pragma once

// The numbers of a simulated run, how sure they are, and what they hang on.
//
// One run with the constants as they are gives the numbers. More runs, each with another seed and
// with constants drawn inside their ranges, give p10 and p90; half of a constant's draws lie below
// its value and half above, and the more the nearer to it. One run with each constant at either end
// of its range gives what the step time hangs on most.
// **Threads:** pure; runs are shared out over `threads` threads, and their order does not matter.
// **Invariants:** same scenario, same report, to the byte; a drawn run that does not fit its
// devices is counted and named, and is no part of the spread.
// **Cost:** samples + 2 · constants simulated runs.

#include "sim/scenario/scenario.hpp"
#include "sim/world/simulate.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::sim {

/// A number of the run, and where most of the drawn ones lie.
struct Spread {
  double value = 0;
  double p10 = 0;
  double p90 = 0;
};

/// Means over the steps that count, by name: `step_s`, `tokens_per_s_device`, `tokens_per_s`,
/// `update_mfu`, `run_mfu`, `cost_per_step`, `cost_per_million_tokens`, and `parts/…` in seconds.
using RunNumbers = std::map<std::string, double>;

struct Sensitivity {
  Constant constant{};
  double low = 0;  ///< ends of its range
  double high = 0;
  std::optional<double> step_at_low_s{};  ///< nothing where the run does not fit then
  std::optional<double> step_at_high_s{};
  double swing_s = 0;  ///< most that either end moves the step
};

struct SimReport {
  std::string name{};
  SimJob job{};
  std::vector<std::string> placement{};
  std::vector<std::string> notes{};
  int devices = 0;
  std::int64_t warm_up_steps = 0;
  std::map<std::string, Spread> numbers{};
  std::vector<PoolUse> pools{};  ///< means over the steps that count
  std::vector<PoolMemory> memory{};
  std::int64_t kv_pool_tokens = 0;
  std::map<std::int64_t, std::int64_t> staleness{};  ///< versions old → groups
  double versions_crossed = 0;  ///< inside a sample, mean over steps of the worst of each group
  std::map<std::string, double> bytes_by_link{};  ///< a step
  double preemptions = 0;                         ///< a step
  double recomputed_tokens = 0;                   ///< a step
  std::int64_t failures = 0;
  std::int64_t samples = 0;  ///< runs behind the spread, the first included
  std::int64_t samples_failed = 0;
  std::string first_failure{};
  std::vector<Sensitivity> sensitivity{};  ///< all that move anything, largest first
  SimOutcome outcome{};                    ///< of the run with the constants as they are
};

struct ReportOptions {
  std::string name = "run";
  bool spread = true;  ///< false: one run, no percentiles and no sensitivity
  bool trace = false;  ///< keep what a trace needs
  int threads = 1;
};

result<SimReport> make_report(const Scenario& scenario, const ReportOptions& options);

/// The numbers of one outcome, over the steps behind `warm_up`.
RunNumbers run_numbers(const SimJob& job, const SimOutcome& outcome, std::int64_t warm_up);

/// For people.
std::string report_text(const SimReport& report);
/// For programs; ends with a newline. The fields are those of docs/simulator.md.
std::string report_json(const SimReport& report);
/// Both side by side, with ratios, and which parts make the difference.
std::string comparison_text(const SimReport& a, const SimReport& b);
std::string comparison_json(const SimReport& a, const SimReport& b);

}  // namespace troupe::sim

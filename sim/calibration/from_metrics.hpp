#pragma once

// Constants from what a real run measured: the `metrics.jsonl` that `troupe train` writes.
//
// A simulated run of the same job is compared phase by phase with the medians of the measured
// steps: generation, log-probs, updates, weight moves. Which constants those phases depend on is in
// `calibration_constants`; constants that the run does not determine keep their values and are
// named in the result.
// **Threads:** pure but for `read_metrics`, which reads a file.
// **Invariants:** the first measured step is left out when there are more (it warms up); phases
// that either side lacks or that take less than `phase_s_min` are not compared.

#include "sim/calibration/fit.hpp"
#include "sim/world/sim_job.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

/// One line of the file that tells of a training step: its numbers, `timing_s/…` among them.
struct MeasuredStep {
  std::int64_t step = 0;
  std::map<std::string, double> numbers{};
  /// Seconds of a phase as the loops name it: `gen`, `update_actor`, `step`; 0: not there.
  double phase_s(std::string_view phase) const;
};

/// kNotFound for a file that cannot be read; kCorrupt naming file and line for what is no JSON
/// object, has no step, or has a time that is no number from 0; kCorrupt when no step has times.
result<std::vector<MeasuredStep>> read_metrics(const std::string& file);
result<std::vector<MeasuredStep>> parse_metrics(std::string_view text, const std::string& source);

struct CalibrateOptions {
  /// Fitted; empty: `calibration_constants`.
  std::vector<Constant> constants{};
  std::int64_t simulated_steps = 1;
  double phase_s_min = 1e-3;
  FitOptions fit{};
};

/// Shares and software costs that a run's phases tell of: at most `FitOptions::constants_max`.
std::vector<Constant> calibration_constants(const SimJob& job);

/// `job` describes the run that was measured; its constants are where the fit starts. Errors of
/// the simulation; kInvalidArgument when no phase can be compared.
result<FittedConstants> calibrate(const SimJob& job, std::span<const MeasuredStep> steps,
                                  const CalibrateOptions& options = {});

}  // namespace troupe::sim

#include "sim/calibration/from_metrics.hpp"

#include "sim/world/simulate.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <sstream>

namespace troupe::sim {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTiming = "timing_s/";

/// Phases that are compared; the step itself last, since it adds what no phase of its own has.
constexpr std::array kPhases = {"gen",           "reward",       "old_log_prob",   "ref", "values",
                                "update_critic", "update_actor", "update_weights", "step"};

result<MeasuredStep> parse_line(const std::string& line, const std::string& place) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return fail(ErrorCode::kCorrupt, "{}: no JSON object", place);
  MeasuredStep measured;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer() || step->get<std::int64_t>() < 0)
    return fail(ErrorCode::kCorrupt, "{}: step is {}, wanted a whole number from 0", place,
                step == json.end() ? "missing" : step->dump());
  measured.step = step->get<std::int64_t>();
  for (const auto& [name, value] : json.items()) {
    if (!name.starts_with(kTiming)) {
      if (value.is_number()) measured.numbers[name] = value.get<double>();
      continue;
    }
    if (!value.is_number() || !(value.get<double>() >= 0))
      return fail(ErrorCode::kCorrupt, "{}: {} is {}, wanted seconds from 0", place, name,
                  value.dump());
    measured.numbers[name] = value.get<double>();
  }
  return measured;
}

double median(std::vector<double> values) {
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

/// Median seconds of each phase that there is, over the steps behind the first.
std::map<std::string, double> phases_of(std::span<const MeasuredStep> steps) {
  if (steps.size() > 1) steps = steps.subspan(1);
  std::map<std::string, double> phases;
  for (const char* phase : kPhases) {
    std::vector<double> spans;
    for (const MeasuredStep& step : steps) spans.push_back(step.phase_s(phase));
    const double middle = median(std::move(spans));
    if (middle > 0) phases[phase] = middle;
  }
  return phases;
}

std::map<std::string, double> phases_of(const SimOutcome& outcome) {
  std::map<std::string, double> phases;
  const auto count = static_cast<double>(outcome.steps.size());
  for (const SimStep& step : outcome.steps) {
    for (const auto& [phase, span] : step.phases_s) phases[phase] += span / count;
    phases["step"] += step.span_s / count;
  }
  return phases;
}

/// Simulates a job with other constants, and keeps the last run: one run answers all phases.
class Runs {
 public:
  Runs(const SimJob& job, std::int64_t steps) : job_(job) { job_.steps = steps; }

  result<double> phase(const std::string& name, const Constants& constants) {
    if (phases_.empty() || !(constants == job_.constants)) {
      phases_.clear();
      job_.constants = constants;
      TROUPE_TRY(const SimOutcome outcome, simulate(job_, {.keep_phases = false}));
      phases_ = phases_of(outcome);
    }
    const auto found = phases_.find(name);
    return found == phases_.end() ? 0 : found->second;
  }

 private:
  SimJob job_;
  std::map<std::string, double> phases_;
};

}  // namespace

double MeasuredStep::phase_s(std::string_view phase) const {
  const auto found = numbers.find(std::string(kTiming).append(phase));
  return found == numbers.end() ? 0 : found->second;
}

result<std::vector<MeasuredStep>> parse_metrics(std::string_view text, const std::string& source) {
  std::vector<MeasuredStep> steps;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    TROUPE_TRY(MeasuredStep step, parse_line(line, fmt::format("{}:{}", source, number)));
    // Lines of evaluations have no time of a step.
    if (step.phase_s("step") > 0) steps.push_back(std::move(step));
  }
  if (steps.empty())
    return fail(ErrorCode::kCorrupt, "{}: no line tells of a training step with timing_s/step",
                source);
  return steps;
}

result<std::vector<MeasuredStep>> read_metrics(const std::string& file) {
  std::ifstream in(file);
  if (!in) return fail(ErrorCode::kNotFound, "{}: cannot read the file of metrics", file);
  std::ostringstream text;
  text << in.rdbuf();
  return parse_metrics(text.str(), file);
}

std::vector<Constant> calibration_constants(const SimJob& job) {
  std::vector<Constant> constants = {Constant::kTrainShare,         Constant::kMinibatchHost,
                                     Constant::kDecodeSequenceHost, Constant::kKvReadShare,
                                     Constant::kTransitionHost,     Constant::kIterationHost};
  if (job.pools[job.rollout.pool].devices > 1) constants.push_back(Constant::kNvlinkShare);
  return constants;
}

result<FittedConstants> calibrate(const SimJob& job, std::span<const MeasuredStep> steps,
                                  const CalibrateOptions& options) {
  if (steps.empty() || options.simulated_steps < 1)
    return fail(ErrorCode::kInvalidArgument,
                "calibration: {} measured steps, {} simulated; wanted at least 1 of each",
                steps.size(), options.simulated_steps);
  Runs runs(job, options.simulated_steps);
  std::vector<Observation> observations;
  for (const auto& [phase, measured] : phases_of(steps)) {
    TROUPE_TRY(const double simulated, runs.phase(phase, job.constants));
    if (measured < options.phase_s_min || simulated < options.phase_s_min) continue;
    observations.push_back({.name = phase,
                            .measured_s = measured,
                            .predict = [&runs, name = phase, least = options.phase_s_min / 10](
                                           const Constants& constants) -> result<double> {
                              // Software that is fitted may come to nothing; a time may not.
                              TROUPE_TRY(const double span, runs.phase(name, constants));
                              return std::max(span, least);
                            }});
  }
  if (observations.empty())
    return fail(ErrorCode::kInvalidArgument,
                "calibration: no phase takes {} s in both the measured and the simulated run",
                options.phase_s_min);
  const std::vector<Constant> constants =
      options.constants.empty() ? calibration_constants(job) : options.constants;
  return fit(observations, constants, job.constants, options.fit);
}

}  // namespace troupe::sim

#include "sim/report/sim_report.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"
#include "sim/engine/random.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <span>
#include <thread>
#include <utility>

namespace troupe::sim {
namespace {

std::span<const SimStep> counted(const SimOutcome& outcome, std::int64_t warm_up) {
  const std::span<const SimStep> steps(outcome.steps);
  return steps.subspan(std::min(static_cast<std::size_t>(warm_up), steps.size()));
}

double price_per_second(const SimJob& job) {
  double price = 0;
  for (const DevicePool& pool : job.pools)
    price += pool.devices * pool.device.price_per_hour / 3600;
  return price;
}

/// Runs `work(i)` for all i below `count`.
void for_all(std::size_t count, int threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(loop);
  loop();
}

/// Quantile of sorted numbers, between them linear.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

/// From `middle` to `end`, rarer towards the end; by factors where both are positive.
double towards(double middle, double end, double share) {
  const double way = 1 - std::sqrt(1 - share);
  return middle > 0 && end > 0 ? middle * std::pow(end / middle, way)
                               : middle + (end - middle) * way;
}

/// The job with another seed, and every constant that is not given drawn from its range.
SimJob drawn(const Scenario& scenario, std::uint64_t sample) {
  SimJob job = scenario.job;
  job.seed = mix_seed(job.seed, sample);
  for (std::size_t i = 0; i < kConstants; ++i) {
    const auto constant = static_cast<Constant>(i);
    if (std::ranges::find(scenario.given, constant) != scenario.given.end()) continue;
    const ConstantInfo& info = info_of(constant);
    const double middle = job.constants[constant];
    const double u = uniform(
        {.seed = scenario.job.seed, .entity = sample, .purpose = Purpose::kConstant, .index = i});
    const double value = towards(middle, u < 0.5 ? info.low : info.high, std::abs(2 * u - 1));
    const auto set = job.constants.set(constant, std::clamp(value, info.low, info.high));
    TROUPE_CHECK(set.has_value(), "a drawn constant lies in its range");
  }
  return job;
}

SimulateOptions simulate_options(const Scenario& scenario) {
  SimulateOptions options;
  options.keep_phases = false;
  options.keep_going = [last = scenario.sampling.steps](std::int64_t step) { return step < last; };
  return options;
}

/// Step time with one constant at one end of its range; nothing where that does not fit.
std::optional<double> step_with(const Scenario& scenario, Constant constant, double value) {
  SimJob job = scenario.job;
  if (!job.constants.set(constant, value)) return std::nullopt;
  const auto outcome = simulate(job, simulate_options(scenario));
  if (!outcome) return std::nullopt;
  return run_numbers(job, *outcome, scenario.sampling.warm_up_steps).at("step_s");
}

std::vector<Sensitivity> sensitivity_of(const Scenario& scenario, double step_s, int threads) {
  std::vector<Sensitivity> all;
  for (std::size_t i = 0; i < kConstants; ++i) {
    const auto constant = static_cast<Constant>(i);
    if (std::ranges::find(scenario.given, constant) != scenario.given.end()) continue;
    all.push_back(
        {.constant = constant, .low = info_of(constant).low, .high = info_of(constant).high});
  }
  for_all(2 * all.size(), threads, [&](std::size_t i) {
    Sensitivity& one = all[i / 2];
    if (i % 2 == 0)
      one.step_at_low_s = step_with(scenario, one.constant, one.low);
    else
      one.step_at_high_s = step_with(scenario, one.constant, one.high);
  });
  for (Sensitivity& one : all) {
    one.swing_s = std::max(std::abs(one.step_at_low_s.value_or(step_s) - step_s),
                           std::abs(one.step_at_high_s.value_or(step_s) - step_s));
  }
  std::erase_if(all, [&](const Sensitivity& one) {
    return one.step_at_low_s && one.step_at_high_s && one.swing_s <= 1e-9 * step_s;
  });
  std::ranges::stable_sort(all, std::greater{}, &Sensitivity::swing_s);
  return all;
}

/// p10 and p90 of the drawn runs around the first one's numbers.
void add_spread(const Scenario& scenario, int threads, SimReport& report) {
  const auto draws = static_cast<std::size_t>(scenario.sampling.samples - 1);
  std::vector<std::optional<RunNumbers>> runs(draws);
  std::vector<std::string> failures(draws);
  for_all(draws, threads, [&](std::size_t i) {
    const SimJob job = drawn(scenario, i + 1);
    const auto outcome = simulate(job, simulate_options(scenario));
    if (outcome)
      runs[i] = run_numbers(job, *outcome, scenario.sampling.warm_up_steps);
    else
      failures[i] = outcome.error().message;
  });
  for (auto& [name, spread] : report.numbers) {
    std::vector<double> values{spread.value};
    for (const auto& run : runs) {
      if (!run) continue;
      const auto at = run->find(name);
      values.push_back(at == run->end() ? 0 : at->second);
    }
    std::ranges::sort(values);
    spread.p10 = quantile(values, 0.1);
    spread.p90 = quantile(values, 0.9);
  }
  report.samples = scenario.sampling.samples;
  for (const std::string& failure : failures) {
    if (failure.empty()) continue;
    if (report.samples_failed++ == 0) report.first_failure = failure;
  }
}

void add_use(std::map<std::string, double>& sums, const std::map<std::string, double>& more,
             double weight) {
  for (const auto& [name, share] : more) sums[name] += share * weight;
}

void add_outcome(const SimJob& job, std::int64_t warm_up, SimReport& report) {
  const SimOutcome& outcome = report.outcome;
  const auto steps = counted(outcome, warm_up);
  double span = 0;
  for (const SimStep& step : steps) span += step.span_s;
  for (const DevicePool& pool : job.pools)
    report.pools.push_back({.pool = pool.name, .devices = pool.devices});
  const double count = static_cast<double>(steps.size());
  for (const SimStep& step : steps) {
    for (std::size_t i = 0; i < step.pools.size(); ++i) {
      const double weight = step.span_s / span;
      report.pools[i].idle_share += step.pools[i].idle_share * weight;
      add_use(report.pools[i].busy_by, step.pools[i].busy_by, weight);
      add_use(report.pools[i].idle_by, step.pools[i].idle_by, weight);
    }
    for (const auto& [age, groups] : step.staleness) report.staleness[age] += groups;
    report.versions_crossed += step.span_mean / count;
    add_use(report.bytes_by_link, step.bytes_by_link, 1 / count);
    report.preemptions += static_cast<double>(step.preemptions) / count;
    report.recomputed_tokens += step.recomputed_tokens / count;
  }
  report.memory = outcome.memory;
  report.kv_pool_tokens = outcome.kv_pool_tokens;
  report.failures = static_cast<std::int64_t>(outcome.failures.size());
}

}  // namespace

RunNumbers run_numbers(const SimJob& job, const SimOutcome& outcome, std::int64_t warm_up) {
  RunNumbers numbers;
  const auto steps = counted(outcome, warm_up);
  const double count = static_cast<double>(steps.size());
  double span = 0;
  double tokens = 0;
  double update_mfu = 0;
  double run_mfu = 0;
  for (const SimStep& step : steps) {
    span += step.span_s;
    tokens += step.prompt_tokens + step.answer_tokens;
    update_mfu += step.update_mfu / count;
    run_mfu += step.run_mfu * step.span_s;
    double parts = 0;
    for (const auto& [name, part] : step.phases_s) {
      numbers["parts/" + name] += part / count;
      parts += part;
    }
    const double other = step.span_s - parts;
    numbers["parts/other"] += other > 1e-9 * step.span_s ? other / count : 0;
  }
  int devices = 0;
  for (const DevicePool& pool : job.pools) devices += pool.devices;
  numbers["step_s"] = span / count;
  numbers["tokens_per_step"] = tokens / count;
  numbers["tokens_per_s"] = tokens / span;
  numbers["tokens_per_s_device"] = tokens / span / devices;
  numbers["update_mfu"] = update_mfu;
  numbers["run_mfu"] = run_mfu / span;
  numbers["cost_per_step"] = price_per_second(job) * span / count;
  numbers["cost_per_million_tokens"] = price_per_second(job) * span / tokens * 1e6;
  return numbers;
}

result<SimReport> make_report(const Scenario& scenario, const ReportOptions& options) {
  SimReport report;
  report.name = options.name;
  report.job = scenario.job;
  report.placement = scenario.placement;
  report.notes = scenario.notes;
  report.warm_up_steps = scenario.sampling.warm_up_steps;
  for (const DevicePool& pool : scenario.job.pools) report.devices += pool.devices;
  SimulateOptions whole = simulate_options(scenario);
  whole.keep_phases = true;
  whole.trace = options.trace;
  TROUPE_TRY(report.outcome, simulate(scenario.job, whole));
  if (counted(report.outcome, report.warm_up_steps).empty())
    return fail(ErrorCode::kAborted, "{}: the run ended after {} of {} steps", options.name,
                report.outcome.steps.size(), scenario.sampling.steps);
  for (const auto& [name, value] : run_numbers(scenario.job, report.outcome, report.warm_up_steps))
    report.numbers[name] = {.value = value, .p10 = value, .p90 = value};
  add_outcome(scenario.job, report.warm_up_steps, report);
  report.samples = 1;
  if (!options.spread) return report;
  if (scenario.sampling.samples > 1) add_spread(scenario, options.threads, report);
  report.sensitivity = sensitivity_of(scenario, report.numbers.at("step_s").value, options.threads);
  return report;
}

}  // namespace troupe::sim

#include "sim/plan/plan.hpp"

#include "sim/plan/search.hpp"
#include "sim/plan/why.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace troupe::sim {
namespace {

/// Runs a candidate in the simulator.
result<PlannedRun> simulated(RoleTimes& times, const Found& found) {
  const PlanRequest& request = times.request();
  PlannedRun run;
  run.candidate = found.candidate;
  run.estimate = found.estimate;
  SimJob job = job_of(request, found.candidate);
  const auto [all_steps, warm] = window_of(request, found.candidate);
  job.steps = all_steps;
  // What was measured must not show how a run ends.
  job.pacing.ledger.steps_max = job.steps + found.candidate.staleness;
  SimulateOptions options;
  options.keep_phases = false;
  TROUPE_TRY(const SimOutcome outcome, simulate(job, options));
  double tokens = 0;
  double stale = 0;
  double groups = 0;
  std::int64_t steps = 0;
  for (const SimStep& step : outcome.steps) {
    if (step.step <= warm) continue;
    ++steps;
    run.step_s += step.span_s;
    tokens += step.prompt_tokens + step.answer_tokens;
    run.preemptions += static_cast<double>(step.preemptions);
    for (const auto& [phase, span_s] : step.phases_s) run.phases_s[phase] += span_s;
    for (const auto& [age, count] : step.staleness) {
      stale += static_cast<double>(age * count);
      groups += static_cast<double>(count);
    }
  }
  if (steps == 0)
    return fail(ErrorCode::kInternal, "plan: {}: the simulation ended after {} of {} steps",
                found.candidate.describe(request), outcome.steps.size(), job.steps);
  const auto count = static_cast<double>(steps);
  run.step_s /= count;
  run.preemptions /= count;
  tokens /= count;
  for (auto& [phase, span_s] : run.phases_s) span_s /= count;
  run.staleness_mean = groups > 0 ? stale / groups : 0;
  double price = 0;
  for (const PlannedSet& set : found.candidate.sets)
    price += set.devices * request.offers[set.offer].device.price_per_hour;
  run.tokens_per_s_device = tokens / run.step_s / found.candidate.devices();
  run.cost_per_step = run.step_s / 3600 * price;
  run.cost_per_mtokens = run.cost_per_step / (tokens / 1e6);
  run.memory = outcome.memory;
  run.objective = objective_of(request, run.step_s, price);
  run.why = why_of(times, found.candidate, found.estimate);
  return run;
}

void simulate_into(RoleTimes& times, const std::vector<Found>& all, std::vector<PlannedRun>& runs,
                   std::vector<std::string>& refused) {
  for (const Found& found : all) {
    auto run = simulated(times, found);
    if (run)
      runs.push_back(std::move(*run));
    else
      refused.push_back(fmt::format("{}: {}", found.candidate.describe(times.request()),
                                    run.error().to_string()));
  }
  std::stable_sort(runs.begin(), runs.end(), [](const PlannedRun& a, const PlannedRun& b) {
    return a.objective < b.objective;
  });
}

struct Form {
  const char* name;
  std::vector<RoleMask> sets;
  bool halves;
  bool ahead;
};

/// Usual placements: those that HybridFlow compares with, and equal halves for trainer and rollout.
std::vector<Form> usual_forms(const PlanRequest& request) {
  RoleMask all = 0;
  std::vector<RoleMask> alone;
  for (const PlanRole role : request.roles()) {
    all |= mask_of(role);
    alone.push_back(mask_of(role));
  }
  const RoleMask rollout = mask_of(PlanRole::kRollout);
  const RoleMask critic = all & (mask_of(PlanRole::kCritic) | mask_of(PlanRole::kRewardModel));
  std::vector<Form> forms = {{"all roles on the same devices", {all}, false, false}};
  if (critic != 0)
    forms.push_back({"halves: policy side | critic side", {all & ~critic, critic}, true, false});
  forms.push_back({"halves: trainer | rollout ahead", {all & ~rollout, rollout}, true, true});
  if (alone.size() > 2) forms.push_back({"each role on its own", alone, false, false});
  return forms;
}

std::vector<Baseline> baselines_of(SetOptions& options, std::vector<std::string>& refused) {
  std::vector<Baseline> baselines;
  for (const Form& form : usual_forms(options.times().request())) {
    SearchOptions wanted;
    wanted.best = wanted.of_shape = 1;
    wanted.halves = form.halves;
    wanted.wanted = [&form](const PlanShape& shape) {
      return shape.sets == form.sets && (shape.mode != SimMode::kSynchronous) == form.ahead;
    };
    const auto found = search(options, wanted);
    Baseline baseline{.name = form.name, .run = std::nullopt};
    std::vector<PlannedRun> runs;
    if (found) simulate_into(options.times(), found->best, runs, refused);
    if (!runs.empty()) baseline.run = runs.front();
    baselines.push_back(std::move(baseline));
  }
  return baselines;
}

/// The best that a real run of this build can place.
result<void> add_runnable(const PlanRequest& request, Plan& plan) {
  for (const PlannedRun& run : plan.best) {
    if (!run.candidate.is_runnable()) continue;
    plan.runnable = run;
    return {};
  }
  PlanRequest real = request;
  real.split_trained = false;
  real.experts_cut = 1;
  TROUPE_TRY(RoleTimes times, RoleTimes::create(real));
  SetOptions options(times);
  SearchOptions wanted;
  wanted.best = std::min<std::size_t>(4, request.simulate_best);
  wanted.wanted = [](const PlanShape& shape) {
    return (shape.mode == SimMode::kSynchronous) == (shape.sets.size() == 1);
  };
  TROUPE_TRY(const Searched searched, search(options, wanted));
  std::vector<PlannedRun> runs;
  simulate_into(times, searched.best, runs, plan.refused);
  if (!runs.empty()) plan.runnable = runs.front();
  return {};
}

}  // namespace

namespace {

/// Searches and simulates the best of one request.
result<void> add_best(const PlanRequest& request, std::size_t count, Plan& plan) {
  TROUPE_TRY(RoleTimes times, RoleTimes::create(request));
  SetOptions options(times);
  SearchOptions wanted;
  wanted.best = count;
  TROUPE_TRY(const Searched searched, search(options, wanted));
  plan.looked_at += searched.looked_at;
  plan.shapes += shapes_of(request).size();
  simulate_into(times, searched.best, plan.best, plan.refused);
  return {};
}

bool has_experts(const PlanRequest& request) {
  const std::vector<PlanRole> roles = request.roles();
  return std::any_of(roles.begin(), roles.end(), [&request](PlanRole role) {
    return request.model_of(role).shape.expert.experts > 0;
  });
}

}  // namespace

StepWindow window_of(const PlanRequest& request, const Candidate& candidate) {
  if (candidate.mode == SimMode::kSynchronous) return {.steps = 1, .warm_up = 0};
  // The first steps of loops that run ahead begin with nothing under way.
  const std::int64_t warm_up = candidate.staleness + 1;
  return {.steps = warm_up + request.simulated_steps, .warm_up = warm_up};
}

result<Plan> make_plan(const PlanRequest& request) {
  TROUPE_TRY_VOID(request.check());
  Plan plan;
  if (has_experts(request)) {
    const std::size_t sizes = std::max<std::size_t>(1, request.experts_cut_tried.size());
    PlanRequest cut = request;
    for (const int ranks : request.experts_cut_tried) {
      cut.experts_cut = ranks;
      TROUPE_TRY_VOID(add_best(cut, std::max<std::size_t>(2, request.simulate_best / sizes), plan));
    }
  } else {
    TROUPE_TRY_VOID(add_best(request, request.simulate_best, plan));
  }
  if (plan.best.empty() && plan.refused.empty()) return fail(infeasible(request));
  if (plan.best.empty())
    return fail(ErrorCode::kInternal,
                "plan: the simulator refused all {} candidates, the first: {}", plan.refused.size(),
                plan.refused.front());
  TROUPE_TRY(RoleTimes times, RoleTimes::create(request));
  SetOptions options(times);
  plan.baselines = baselines_of(options, plan.refused);
  TROUPE_TRY_VOID(add_runnable(request, plan));
  // A usual placement may turn out better than all that were ranked before it.
  for (const Baseline& baseline : plan.baselines) {
    if (!baseline.run || baseline.run->objective >= plan.best.front().objective) continue;
    plan.best.insert(plan.best.begin(), *baseline.run);
  }
  return plan;
}

}  // namespace troupe::sim

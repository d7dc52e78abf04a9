#include "sim/plan/plan.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace troupe::sim {
namespace {

std::string layout_text(const PlanRequest& request, const Candidate& candidate) {
  std::string text;
  for (const PlanRole role : request.roles()) {
    if (role == PlanRole::kRollout) continue;
    const TrainLayout& layout = candidate.layouts[static_cast<std::size_t>(role)];
    const char* sharding = layout.sharding == TrainSharding::kFsdp ? " FSDP" : "";
    const std::string ep = layout.ep > 1 ? fmt::format(" ep {}", layout.ep) : "";
    fmt::format_to(std::back_inserter(text), "{} tp {} pp {} dp {}{}{}{}, ", plan_role_name(role),
                   layout.tp, layout.pp, layout.dp, ep, sharding,
                   layout.recompute == Recompute::kAll ? " recomputed" : "");
  }
  return text + fmt::format("{} engines of tp {}, {} KV tokens each", candidate.replicas,
                            candidate.engine.tp, candidate.kv_tokens);
}

double fullest(const PlannedRun& run) {
  double most = 0;
  for (const PoolMemory& pool : run.memory) most = std::max(most, pool.peak() / pool.device_bytes);
  return most;
}

void add_run(std::string& text, const PlanRequest& request, const PlannedRun& run,
             const std::string& name) {
  fmt::format_to(std::back_inserter(text),
                 "{}. {}\n   {:.1f} s a step (estimated {:.1f}), {:.0f} tokens/s/GPU, ${:.2f} a "
                 "step, ${:.3f} per million tokens, memory {:.0f} %{}{}\n   {}\n   {}\n",
                 name, run.candidate.describe(request), run.step_s, run.estimate.step_s,
                 run.tokens_per_s_device, run.cost_per_step, run.cost_per_mtokens,
                 100 * fullest(run),
                 run.candidate.mode == SimMode::kSynchronous
                     ? ""
                     : fmt::format(", mean staleness {:.2f}", run.staleness_mean),
                 run.candidate.is_runnable() ? "" : "; simulated only",
                 layout_text(request, run.candidate), run.why);
}

nlohmann::json to_object(const PlanRequest& request, const PlannedRun& run) {
  nlohmann::json sets = nlohmann::json::array();
  for (const PlannedSet& set : run.candidate.sets) {
    nlohmann::json roles = nlohmann::json::array();
    for (const PlanRole role : set.roles) roles.push_back(std::string(plan_role_name(role)));
    sets.push_back({{"roles", roles},
                    {"devices", set.devices},
                    {"device", request.offers[set.offer].device.name}});
  }
  nlohmann::json memory = nlohmann::json::array();
  for (const PoolMemory& pool : run.memory)
    memory.push_back(
        {{"set", pool.pool}, {"peak_bytes", pool.peak()}, {"device_bytes", pool.device_bytes}});
  return {{"sets", sets},
          {"mode", std::string(sim_mode_name(run.candidate.mode))},
          {"staleness", run.candidate.staleness},
          {"strategy", std::string(placement::strategy_name(run.candidate.strategy))},
          {"layouts", layout_text(request, run.candidate)},
          {"step_s", run.step_s},
          {"estimated_step_s", run.estimate.step_s},
          {"tokens_per_s_per_gpu", run.tokens_per_s_device},
          {"cost_per_step_usd", run.cost_per_step},
          {"cost_per_million_tokens_usd", run.cost_per_mtokens},
          {"staleness_mean", run.staleness_mean},
          {"preemptions", run.preemptions},
          {"phases_s", run.phases_s},
          {"memory", memory},
          {"runnable", run.candidate.is_runnable()},
          {"why", run.why},
          {"overrides", overrides_of(request, run.candidate)}};
}

/// The best run beside a usual placement.
std::string beside(const Plan& plan, const Baseline& baseline) {
  if (!baseline.run) return fmt::format("{}: does not fit", baseline.name);
  return fmt::format("{}: {:.1f} s a step, {:.2f} times the best", baseline.name,
                     baseline.run->step_s, baseline.run->step_s / plan.best.front().step_s);
}

}  // namespace

std::string to_text(const Plan& plan, const PlanRequest& request, std::size_t top) {
  std::string text =
      fmt::format("simulated, not measured; {} shapes searched, {} candidates simulated, by {}\n\n",
                  plan.shapes, plan.best.size(),
                  request.objective == PlanObjective::kTime ? "seconds a step" : "cost of a step");
  for (std::size_t i = 0; i < std::min(top, plan.best.size()); ++i)
    add_run(text, request, plan.best[i], std::to_string(i + 1));
  text += "\nbeside usual placements\n";
  for (const Baseline& baseline : plan.baselines) {
    text += "   " + beside(plan, baseline);
    if (baseline.run) text += "; " + baseline.run->why;
    text += '\n';
  }
  if (plan.runnable && !plan.best.front().candidate.is_runnable()) {
    text += "\nthe best that troupe train can run\n";
    add_run(text, request, *plan.runnable, "*");
  }
  for (const std::string& refused : plan.refused) text += "refused: " + refused + '\n';
  return text;
}

std::string to_json(const Plan& plan, const PlanRequest& request, std::size_t top) {
  nlohmann::json best = nlohmann::json::array();
  for (std::size_t i = 0; i < std::min(top, plan.best.size()); ++i)
    best.push_back(to_object(request, plan.best[i]));
  nlohmann::json baselines = nlohmann::json::array();
  for (const Baseline& baseline : plan.baselines) {
    nlohmann::json one = {{"name", baseline.name}};
    one["run"] = baseline.run ? to_object(request, *baseline.run) : nlohmann::json();
    baselines.push_back(std::move(one));
  }
  nlohmann::json all = {{"simulated", true},
                        {"shapes", plan.shapes},
                        {"best", best},
                        {"baselines", baselines},
                        {"refused", plan.refused}};
  all["runnable"] = plan.runnable ? to_object(request, *plan.runnable) : nlohmann::json();
  return all.dump(2) + '\n';
}

}  // namespace troupe::sim

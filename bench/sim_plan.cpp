// What a search over placements costs here: PPO with four models (policy with its rollout, critic,
// reference) on 128 devices, at whole nodes and at every multiple of 4 and of 1 devices.
//
//   bench_sim_plan [--check]
//
// With --check it ends non-zero when a bar is missed: each search within 10 s. What the simulator
// then takes for the best candidates is shown beside it.

#include "bench/elapsed.hpp"
#include "runtime/base/log.hpp"
#include "sim/catalogue/catalogue.hpp"
#include "sim/plan/plan.hpp"
#include "sim/plan/search.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>

namespace {

using namespace troupe;
using namespace troupe::sim;
using Steady = std::chrono::steady_clock;

PlanRequest four_models(int devices, int granularity) {
  PlanRequest request;
  SimJob& base = request.base;
  base.policy.model = *Catalogue::built_in().model("qwen2.5-32b");
  base.reference = base.policy;
  base.critic = base.policy;
  base.critic->model = *Catalogue::built_in().model("qwen2.5-7b");
  base.prompts_per_step = 512;
  base.group_size = 8;
  base.minibatch_prompts = 128;
  base.prompt_lengths.shape = FixedLength{512};
  base.prompt_lengths.tokens_max = 512;
  base.answer_lengths.shape = LogNormalLength{1'500, 0.8};
  base.answer_lengths.tokens_max = 8'192;
  request.offers = {
      {.name = "h100", .device = *Catalogue::built_in().device("h100"), .devices = devices}};
  request.granularity = granularity;
  return request;
}

}  // namespace

int main(int count, char** words) {
  bool check = false;
  CLI::App app("Cost of searching placements");
  app.add_flag("--check", check, "end non-zero when a bar is missed");
  CLI11_PARSE(app, count, words);
  log::set_up(log::Level::kWarn);
  bool held = true;
  for (const int granularity : {0, 4, 1}) {
    const PlanRequest request = four_models(128, granularity);
    const auto begin = Steady::now();
    auto times = RoleTimes::create(request);
    if (!times) return 1;
    SetOptions options(*times);
    const auto found = search(options);
    if (!found || found->best.empty()) return 1;
    held = held && bench::seconds_since(begin) <= 10;
    fmt::print("4 models, 128 devices, counts by {}: {:7.2f} s to search, {} looked at; {}\n",
               granularity == 0 ? "node" : std::to_string(granularity), bench::seconds_since(begin),
               found->looked_at, found->best.front().candidate.describe(request));
    std::fflush(stdout);
  }
  const PlanRequest request = four_models(128, 0);
  const auto begin = Steady::now();
  const auto plan = make_plan(request);
  if (!plan) {
    fmt::print("{}\n", plan.error().to_string());
    return 1;
  }
  const double plan_s = bench::seconds_since(begin);
  fmt::print("whole plan {:.2f} s, {} simulated\n{}", plan_s, plan->best.size(),
             to_text(*plan, request, 5));
  if (check && !held) fmt::print("missed: wanted 10 s\n");
  return check && !held ? 1 : 0;
}

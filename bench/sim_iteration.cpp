// What one simulated training iteration costs here: 1,024 devices and 8,192 trajectories, skipping
// steps and with one event per step, and the memory of a large cluster.
//
//   bench_sim_iteration [--check] [--per-token]
//
// With --check it ends non-zero when a bar is missed: ≤ 0.1 s an iteration when steps are skipped
// (the weight plan is made once, and shown apart), ≤ 20 s with one event per step (with
// --per-token), 10,240 devices within 2 GB.

#include "actors/algorithm/advantage.hpp"
#include "actors/loops/synchronous.hpp"
#include "bench/elapsed.hpp"
#include "sim/catalogue/catalogue.hpp"
#include "sim/world/sim_world.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <optional>

namespace {

using namespace troupe;
using namespace troupe::sim;
using Steady = std::chrono::steady_clock;

SimJob job_of(int devices, bool skip) {
  SimJob job;
  job.pools = {
      {.name = "all", .device = *Catalogue::built_in().device("h100"), .devices = devices}};
  job.policy.model = *Catalogue::built_in().model("qwen2.5-32b");
  job.policy.layout.tp = 8;
  job.policy.layout.dp = devices / 8;
  job.policy.layout.recompute = Recompute::kAll;
  job.rollout.layout.tp = 4;
  job.rollout.replicas = devices / 4;
  job.rollout.engine.skip = skip;
  job.prompts_per_step = 512;
  job.group_size = 16;
  job.minibatch_prompts = 512;
  job.prompt_lengths.shape = FixedLength{300};
  job.answer_lengths.shape = LogNormalLength{4000, 0.9};
  job.answer_lengths.tokens_max = 28'672;
  return job;
}

struct Cost {
  double plan_s = 0;
  double iteration_s = 0;
  std::uint64_t events = 0;
  double simulated_s = 0;
};

std::optional<Cost> measure(const SimJob& job, int iterations) {
  Cost cost;
  Simulation simulation;
  auto begin = Steady::now();
  auto world = SimWorld::create(simulation, job);
  if (!world) {
    fmt::print("{}\n", world.error().to_string());
    return std::nullopt;
  }
  cost.plan_s = bench::seconds_since(begin);
  actors::AdvantageStepOptions options;
  options.estimator = *actors::default_advantages().find("grpo");
  actors::AdvantageStep advantage(options);
  actors::Cast<SimWorld> cast = cast_of(**world, advantage);
  begin = Steady::now();
  for (int step = 1; step <= iterations; ++step) {
    auto done =
        simulation.run_task(actors::synchronous_step(cast, (*world)->prompts_of(step), step));
    if (!done) {
      fmt::print("{}\n", done.error().to_string());
      return std::nullopt;
    }
  }
  cost.iteration_s = bench::seconds_since(begin) / iterations;
  cost.events = simulation.events() / static_cast<std::uint64_t>(iterations);
  cost.simulated_s = seconds(simulation.now().time_since_epoch()) / iterations;
  return cost;
}

}  // namespace

int main(int count, char** words) {
  bool check = false;
  bool per_token = false;
  CLI::App app("Cost of simulated iterations");
  app.add_flag("--check", check, "end non-zero when a bar is missed");
  app.add_flag("--per-token", per_token, "also with one event per step");
  CLI11_PARSE(app, count, words);
  bool held = true;
  const auto show = [](const char* name, const Cost& cost) {
    fmt::print(
        "{:<34} {:8.3f} s an iteration, {:9} events, {:6.3f} s to plan, {:7.1f} s simulated\n",
        name, cost.iteration_s, cost.events, cost.plan_s, cost.simulated_s);
  };
  const auto skipping = measure(job_of(1'024, true), 5);
  if (!skipping) return 1;
  show("1,024 devices, skipping", *skipping);
  held = held && skipping->iteration_s <= 0.1;
  if (per_token) {
    const auto slow = measure(job_of(1'024, false), 1);
    if (!slow) return 1;
    show("1,024 devices, one event per step", *slow);
    held = held && slow->iteration_s <= 20;
  }
  const auto large = measure(job_of(10'240, true), 1);
  if (!large) return 1;
  show("10,240 devices, skipping", *large);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double gigabytes = static_cast<double>(usage.ru_maxrss) * 1024 / 1e9;
  fmt::print("largest resident size {:.2f} GB\n", gigabytes);
  held = held && gigabytes <= 2;
  if (check && !held) fmt::print("missed: wanted 0.1 s, 20 s per token, 2 GB\n");
  return check && !held ? 1 : 0;
}

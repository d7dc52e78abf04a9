// What simulated asynchronous iterations cost here: the loop program, the staleness ledger and the
// dispatcher of real runs, over engines that skip steps.
//
//   bench_sim_async [--check] [--steps N] [--mode async] [--prompts 128] [--group 8]
//
// 64 H100: 32 train Qwen2.5-7B, 32 engines generate, η = 1, answers of 4,000 tokens in the median
// and at most 28,672. A step has 128 prompts with 8 samples each. With --check it ends non-zero
// when 1,000 iterations take more than 60 s of processor time.

#include "sim/catalogue/catalogue.hpp"
#include "sim/world/simulate.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <string>

namespace {

using namespace troupe;
using namespace troupe::sim;

constexpr double kWantedSeconds = 60;
constexpr std::int64_t kWantedSteps = 1'000;

SimJob job_of(std::int64_t prompts, std::int64_t group) {
  const DeviceSpec device = *Catalogue::built_in().device("h100");
  SimJob job;
  job.pools = {{.name = "train", .device = device, .devices = 32},
               {.name = "rollout", .device = device, .devices = 32}};
  job.policy.model = *Catalogue::built_in().model("qwen2.5-7b");
  job.policy.layout.tp = 4;
  job.policy.layout.dp = 8;
  job.policy.layout.recompute = Recompute::kAll;
  job.rollout.pool = 1;
  job.rollout.replicas = 32;
  job.prompts_per_step = prompts;
  job.group_size = group;
  job.minibatch_prompts = prompts;
  job.prompt_lengths.shape = FixedLength{300};
  job.answer_lengths.shape = LogNormalLength{4000, 0.9};
  job.answer_lengths.tokens_max = 28'672;
  return job;
}

/// Of this process's one thread: other work on the machine does not count.
double used_s() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

int main(int count, char** words) {
  bool check = false;
  std::int64_t steps = kWantedSteps;
  std::int64_t prompts = 128;
  std::int64_t group = 8;
  std::string mode = "async";
  CLI::App app("Cost of simulated asynchronous iterations");
  app.add_flag("--check", check, "end non-zero when the bar is missed");
  app.add_option("--steps", steps, "iterations")->check(CLI::PositiveNumber);
  app.add_option("--mode", mode, "sync, one_step_off, async or pipelined");
  app.add_option("--prompts", prompts, "of a step")->check(CLI::PositiveNumber);
  app.add_option("--group", group, "samples of a prompt")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, count, words);
  SimJob job = job_of(prompts, group);
  const auto parsed = sim_mode_from_name(mode);
  if (!parsed) {
    fmt::print("{}\n", parsed.error().to_string());
    return 1;
  }
  job.mode = *parsed;
  job.steps = steps;
  SimulateOptions options;
  options.keep_phases = false;
  const double begin = used_s();
  const auto run = simulate(job, options);
  const double took = used_s() - begin;
  if (!run) {
    fmt::print("{}\n", run.error().to_string());
    return 1;
  }
  double idle = 0;
  double span = 0;
  double samples = 0;
  for (const SimStep& step : run->steps) {
    span += step.span_s;
    samples += static_cast<double>(step.samples);
    idle += step.pools.back().idle_share;
  }
  const auto made = static_cast<double>(run->steps.size());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print(
      "{} {}: {:.0f} iterations in {:.1f} s, {:.2f} ms each; {:.0f} samples and {:.0f} events an "
      "iteration, {:.1f} us a sample; {:.1f} s simulated each, rollout idle {:.0f} %; {:.2f} GB\n",
      mode, job.group_size * job.prompts_per_step, made, took, 1e3 * took / made, samples / made,
      static_cast<double>(run->events) / made, 1e6 * took / samples, span / made, 100 * idle / made,
      static_cast<double>(usage.ru_maxrss) * 1024 / 1e9);
  const double thousand = took / made * static_cast<double>(kWantedSteps);
  if (check && thousand > kWantedSeconds) {
    fmt::print("missed: {} iterations take {:.1f} s, wanted {:.0f} s\n", kWantedSteps, thousand,
               kWantedSeconds);
    return 1;
  }
  return 0;
}

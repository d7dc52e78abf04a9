// The simulator predicts this project's own runs on CPUs: one synchronous run is measured, the few
// constants of software are calibrated by its metrics.jsonl, and step times of other runs, measured
// here and now, are predicted within 15 %.
//
// Samples take declared times (rollout.simulated_delay), which dominate: what the machine itself
// computes is a few hundredths of a step, so that its noise is small. Durations are drawn by
// different keys on both sides; their spread is small and there are many steps.

#include "sim/calibration/from_metrics.hpp"
#include "sim/catalogue/catalogue.hpp"
#include "sim/world/simulate.hpp"
#include "tests/apps/training/beside/train_case.hpp"

#include <gtest/gtest.h>

#include <numeric>

namespace troupe::apps {
namespace {

using sim::Constant;
using testing::Words;

constexpr double kSigma = 0.3;
constexpr std::int64_t kMeasured = 18;

/// A token stands for a declared millisecond: the engine's step takes that, and its device nothing.
sim::SimJob job_of(double median_s, sim::SimMode mode) {
  sim::SimJob job;
  sim::DeviceSpec device = *sim::Catalogue::built_in().device("h200");
  device.name = "declared";
  device.flops = device.memory_rate = device.nvlink_rate = device.pcie_rate = device.nic_rate =
      1e18;
  job.mode = mode;
  job.pools = {{.name = "trainer", .device = device, .devices = 1}};
  job.policy.model = *sim::Catalogue::built_in().model("qwen2.5-0.5b");
  job.rollout.layout.profile.points = {{.sequences = 1, .step_s = 1e-3}};
  job.rollout.engine.sequences_max = 6;
  if (mode != sim::SimMode::kSynchronous) {
    job.pools.push_back({.name = "rollout", .device = device, .devices = 1});
    job.rollout.pool = 1;
  }
  job.prompts_per_step = 4;
  job.group_size = 4;
  job.minibatch_prompts = 4;
  job.reward.sample_s = 0;
  job.prompt_lengths.shape = sim::FixedLength{1};
  job.answer_lengths.shape = sim::LogNormalLength{1000 * median_s, kSigma};
  job.answer_lengths.group_share = 0;
  job.answer_lengths.tokens_max = 100'000;
  const std::pair<Constant, double> declared[] = {{Constant::kPassHost, 0.02},
                                                  {Constant::kMinibatchHost, 0.05},
                                                  {Constant::kTransitionHost, 0.01},
                                                  {Constant::kIterationHost, 0.01}};
  for (const auto& [constant, value] : declared)
    EXPECT_TRUE(job.constants.set(constant, value).has_value());
  return job;
}

class PredictedRun : public testing::TrainCase {
 protected:
  std::vector<sim::MeasuredStep> measure(const std::string& name, double median_s, Words more) {
    more.insert(more.end(),
                {fmt::format("actor_rollout_ref.rollout.simulated_delay.median_s={}", median_s),
                 fmt::format("actor_rollout_ref.rollout.simulated_delay.sigma={}", kSigma),
                 fmt::format("trainer.total_training_steps={}", kMeasured)});
    const auto done = run(name, more);
    EXPECT_TRUE(done.has_value()) << done.error().to_string();
    const auto steps = sim::read_metrics((folder_ / name / "metrics.jsonl").string());
    EXPECT_TRUE(steps.has_value()) << steps.error().to_string();
    return steps.value_or(std::vector<sim::MeasuredStep>());
  }

  /// Mean of the steps behind the first two, while which a loop fills.
  static double step_s(const std::vector<sim::MeasuredStep>& steps) {
    double sum = 0;
    for (std::size_t i = 2; i < steps.size(); ++i) sum += steps[i].phase_s("step");
    return sum / static_cast<double>(steps.size() - 2);
  }
};

double predicted_s(sim::SimJob job, const sim::Constants& constants) {
  job.constants = constants;
  job.steps = 100;
  const auto run = sim::simulate(job, {.keep_phases = false});
  EXPECT_TRUE(run.has_value()) << run.error().to_string();
  if (!run) return 0;
  double sum = 0;
  for (std::size_t i = 2; i < run->steps.size(); ++i) sum += run->steps[i].span_s;
  return sum / static_cast<double>(run->steps.size() - 2);
}

TEST_F(PredictedRun, StepTimesOfOtherRunsAreWithinFifteenPercent) {
  const sim::SimJob base = job_of(0.1, sim::SimMode::kSynchronous);
  const auto measured = measure("calibration", 0.1, {});
  ASSERT_EQ(measured.size(), static_cast<std::size_t>(kMeasured));
  const sim::CalibrateOptions options{
      .constants = {Constant::kPassHost, Constant::kMinibatchHost, Constant::kTransitionHost,
                    Constant::kIterationHost},
      .simulated_steps = 50};
  const auto fitted = sim::calibrate(base, measured, options);
  ASSERT_TRUE(fitted.has_value()) << fitted.error().to_string();

  struct Case {
    const char* name;
    double median_s;
    sim::SimMode mode;
    Words words;
  };
  const Case cases[] = {
      {"sync, longer samples", 0.2, sim::SimMode::kSynchronous, {}},
      {"async", 0.15, sim::SimMode::kAsynchronous, {"trainer.mode=async", "async.staleness=1"}},
  };
  for (const Case& one : cases) {
    const double real = step_s(measure(one.name, one.median_s, one.words));
    const double simulated = predicted_s(job_of(one.median_s, one.mode), fitted->constants);
    fmt::print("{}: measured {:.3f} s, predicted {:.3f} s, {:+.1f} %\n", one.name, real, simulated,
               100 * (simulated / real - 1));
    EXPECT_NEAR(simulated / real, 1, 0.15) << one.name << "\n" << fitted->to_text();
  }
}

}  // namespace
}  // namespace troupe::apps

// Calibration from a run's metrics: constants come back from the metrics of simulated runs that
// were made with known ones; bad files are refused by file and line.

#include "sim/calibration/from_metrics.hpp"

#include "sim/catalogue/catalogue.hpp"
#include "sim/engine/random.hpp"
#include "sim/world/simulate.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

namespace troupe::sim {
namespace {

using testing::HasSubstr;

SimJob small_job() {
  SimJob job;
  job.pools = {{.name = "all", .device = *Catalogue::built_in().device("h100"), .devices = 8}};
  job.policy.model = *Catalogue::built_in().model("qwen2.5-1.5b");
  job.policy.layout.dp = 8;
  job.rollout.replicas = 8;
  job.prompts_per_step = 32;
  job.group_size = 8;
  job.minibatch_prompts = 8;
  job.prompt_lengths.shape = FixedLength{200};
  job.answer_lengths.shape = LogNormalLength{600, 0.5};
  job.answer_lengths.tokens_max = 2048;
  return job;
}

/// The lines that a real run of `job` would write, if it took what the models say.
std::string metrics_of(SimJob job, std::int64_t steps) {
  job.steps = steps;
  const auto run = simulate(job, {.keep_phases = false});
  EXPECT_TRUE(run) << run.error().to_string();
  std::string text = "{\"step\":0,\"timing_s/testing\":0.03}\n";
  for (const SimStep& step : run->steps) {
    fmt::format_to(std::back_inserter(text), "{{\"step\":{},\"timing_s/step\":{}", step.step,
                   step.span_s);
    for (const auto& [phase, span] : step.phases_s)
      fmt::format_to(std::back_inserter(text), ",\"timing_s/{}\":{}", phase, span);
    text += "}\n";
  }
  return text;
}

TEST(Calibrate, FindsTheConstantsOfARunFromItsMetrics) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    SimJob truth = small_job();
    const auto draw = [&](Constant constant, double low, double high) {
      const double u = uniform({seed, static_cast<std::uint64_t>(constant), Purpose::kReward, 0});
      ASSERT_TRUE(truth.constants.set(constant, low * std::pow(high / low, u)));
    };
    draw(Constant::kTrainShare, 0.45, 0.9);
    draw(Constant::kDecodeStepHost, 4e-4, 8e-3);
    draw(Constant::kTransitionHost, 0.5, 8);
    draw(Constant::kIterationHost, 0.5, 20);
    const auto steps = parse_metrics(metrics_of(truth, 1), "run");
    ASSERT_TRUE(steps) << steps.error().to_string();
    const CalibrateOptions options{.constants = {Constant::kTrainShare, Constant::kDecodeStepHost,
                                                 Constant::kTransitionHost,
                                                 Constant::kIterationHost}};
    const auto fitted = calibrate(small_job(), *steps, options);
    ASSERT_TRUE(fitted) << fitted.error().to_string();
    EXPECT_LT(fitted->worst_error(), 0.01) << fitted->to_text();
    for (const FittedConstant& one : fitted->fitted) {
      EXPECT_NEAR(one.value / truth.constants[one.constant], 1, 0.05) << fitted->to_text();
      EXPECT_TRUE(one.identified) << fitted->to_text();
    }
  }
}

TEST(Calibrate, NamesConstantsThatTheRunSaysNothingOf) {
  const auto steps = parse_metrics(metrics_of(small_job(), 1), "run");
  ASSERT_TRUE(steps);
  const CalibrateOptions options{.constants = {Constant::kTrainShare, Constant::kExpertShare}};
  const auto fitted = calibrate(small_job(), *steps, options);
  ASSERT_TRUE(fitted) << fitted.error().to_string();
  EXPECT_TRUE(fitted->fitted[0].identified) << fitted->to_text();
  EXPECT_FALSE(fitted->fitted[1].identified) << fitted->to_text();
}

TEST(Calibrate, LeavesTheFirstStepOut) {
  const auto steps = parse_metrics(
      "{\"step\":1,\"timing_s/step\":900,\"timing_s/gen\":800}\n"
      "{\"step\":2,\"timing_s/step\":30,\"timing_s/gen\":20}\n"
      "{\"step\":3,\"timing_s/step\":31,\"timing_s/gen\":21}\n",
      "run");
  ASSERT_TRUE(steps);
  const auto fitted = calibrate(small_job(), *steps);
  ASSERT_TRUE(fitted) << fitted.error().to_string();
  for (const FitResidual& one : fitted->residuals) EXPECT_LT(one.measured_s, 40);
}

TEST(Calibrate, ReadsTheFileAndRefusesBadLinesByNumber) {
  const std::string good = "{\"step\":1,\"timing_s/step\":2.5,\"reward\":1}\n";
  const std::string file =
      fmt::format("{}/troupe_metrics_{}.jsonl", testing::TempDir(), ::getpid());
  std::ofstream(file) << good;
  const auto read = read_metrics(file);
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->at(0).phase_s("step"), 2.5);
  EXPECT_EQ(read->at(0).phase_s("gen"), 0);
  std::remove(file.c_str());
  EXPECT_EQ(read_metrics(file).error().code, ErrorCode::kNotFound);

  const std::pair<const char*, const char*> bad[] = {
      {"[1]", "run:2: no JSON object"},
      {"{\"step\":", "run:2: no JSON object"},
      {"{\"timing_s/step\":1}", "run:2: step is missing"},
      {"{\"step\":-1}", "run:2: step is -1"},
      {"{\"step\":2,\"timing_s/gen\":-3}", "timing_s/gen is -3"},
      {"{\"step\":2,\"timing_s/gen\":\"x\"}", "timing_s/gen is \"x\""}};
  for (const auto& [line, says] : bad) {
    const auto refused = parse_metrics(good + line + "\n", "run");
    ASSERT_FALSE(refused) << line;
    EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(refused.error().message, HasSubstr(says));
  }
  EXPECT_THAT(parse_metrics("{\"step\":0}\n", "run").error().message, HasSubstr("no line tells"));
  EXPECT_THAT(calibrate(small_job(), {}).error().message, HasSubstr("0 measured steps"));
}

}  // namespace
}  // namespace troupe::sim

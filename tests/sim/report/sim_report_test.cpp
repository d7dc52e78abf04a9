// What a report says of a simulated run.
//
// Numbers follow from the outcome they are made of; the spread and the sensitivity are judged by
// runs that the test makes itself with the constants moved; the same scenario gives the same bytes
// with one thread and with several; a trace parses and has a row for every part of the run; a page
// needs no other file; two runs differ in the part that was changed.

#include "sim/report/sim_report.hpp"

#include "sim/report/compare.hpp"
#include "sim/report/report_files.hpp"
#include "tests/support/small_run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace troupe::sim {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using troupe::testing::small_scenario;

const std::vector<std::string> kAsync{"trainer.mode=async", "trainer.rollout_devices=4",
                                      "async.staleness=2", "simulation.steps=4",
                                      "simulation.warm_up_steps=1"};

SimReport report_of(const std::vector<std::string>& overrides, ReportOptions options = {}) {
  auto scenario = small_scenario(overrides);
  EXPECT_TRUE(scenario) << scenario.error().to_string();
  auto report = make_report(*scenario, options);
  EXPECT_TRUE(report) << report.error().to_string();
  return *std::move(report);
}

SimReport quick_report(const std::vector<std::string>& overrides) {
  return report_of(overrides, {.name = "quick", .spread = false, .trace = true, .threads = 1});
}

TEST(SimReport, MeansAreOfTheStepsBehindTheWarmUp) {
  const SimReport report = quick_report({"simulation.steps=3", "simulation.warm_up_steps=1"});
  const auto& steps = report.outcome.steps;
  ASSERT_EQ(steps.size(), 3U);
  const double span = (steps[1].span_s + steps[2].span_s) / 2;
  EXPECT_NEAR(report.numbers.at("step_s").value, span, 1e-12 * span);
  const double tokens = steps[1].prompt_tokens + steps[1].answer_tokens + steps[2].prompt_tokens +
                        steps[2].answer_tokens;
  EXPECT_NEAR(report.numbers.at("tokens_per_s_device").value, tokens / (2 * span) / 8,
              1e-9 * tokens);
  // 8 H100 at 4 $ an hour.
  EXPECT_NEAR(report.numbers.at("cost_per_step").value, 8 * 4.0 / 3600 * span, 1e-9);
  EXPECT_NEAR(report.numbers.at("cost_per_million_tokens").value,
              8 * 4.0 / 3600 * span / (tokens / 2) * 1e6, 1e-9 * span);
}

TEST(SimReport, PartsOfASynchronousStepAddUpToIt) {
  const SimReport report = quick_report({});
  double parts = 0;
  for (const auto& [name, spread] : report.numbers)
    if (name.starts_with("parts/")) parts += spread.value;
  EXPECT_NEAR(parts, report.numbers.at("step_s").value, 1e-6 * parts);
}

TEST(SimReport, IdleSharesAreThoseOfTheirCauses) {
  for (const auto& overrides : {std::vector<std::string>{}, kAsync}) {
    for (const PoolUse& pool : quick_report(overrides).pools) {
      double idle = 0;
      double busy = 0;
      for (const auto& [cause, share] : pool.idle_by) idle += share;
      for (const auto& [who, share] : pool.busy_by) busy += share;
      EXPECT_NEAR(idle, pool.idle_share, 1e-9) << pool.pool;
      EXPECT_NEAR(busy + idle, 1, 1e-9) << pool.pool;
    }
  }
}

TEST(SimReport, TheSameScenarioGivesTheSameBytesWithAnyNumberOfThreads) {
  auto fewer = kAsync;
  fewer.emplace_back("data.train_batch_size=4");
  const std::string one = report_json(report_of(fewer, {.threads = 1}));
  const std::string again = report_json(report_of(fewer, {.threads = 1}));
  const std::string four = report_json(report_of(fewer, {.threads = 4}));
  EXPECT_EQ(one, again);
  EXPECT_EQ(one, four);
}

TEST(SimReport, AnotherSeedGivesAnotherRun) {
  const SimReport a = quick_report({"simulation.seed=1"});
  const SimReport b = quick_report({"simulation.seed=2"});
  EXPECT_NE(a.outcome.digest, b.outcome.digest);
}

TEST(SimReport, TheSpreadHoldsMostOfTheDrawnRuns) {
  const SimReport report = report_of({"simulation.samples=12"});
  EXPECT_EQ(report.samples, 12);
  const Spread& step = report.numbers.at("step_s");
  EXPECT_LT(step.p10, step.p90);
  const auto text = report_text(report);
  EXPECT_THAT(text, HasSubstr("12 runs"));
}

TEST(SimReport, AGivenConstantIsNotDrawnAndSwingsNothing) {
  std::vector<std::string> all{"simulation.samples=4"};
  for (const ConstantInfo& info : constant_table())
    all.push_back(fmt::format("simulation.constants.{}={}", info.name, info.prior));
  const SimReport report = report_of(all);
  EXPECT_TRUE(report.sensitivity.empty());
  // What is left is the seeds'.
  const Spread& step = report.numbers.at("step_s");
  EXPECT_LT(step.p90 / step.p10, 1.5);
}

TEST(SimReport, SensitivityIsWhatARunWithTheConstantMovedShows) {
  const SimReport report = report_of({});
  ASSERT_GE(report.sensitivity.size(), 3U);
  const Sensitivity& most = report.sensitivity.front();
  for (const Sensitivity& one : report.sensitivity) EXPECT_LE(one.swing_s, most.swing_s);
  const SimReport moved = quick_report(
      {fmt::format("simulation.constants.{}={}", info_of(most.constant).name, most.high)});
  ASSERT_TRUE(most.step_at_high_s);
  EXPECT_NEAR(moved.numbers.at("step_s").value, *most.step_at_high_s, 1e-9 * *most.step_at_high_s);
}

TEST(SimReport, CountsDrawnRunsThatDoNotFit) {
  // Half of the memory for the engine is just enough; less of it is drawn too.
  const SimReport report = report_of({"simulation.samples=20", "simulation.model=qwen2.5-14b",
                                      "actor_rollout_ref.actor.strategy=fsdp",
                                      "actor_rollout_ref.actor.megatron.use_distributed_optimizer="
                                      "false",
                                      "actor_rollout_ref.actor.use_kl_loss=true",
                                      "actor_rollout_ref.rollout.tensor_model_parallel_size=2"});
  EXPECT_GT(report.samples_failed, 0);
  EXPECT_THAT(report_text(report), HasSubstr("do not fit"));
}

TEST(ReportJson, HasTheFieldsOfTheDocs) {
  const json out = json::parse(report_json(report_of(kAsync)));
  EXPECT_TRUE(out.at("simulated").get<bool>());
  for (const char* name : {"step_s", "tokens_per_s", "tokens_per_s_device", "update_mfu", "run_mfu",
                           "cost_per_step", "cost_per_million_tokens"}) {
    const json& number = out.at("numbers").at(name);
    EXPECT_LE(number.at("p10"), number.at("p90")) << name;
    EXPECT_GT(number.at("value"), 0.0) << name;
  }
  for (const char* name : {"name",           "mode",        "model",
                           "devices",        "placement",   "not_simulated",
                           "parts_s",        "pools",       "memory",
                           "kv_pool_tokens", "staleness",   "versions_crossed",
                           "bytes_by_link",  "preemptions", "recomputed_tokens",
                           "failures",       "groups",      "samples",
                           "sensitivity",    "constants",   "steps",
                           "seed",           "digest",      "events"})
    EXPECT_TRUE(out.contains(name)) << name;
  EXPECT_EQ(out.at("mode"), "async");
  EXPECT_EQ(out.at("devices"), 12);
  EXPECT_EQ(out.at("constants").size(), kConstants);
  EXPECT_GT(out.at("bytes_by_link").at("network"), 0.0) << "weights cross nodes to other devices";
  std::int64_t groups = 0;
  for (const auto& [age, count] : out.at("staleness").items()) {
    EXPECT_LE(std::stoi(age), 2);
    groups += count.get<std::int64_t>();
  }
  EXPECT_EQ(groups, 3 * 16) << "all groups of the steps that count";
}

TEST(ReportTrace, HasNodesTrajectoriesVersionsAndCaches) {
  auto overrides = kAsync;
  overrides.emplace_back("simulation.failures.rollout_mtbf_s=400");
  const SimReport report = quick_report(overrides);
  const auto trace = trace_of(report);
  const json events = json::parse(trace->to_json()).at("traceEvents");
  std::set<std::string> processes;
  std::set<std::string> counters;
  for (const json& event : events) {
    if (event.at("ph") == "M" && event.at("name") == "process_name")
      processes.insert(event.at("args").at("name"));
    if (event.at("ph") == "C") counters.insert(event.at("name"));
  }
  EXPECT_THAT(processes, Contains("policy node 0"));
  EXPECT_THAT(processes, Contains("rollout node 0"));
  EXPECT_THAT(processes, Contains("rollout replica 0"));
  EXPECT_THAT(processes, Contains("weights"));
  EXPECT_THAT(processes, Contains("loop"));
  EXPECT_THAT(counters, Contains("KV tokens"));
  EXPECT_THAT(counters, Contains("version"));
  EXPECT_EQ(trace->dropped(), 0);
}

TEST(ReportTrace, RowsOfATrajectoryDoNotOverlap) {
  const auto trace = trace_of(quick_report(kAsync));
  std::map<runtime::TracePlace, TimePoint> free;
  int trajectories = 0;
  for (const runtime::TraceSpan& span : trace->spans()) {
    if (span.category != "trajectory") continue;
    ++trajectories;
    EXPECT_GE(span.begin, free[span.place]) << span.place.process << " " << span.place.thread;
    free[span.place] = span.end;
  }
  EXPECT_GE(trajectories, 4 * 16 * 4);
}

TEST(ReportPage, NeedsNoOtherFile) {
  const std::string page = report_page(quick_report(kAsync), "simulation: {device: h100}\n");
  EXPECT_THAT(page, HasSubstr("<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("no device was used"));
  EXPECT_THAT(page, HasSubstr("Timeline"));
  EXPECT_THAT(page, HasSubstr("policy node 0"));
  EXPECT_THAT(page, HasSubstr("device: h100"));
  for (const char* outside : {"href=", "src=", "url(", "<script", "<link", "@import"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

TEST(Comparison, NamesThePartThatDiffers) {
  const SimReport a = quick_report({});
  const SimReport b = quick_report({"actor_rollout_ref.actor.ppo_epochs=3"});
  const auto numbers = compared_numbers(a, b);
  EXPECT_EQ(numbers[0].name, "step_s");
  EXPECT_EQ(numbers[1].name, "parts/update_actor") << "what differs most comes first";
  EXPECT_THAT(reasons(a, b).front(), HasSubstr("update_actor +"));
  const json out = json::parse(comparison_json(a, b));
  EXPECT_GT(out.at("ratios").at("step_s"), 1.0);
  EXPECT_THAT(comparison_text(a, b), HasSubstr("B / A"));
}

TEST(Comparison, SaysThatEqualRunsAreEqual) {
  const SimReport a = quick_report({});
  EXPECT_THAT(reasons(a, a).front(), HasSubstr("as long as A"));
}

}  // namespace
}  // namespace troupe::sim

// `troupe simulate` as a program: every example configuration runs and says the same twice, files
// are written, and a wrong command line or configuration ends with code 2 and one line that says
// why.

#include "tests/support/simulated_example.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troupe::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class SimulateCommand : public SimulatedExample {
 protected:
  Said run(std::vector<std::string> words) {
    words.insert(words.begin(), "simulate");
    return run_troupe(std::move(words));
  }
};

/// The same configuration with less of everything.
const std::vector<std::string> kLess{"data.train_batch_size=16",
                                     "actor_rollout_ref.actor.ppo_mini_batch_size=16",
                                     "simulation.steps=2",
                                     "simulation.warm_up_steps=1",
                                     "--quick",
                                     "--json"};

std::vector<std::string> with_less(std::vector<std::string> words) {
  words.insert(words.end(), kLess.begin(), kLess.end());
  return words;
}

TEST_F(SimulateCommand, RunsEveryExampleAndSaysTheSameTwice) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(example(""))) {
    ++count;
    const Said first = run(with_less({entry.path().string()}));
    ASSERT_EQ(first.code, 0) << entry.path() << first.err;
    const json out = json::parse(first.out);
    EXPECT_GT(out.at("numbers").at("step_s").at("value"), 0.0) << entry.path();
    EXPECT_EQ(first.err, "") << entry.path();
    EXPECT_EQ(run(with_less({entry.path().string()})).out, first.out) << entry.path();
  }
  EXPECT_GE(count, 4);
}

TEST_F(SimulateCommand, WritesTraceAndPage) {
  const std::string trace = (folder_ / "trace.json").string();
  const std::string page = (folder_ / "page.html").string();
  const Said ended = run(with_less({example("async_7b.yaml"), "--trace", trace, "--html", page}));
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_GT(json::parse(read_file(trace)).at("traceEvents").size(), 100U);
  EXPECT_THAT(read_file(page), HasSubstr("Timeline"));
}

TEST_F(SimulateCommand, ComparesTwoRuns) {
  const Said ended = run({"--compare", example("sync_7b.yaml"), example("async_7b.yaml"), "--quick",
                          "data.train_batch_size=16",
                          "actor_rollout_ref.actor.ppo_mini_batch_size=16", "simulation.steps=4"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("B / A"));
  EXPECT_THAT(ended.out, HasSubstr("B takes"));
}

TEST_F(SimulateCommand, ListsWhatTheCatalogueHas) {
  const Said ended = run({"--catalogue"});
  EXPECT_EQ(ended.code, 0);
  for (const char* name : {"device    gb200", "model     kimi-k2", "constant  gemm_share"})
    EXPECT_THAT(ended.out, HasSubstr(name));
}

TEST_F(SimulateCommand, EndsWithCodeTwoAndTheReason) {
  const struct {
    std::vector<std::string> words;
    std::string said;
  } bad[] = {
      {{example("sync_7b.yaml"), "simulation.device=h10"}, "did you mean"},
      {{example("sync_7b.yaml"), "simulation.stepz=3"}, "did you mean simulation.steps"},
      {{example("sync_7b.yaml"), "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=3"},
       "cannot be cut"},
      {{"--compare", example("sync_7b.yaml")}, "--compare"},
      {{"--compare", example("sync_7b.yaml"), example("sync_7b.yaml"), example("sync_7b.yaml")},
       "At Most 2 required"},
      {{"--compare", example("sync_7b.yaml"), example("sync_7b.yaml"), "--html", "x.html"},
       "--html"},
      {{example("sync_7b.yaml"), "--threads", "-1"}, "--threads"},
      {{}, "simulation.lengths.response.shape"},
  };
  for (const auto& tried : bad) {
    const Said ended = run(tried.words);
    EXPECT_EQ(ended.code, 2) << tried.said;
    EXPECT_THAT(ended.err + ended.out, HasSubstr(tried.said));
  }
}

TEST_F(SimulateCommand, EndsWithCodeOneWhereAFileIsMissing) {
  const Said ended = run({"/nowhere/run.yaml"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("/nowhere/run.yaml"));
  const Said metrics = run({example("sync_7b.yaml"), "--calibrate", "/nowhere/metrics.jsonl"});
  EXPECT_EQ(metrics.code, 1);
  EXPECT_THAT(metrics.err, HasSubstr("/nowhere/metrics.jsonl"));
}

}  // namespace
}  // namespace troupe::testing

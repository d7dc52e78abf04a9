// `troupe plan` as a program: what it writes is accepted by `troupe simulate`, which shares its
// checks with `troupe train`, and takes what the plan said; what cannot be ends with one line that
// says why.

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

class PlanCommand : public SimulatedExample {
 protected:
  Said plan(const std::string& config, std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"plan", example(config), "--json", "--simulate", "2", "data.train_batch_size=32",
                  "actor_rollout_ref.actor.ppo_mini_batch_size=32"});
    return run_troupe(std::move(words));
  }
};

TEST_F(PlanCommand, WritesAConfigurationThatTakesWhatItSays) {
  for (const std::string config : {"sync_7b.yaml", "ppo_sets_13b.yaml"}) {
    SCOPED_TRACE(config);
    const std::string out = (folder_ / ("best_" + config)).string();
    const Said said =
        plan(config, {"--mode", "sync", "--out", out, "simulation.failures.rollout_mtbf_s=0"});
    ASSERT_EQ(said.code, 0) << said.err;
    const json plan = json::parse(said.out);
    const json& best = plan.at("runnable");
    ASSERT_TRUE(best.is_object()) << said.out;
    EXPECT_TRUE(best.at("runnable").get<bool>());
    const Said again = run_troupe({"simulate", out, "--quick", "--json"});
    ASSERT_EQ(again.code, 0) << again.err;
    const double simulated = json::parse(again.out).at("numbers").at("step_s").at("value");
    const double planned = best.at("step_s");
    // The same step; its report shares links flow by flow.
    EXPECT_GE(simulated, planned - 1e-6);
    EXPECT_NEAR(planned, simulated, 0.03 * simulated);
  }
}

TEST_F(PlanCommand, SaysTheStepThatSimulateSaysOfItsFileInEveryMode) {
  for (const std::string mode : {"sync", "one_step_off", "async", "pipelined"}) {
    SCOPED_TRACE(mode);
    const std::string out = (folder_ / (mode + ".yaml")).string();
    const Said said = plan("async_7b.yaml",
                           {"--mode", mode, "--out", out, "simulation.failures.rollout_mtbf_s=0"});
    ASSERT_EQ(said.code, 0) << said.err;
    const json best = json::parse(said.out).at("runnable");
    ASSERT_TRUE(best.is_object()) << said.out;
    const Said again = run_troupe({"simulate", out, "--quick", "--json"});
    ASSERT_EQ(again.code, 0) << again.err;
    const double simulated = json::parse(again.out).at("numbers").at("step_s").at("value");
    const double planned = best.at("step_s");
    EXPECT_NEAR(planned, simulated, 0.03 * simulated);
  }
}

TEST_F(PlanCommand, SaysWhatIsMissingForAModelThatDoesNotFit) {
  const Said said = plan("sync_7b.yaml", {"simulation.model=llama-70b", "--gpus", "8"});
  EXPECT_EQ(said.code, 1);
  EXPECT_THAT(said.err, HasSubstr("nothing fits 8 h100"));
  EXPECT_THAT(said.err, HasSubstr("would do"));
}

TEST_F(PlanCommand, SearchesThousandsOfDevices) {
  const Said said = plan("sync_7b.yaml", {"--gpus", "2048", "--mode", "sync"});
  ASSERT_EQ(said.code, 0) << said.err;
  EXPECT_GT(json::parse(said.out).at("best").size(), 0U) << said.out;
}

TEST_F(PlanCommand, RefusesWordsThatAreNoDevicesOrModes) {
  EXPECT_THAT(plan("sync_7b.yaml", {"--gpus", "h1000:8"}).err, HasSubstr("h100"));
  EXPECT_THAT(plan("sync_7b.yaml", {"--gpus", "many"}).err, HasSubstr("nearest possible is 1"));
  for (const std::string many : {"65537", "1000000", "99999999999999999999"})
    EXPECT_THAT(plan("sync_7b.yaml", {"--gpus", many}).err, HasSubstr("nearest possible is 65536"));
  const Said mode = plan("sync_7b.yaml", {"--mode", "asynch"});
  EXPECT_EQ(mode.code, 2);
  EXPECT_THAT(mode.err, HasSubstr("async"));
}

}  // namespace
}  // namespace troupe::testing

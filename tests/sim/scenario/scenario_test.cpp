// One configuration file for a real run and a simulated one.
//
// Each key of a real run that a simulation reads changes the job as it would change the run; the
// placement core decides how many neighbours share a node and an adapter; and what cannot be is
// refused with the key, its value, what stands against it and the nearest possible value.

#include "sim/scenario/scenario.hpp"

#include "sim/scenario/pool_placement.hpp"
#include "tests/support/small_run.hpp"
#include "tests/support/test_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace troupe::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using troupe::testing::small_scenario;

TEST(Scenario, PlacesAllRolesOnTheTrainersDevicesInASynchronousRun) {
  const auto scenario = small_scenario({"actor_rollout_ref.actor.use_kl_loss=true"});
  ASSERT_TRUE(scenario) << scenario.error().to_string();
  const SimJob& job = scenario->job;
  EXPECT_EQ(job.mode, SimMode::kSynchronous);
  ASSERT_EQ(job.pools.size(), 1U);
  EXPECT_EQ(job.pools[0].devices, 8);
  EXPECT_EQ(job.pools[0].name, "policy+reference+rollout");
  EXPECT_EQ(job.policy.layout.tp, 2);
  EXPECT_EQ(job.policy.layout.dp, 4);
  EXPECT_EQ(job.policy.layout.sharding, TrainSharding::kZero1);
  EXPECT_EQ(job.policy.layout.recompute, Recompute::kAll);
  ASSERT_TRUE(job.reference);
  EXPECT_EQ(job.reference->layout.optimizer_bytes, 0);
  EXPECT_FALSE(job.critic);
  EXPECT_EQ(job.rollout.replicas, 8);
  EXPECT_GT(job.rollout.layout.reserved_bytes, 0) << "others keep their weights meanwhile";
  EXPECT_EQ(job.minibatch_prompts, 16) << "256 by default, but there are 16";
}

TEST(Scenario, GivesRolloutDevicesOfItsOwnInTheOtherModes) {
  const auto scenario =
      small_scenario({"trainer.mode=async", "trainer.rollout_devices=4",
                      "actor_rollout_ref.rollout.tensor_model_parallel_size=2", "async.staleness=3",
                      "async.on_update=keep", "simulation.rollout_device=h20"});
  ASSERT_TRUE(scenario) << scenario.error().to_string();
  const SimJob& job = scenario->job;
  EXPECT_EQ(job.mode, SimMode::kAsynchronous);
  ASSERT_EQ(job.pools.size(), 2U);
  EXPECT_EQ(job.pools[1].device.name, "h20");
  EXPECT_TRUE(job.own_rollout());
  EXPECT_EQ(job.rollout.replicas, 2);
  EXPECT_EQ(job.pacing.ledger.lead_max, 3);
  EXPECT_EQ(job.pacing.kv, KvAtUpdate::kKeep);
  EXPECT_EQ(job.rollout.layout.reserved_bytes, 0);
}

TEST(Scenario, TakesSetsOfRolesThatARealRunDoesNotHave) {
  const auto scenario =
      small_scenario({"algorithm.adv_estimator=gae", "actor_rollout_ref.actor.use_kl_loss=true",
                      "simulation.critic_model=qwen2.5-1.5b",
                      "simulation.sets=['policy:8', 'critic+reference:4:h200', 'rollout:4']"});
  ASSERT_TRUE(scenario) << scenario.error().to_string();
  const SimJob& job = scenario->job;
  ASSERT_EQ(job.pools.size(), 3U);
  ASSERT_TRUE(job.critic && job.reference);
  EXPECT_EQ(job.critic->pool, 1U);
  EXPECT_EQ(job.critic->model.name, "qwen2.5-1.5b");
  EXPECT_TRUE(job.critic->model.shape.value_head);
  EXPECT_EQ(job.critic->layout.dp, 4);
  EXPECT_EQ(job.reference->pool, 1U);
  EXPECT_EQ(job.rollout.pool, 2U);
}

TEST(Scenario, ReadsTheCheckpointsOwnShapeWhereNoModelIsNamed) {
  const troupe::testing::TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json")
      << R"({"model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
             "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
             "vocab_size": 1000, "tie_word_embeddings": true, "torch_dtype": "float32"})";
  const auto scenario = small_scenario(
      {"simulation.model=", "actor_rollout_ref.model.path=" + folder.path().string()});
  ASSERT_TRUE(scenario) << scenario.error().to_string();
  EXPECT_EQ(scenario->job.policy.model.shape.hidden, 256);
  EXPECT_EQ(scenario->job.policy.model.shape.layers, 4);
  EXPECT_TRUE(scenario->job.policy.model.shape.tied);
}

TEST(Scenario, SizesTheKvPoolByWhatTheConfigurationGives) {
  EXPECT_EQ(small_scenario()->job.rollout.engine.kv_tokens, 0);
  EXPECT_EQ(small_scenario({"simulation.kv_tokens=123456"})->job.rollout.engine.kv_tokens, 123456);
  // 28 layers × 4 kv heads × 128 × keys and values × 2 bytes = 57,344 bytes a token.
  const auto megabytes = small_scenario({"actor_rollout_ref.rollout.kv_cache_mb=7168"});
  EXPECT_EQ(megabytes->job.rollout.engine.kv_tokens, (std::int64_t{7168} << 20) / 57344);
}

TEST(Scenario, TakesMeasuredDecodeSteps) {
  const troupe::testing::TemporaryFolder folder;
  const std::string file = (folder / "steps.csv").string();
  troupe::testing::write_file(file, "sequences,seconds\n1,0.010\n9,0.018\n64,0.018\n128,0.034\n");
  const auto scenario = small_scenario({"simulation.step_profile=" + file});
  ASSERT_TRUE(scenario) << scenario.error().to_string();
  const SimJob& job = scenario->job;
  const auto cost =
      DecodeCost::create(job.policy.model, job.pools[0].device, job.rollout.layout, job.constants);
  ASSERT_TRUE(cost);
  EXPECT_DOUBLE_EQ(cost->fixed_s(1), 0.010);
  EXPECT_DOUBLE_EQ(cost->fixed_s(5), 0.014);
  EXPECT_DOUBLE_EQ(cost->fixed_s(32), 0.018);
  EXPECT_DOUBLE_EQ(cost->fixed_s(192), 0.050) << "on through the last two";
  EXPECT_GT(cost->step_s(5, 1e5), cost->fixed_s(5)) << "attention is the model's";
  troupe::testing::write_file(file, "4,0.02\n2,0.03\n");
  const auto falling = small_scenario({"simulation.step_profile=" + file});
  ASSERT_FALSE(falling);
  EXPECT_THAT(falling.error().message, AllOf(HasSubstr("steps.csv:2"), HasSubstr("must rise")));
}

TEST(Scenario, FillsOrPadsMicroBatches) {
  const auto layout = [](const char* name) {
    const auto scenario = small_scenario({fmt::format("simulation.micro_batches={}", name)});
    EXPECT_TRUE(scenario) << scenario.error().to_string();
    return scenario->job.policy.layout.micro_batches;
  };
  EXPECT_EQ(layout("even"), MicroBatches::kEven);
  EXPECT_EQ(layout("filled"), MicroBatches::kFilled);
  EXPECT_EQ(layout("padded"), MicroBatches::kPadded);
  EXPECT_FALSE(small_scenario({"simulation.micro_batches=paded"}));
}

TEST(Scenario, SaysWhatItLeavesOut) {
  const auto scenario = small_scenario({"trainer.test_freq=5"});
  ASSERT_EQ(scenario->notes.size(), 1U);
  EXPECT_THAT(scenario->notes[0], HasSubstr("trainer.test_freq"));
}

TEST(Scenario, KnowsWhichConstantsWereGiven) {
  const auto scenario = small_scenario({"simulation.constants.gemm_share=0.6"});
  ASSERT_TRUE(scenario) << scenario.error().to_string();
  EXPECT_EQ(scenario->given, std::vector{Constant::kGemmShare});
  EXPECT_EQ(scenario->job.constants[Constant::kGemmShare], 0.6);
}

// ---- where devices lie ----------------------------------------------------------------------

DevicePool pool_of(int devices) {
  return {.name = "pool", .device = *Catalogue::built_in().device("h100"), .devices = devices};
}

TEST(PoolPlacement, PacksIntoWholeNodes) {
  std::vector<DevicePool> pools{pool_of(16)};
  ASSERT_TRUE(place_pools(pools, {}));
  EXPECT_EQ(pools[0].device.per_node, 8);
  EXPECT_EQ(pools[0].device.nvlink_domain, 8);
  EXPECT_EQ(pools[0].device.nic_rate, pool_of(16).device.nic_rate);
}

TEST(PoolPlacement, SpreadsOverAllNodesAndSharesTheirAdapters) {
  std::vector<DevicePool> pools{pool_of(16)};
  const auto lines = place_pools(pools, {.strategy = placement::Strategy::kSpread, .nodes = 8});
  ASSERT_TRUE(lines) << lines.error().to_string();
  const DeviceSpec whole = pool_of(16).device;
  const DeviceSpec& device = pools[0].device;
  // Two devices of each of eight nodes, neighbours together or apart: what a device has of the
  // adapter is the same.
  EXPECT_LT(device.per_node, 8);
  EXPECT_DOUBLE_EQ(device.nic_rate / device.per_node, whole.nic_rate / 2);
  EXPECT_LE(device.nvlink_domain, 2);
  EXPECT_THAT(lines->front(), HasSubstr("8 nodes"));
}

TEST(PoolPlacement, CountsNeighboursByRuns) {
  const auto runs = node_runs("pool", {0, 0, 0, 0, 1, 1, 1, 1, 2, 2});
  ASSERT_TRUE(runs);
  EXPECT_EQ(runs->neighbours, 4);
  EXPECT_EQ(runs->sharing, 1);
  EXPECT_EQ(runs->nodes, 3);
  const auto apart = node_runs("pool", {0, 1, 0, 1});
  EXPECT_EQ(apart->neighbours, 1);
  EXPECT_EQ(apart->sharing, 2);
  const auto uneven = node_runs("pool", {0, 0, 1, 1, 1});
  ASSERT_FALSE(uneven);
  EXPECT_THAT(uneven.error().message, HasSubstr("the nearest possible is 2 devices"));
}

// ---- refusals -------------------------------------------------------------------------------

struct Bad {
  const char* name;
  std::vector<std::string> overrides;
  std::vector<std::string> said;
};

class RefusedScenario : public ::testing::TestWithParam<Bad> {};

TEST_P(RefusedScenario, NamesKeyValuesAndTheNearest) {
  const auto scenario = small_scenario(GetParam().overrides);
  ASSERT_FALSE(scenario);
  EXPECT_EQ(scenario.error().code, ErrorCode::kConfig) << scenario.error().to_string();
  for (const std::string& part : GetParam().said)
    EXPECT_THAT(scenario.error().message, HasSubstr(part));
}

const Bad kBad[] = {
    {"UnknownKey", {"simulation.devise=h100"}, {"simulation.devise", "simulation.device"}},
    {"UnknownDevice", {"simulation.device=h10"}, {"simulation.device", "h10", "did you mean"}},
    {"NoDevice", {"simulation.device="}, {"simulation.device", "is missing", "h100"}},
    {"UnknownModel", {"simulation.model=qwen2.5-8b"}, {"simulation.model", "did you mean"}},
    {"NoModel", {"simulation.model="}, {"simulation.model", "actor_rollout_ref.model.path"}},
    {"LayoutOfTheRun",
     {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size=3"},
     {"tensor_model_parallel_size = '3'", "8 devices"}},
    {"LayoutOfTheModel",
     {"actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8"},
     {"tensor_model_parallel_size = '8'", "28 heads", "8 devices in pp 1 is 4"}},
    {"EngineOfTheModel",
     {"actor_rollout_ref.rollout.tensor_model_parallel_size=8"},
     {"rollout.tensor_model_parallel_size = '8'", "28 heads", "the nearest that does is 4"}},
    {"Experts",
     {"simulation.expert_parallel_size=2"},
     {"expert_parallel_size = '2'", "no experts", "the nearest possible is 1"}},
    {"DoesNotFit",
     {"simulation.model=qwen2.5-32b", "trainer.n_gpus_per_node=8",
      "actor_rollout_ref.rollout.tensor_model_parallel_size=8"},
     {"simulation.device = 'h100'", "beside", "nearest that fits is 2 times as many devices"}},
    {"FitsNowhere",
     {"simulation.model=qwen2.5-72b", "actor_rollout_ref.rollout.tensor_model_parallel_size=8"},
     {"simulation.device = 'h100'", "do not fit", "nearest that fits is"}},
    {"LengthsMissing",
     {"simulation.lengths.response.shape="},
     {"simulation.lengths.response.shape", "is missing"}},
    {"LengthsWithoutMedian",
     {"simulation.lengths.response.median=null"},
     {"simulation.lengths.response.median", "is missing", "lognormal"}},
    {"LengthsFile",
     {"simulation.lengths.response.shape=empirical",
      "simulation.lengths.response.file=/nowhere/lengths.csv"},
     {"simulation.lengths.response.file", "/nowhere/lengths.csv"}},
    {"MissingProfile",
     {"simulation.step_profile=/nowhere/steps.csv"},
     {"simulation.step_profile = '/nowhere/steps.csv'"}},
    {"FixedTooLong",
     {"simulation.lengths.response.shape=fixed", "simulation.lengths.response.tokens=2000"},
     {"response.tokens = '2000'", "data.max_response_length = 1024", "nearest possible is 1024"}},
    {"UnknownConstant",
     {"simulation.constants.gemm_shore=0.5"},
     {"gemm_shore", "did you mean gemm_share"}},
    {"ConstantOutOfRange",
     {"simulation.constants.gemm_share=0.99"},
     {"gemm_share = '0.99'", "nearest possible is 0.85"}},
    {"WarmUp",
     {"simulation.warm_up_steps=2"},
     {"warm_up_steps = '2'", "simulation.steps = 2", "nearest possible is 1"}},
    {"RoleTwice",
     {"simulation.sets=['policy:4', 'policy+rollout:4']"},
     {"simulation.sets", "role policy is there twice"}},
    {"RoleMissing", {"simulation.sets=['policy:8']"}, {"simulation.sets", "leaves out rollout"}},
    {"RoleUnknown",
     {"simulation.sets=['policy:4', 'rolout:4']"},
     {"'rolout:4'", "did you mean rollout"}},
    {"SetOfNoDevices",
     {"simulation.sets=['policy:4', 'rollout:0']"},
     {"'rollout:0'", "nearest possible is 1"}},
    {"TooFewNodes",
     {"simulation.nodes=1", "trainer.nnodes=2"},
     {"simulation.nodes = '1'", "16 devices", "least number of nodes without conditions is 2"}},
    {"CatalogueFile",
     {"simulation.catalogue_files=['/nowhere/devices.yaml']"},
     {"simulation.catalogue_files", "/nowhere/devices.yaml"}},
    {"LentDevices",
     {"trainer.mode=async", "async.lend_devices=true"},
     {"async.lend_devices = 'true'", "nearest possible is false"}},
};

INSTANTIATE_TEST_SUITE_P(All, RefusedScenario, ::testing::ValuesIn(kBad),
                         [](const auto& tried) { return std::string(tried.param.name); });

TEST(RefusedScenario, NegativeBandwidthOfAUsersDevice) {
  const troupe::testing::TemporaryFolder folder;
  const auto file = folder.path() / "devices.yaml";
  std::ofstream(file) << "devices:\n  mine: {tflops: 100, hbm_gb: 40, hbm_tbs: 1, nvlink_gbs: -600,"
                         " pcie_gbs: 32, nic_gbits: 100}\n";
  const auto scenario = small_scenario(
      {"simulation.catalogue_files=['" + file.string() + "']", "simulation.device=mine"});
  ASSERT_FALSE(scenario);
  EXPECT_THAT(scenario.error().message,
              AllOf(HasSubstr("simulation.catalogue_files"), HasSubstr("mine"), HasSubstr("-3")));
}

}  // namespace
}  // namespace troupe::sim

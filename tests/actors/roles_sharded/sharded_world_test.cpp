// Proves that how trainer and rollout engine are cut does not show in a run: GRPO steps with every
// training layout and every rollout layout of four devices sample the same tokens and earn the same
// rewards as one device does; checkpoints go on under another layout; publications move exactly
// what is needed, leave nothing behind, and are caught when the two sides disagree.

#include "tests/actors/roles_sharded/sharded_case.hpp"

#include <unistd.h>

#include <fstream>

namespace troupe::actors {
namespace {

using namespace testing;

using ShardedWorldTest = ShardedCase;

TEST_F(ShardedWorldTest, SamplesTheSameTokensAndRewardsOnEveryLayout) {
  constexpr std::int64_t kSteps = 2;
  const auto plain = run_here({.name = "one device", .devices = 1}, kSteps);
  ASSERT_TRUE(plain.has_value()) << plain.error().to_string();
  EXPECT_GT(plain->metrics.back().at("actor/grad_norm"), 0);
  EXPECT_EQ(plain->versions.front(), kSteps);
  for (Layout layout : train_layouts()) {
    for (const int tp : {1, 2, 4}) {
      layout.rollout_tp = tp;
      const std::string which = layout.name + " → tp" + std::to_string(tp);
      const auto cut = run_here(layout, kSteps);
      ASSERT_TRUE(cut.has_value()) << which << ": " << cut.error().to_string();
      expect_same_run(*plain, *cut, which);
    }
  }
}

runtime::task<void> save_to(GroupWorld& world, std::filesystem::path root) {
  runtime::CheckpointWriter writer =
      value_or_throw(runtime::CheckpointWriter::begin({.root = root, .step = 1}));
  co_await world.save(writer);
  value_or_throw(writer.commit());
}

runtime::task<Outcome> go_on_from(GroupWorld& world, std::filesystem::path root) {
  const auto checkpoint = value_or_throw(runtime::Checkpoint::latest(root));
  co_await world.load(*checkpoint);
  world.policy().set_updates(1);
  world.weights().set_version(WeightVersion{1});
  co_return co_await sharded_run(world, 2, 3);
}

TEST_F(ShardedWorldTest, GoesOnFromACheckpointOnAnotherMesh) {
  const std::vector<Layout> layouts{
      {.name = "dp2·tp2", .train = {.tp = 2}, .rollout_tp = 2},
      {.name = "fsdp4", .train = {.sharding = Sharding::kFsdp}, .rollout_tp = 1},
      {.name = "pp2·dp2 zero1", .train = {.pp = 2, .sharding = Sharding::kZero1}, .rollout_tp = 4}};
  runtime::Executor executor;
  const auto plain = run_here({.name = "one device", .devices = 1}, 3);
  ASSERT_TRUE(plain.has_value()) << plain.error().to_string();
  Outcome rest = *plain;
  rest.metrics.erase(rest.metrics.begin());
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Layout& before = layouts[i];
    const Layout& after = layouts[(i + 1) % layouts.size()];
    const std::string which = before.name + ", then " + after.name;
    const auto root = folder_ / ("checkpoint" + std::to_string(i));
    {
      auto world = local_world(options(before));
      ASSERT_TRUE(world.has_value()) << world.error().to_string();
      ASSERT_TRUE(executor.run(sharded_run(**world, 1, 1)).has_value()) << which;
      const auto saved = executor.run(save_to(**world, root));
      ASSERT_TRUE(saved.has_value()) << which << ": " << saved.error().to_string();
    }
    auto world = local_world(options(after));
    ASSERT_TRUE(world.has_value()) << world.error().to_string();
    const auto resumed = executor.run(go_on_from(**world, root));
    ASSERT_TRUE(resumed.has_value()) << which << ": " << resumed.error().to_string();
    expect_same_run(rest, *resumed, which);
  }
}

/// PPO with a reference, both as in `sharded_options` but for how they are cut.
WorldOptions with_all_roles(WorldOptions options, const ParallelOptions& reference,
                            const ParallelOptions& critic) {
  options.policy_update.objective.kl_coefficient = 0.05;
  options.reference = options.policy;
  options.reference->engine.parallel = reference;
  options.critic = options.policy;
  options.critic->engine.parallel = critic;
  options.critic->engine.head = ModelHead::kValue;
  options.value_update.options.clip = 0.5;
  return options;
}

TEST_F(ShardedWorldTest, GivesEveryRoleAMeshOfItsOwn) {
  constexpr std::int64_t kSteps = 3;
  runtime::Executor executor;
  const auto run = [&](const WorldOptions& wanted) -> result<Outcome> {
    TROUPE_TRY(auto world, local_world(wanted));
    return executor.run(sharded_run(*world, 1, kSteps));
  };
  const auto plain = run(with_all_roles(options({.name = "one device", .devices = 1}), {}, {}));
  ASSERT_TRUE(plain.has_value()) << plain.error().to_string();
  const Layout layout{.name = "dp2·tp2", .train = {.tp = 2}, .rollout_tp = 4};
  const auto cut = run(with_all_roles(options(layout), {.sharding = Sharding::kFsdp}, {.pp = 2}));
  ASSERT_TRUE(cut.has_value()) << cut.error().to_string();
  expect_same_run(*plain, *cut, "dp2·tp2, reference fsdp4, critic pp2·dp2");
  const auto& wanted = plain->metrics.back();
  const auto& found = cut->metrics.back();
  for (const char* name : {"critic/vf_loss", "critic/grad_norm", "critic/vpred_mean"})
    EXPECT_NEAR(wanted.at(name), found.at(name), 1e-3 * (std::abs(wanted.at(name)) + 1e-2)) << name;
}

runtime::task<void> generate_and_sleep(GroupWorld& world) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 4;
  Batch numbered = value_or_throw(number_samples(sharded_prompts(), 2));
  co_await world.rollout().generate(std::move(numbered), std::move(sampling));
  co_await world.rollout().sleep(true);
}

runtime::task<void> learn(GroupWorld& world) {
  const Outcome outcome = co_await sharded_run(world, 1, 1);
  (void)outcome;
}

TEST_F(ShardedWorldTest, TellsTheLedgerWhatSleepsAndWhatIsAwake) {
  WorldOptions sleepy = options({.name = "dp2·tp2", .train = {.tp = 2}, .rollout_tp = 2});
  sleepy.publication.sleep = SleepLevel::kWeightsAndKv;
  auto world = local_world(sleepy);
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  runtime::Executor executor;
  const auto where = [&](const char* owner, const char* what) {
    return (*world)->ledger(3)->find({owner, what})->residency;
  };
  ASSERT_TRUE(executor.run(learn(**world)).has_value());
  EXPECT_EQ(where("rollout", "kv cache"), runtime::Residency::kResident);
  EXPECT_EQ(where("rollout", "weights"), runtime::Residency::kResident);
  EXPECT_EQ(where("policy", "gradients"), runtime::Residency::kDropped);
  ASSERT_TRUE(executor.run(generate_and_sleep(**world)).has_value());
  EXPECT_EQ(where("rollout", "kv cache"), runtime::Residency::kDropped);
  EXPECT_EQ(where("rollout", "weights"), runtime::Residency::kDropped);
  // A rank holds its part of the policy, and no more.
  const auto whole = static_cast<std::int64_t>(sizeof(float)) * model_.parameter_count();
  EXPECT_LT((*world)->ledger(3)->find({"policy", "weights"})->bytes.value, 6 * whole / 10);
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

runtime::task<runtime::Metrics> publish_often(GroupWorld& world, int times) {
  runtime::Metrics last;
  for (int i = 0; i < times; ++i) last = co_await world.weights().publish();
  co_return last;
}

TEST_F(ShardedWorldTest, PublishesAHundredTimesWithoutGrowth) {
  const Layout layout{.name = "dp2·tp2", .train = {.tp = 2}, .rollout_tp = 2};
  auto world = local_world(options(layout));
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  runtime::Executor executor;
  ASSERT_TRUE(executor.run(publish_often(**world, 10)).has_value());
  const std::int64_t before = resident_bytes();
  const auto last = executor.run(publish_often(**world, 100));
  ASSERT_TRUE(last.has_value()) << last.error().to_string();
  const std::int64_t grown = resident_bytes() - before;
  EXPECT_LT(grown, std::int64_t{2} << 20);
  EXPECT_EQ(*last->value("training/weight_version"), 110);
  // All in this process: nothing is staged, and what the device itself holds is read there.
  EXPECT_EQ(*last->value("update_weights/wire_bytes"), 0);
  EXPECT_EQ(*last->value("update_weights/staging_bytes"), 0);
  // Both sides are cut alike, but for the vocabulary.
  const reshard::Plan& plan = (*world)->weights().plan()->plan();
  EXPECT_GT(static_cast<double>(plan.bytes_of_kind(reshard::OpKind::kLocal)),
            0.8 * *last->value("update_weights/bytes"));
  EXPECT_EQ(plan.network_bytes(), 0);
}

TEST_F(ShardedWorldTest, TrainsWithSleepingWeightsAsWithoutSleep) {
  const Layout layout{.name = "dp2·tp2", .train = {.tp = 2}, .rollout_tp = 2};
  const auto awake = run_here(layout, 2);
  ASSERT_TRUE(awake.has_value()) << awake.error().to_string();
  for (const bool in_place : {false, true}) {
    WorldOptions sleepy = options(layout);
    sleepy.publication.sleep = SleepLevel::kWeightsAndKv;
    if (in_place) sleepy.rollout.weight_memory = WeightMemory::kInPlace;
    auto world = local_world(sleepy);
    ASSERT_TRUE(world.has_value()) << world.error().to_string();
    runtime::Executor executor;
    const auto slept = executor.run(sharded_run(**world, 1, 2));
    ASSERT_TRUE(slept.has_value()) << slept.error().to_string();
    expect_same_bits(*awake, *slept, in_place ? "in place" : "double buffered");
  }
  WorldOptions never = options(layout);
  never.publication.sleep = std::nullopt;
  auto world = local_world(never);
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  runtime::Executor executor;
  const auto kept = executor.run(sharded_run(**world, 1, 2));
  ASSERT_TRUE(kept.has_value()) << kept.error().to_string();
  expect_same_bits(*awake, *kept, "never asleep");
}

TEST_F(ShardedWorldTest, EndsTheRunWhenTheTrainerDoubtsTheCanary) {
  WorldOptions strict = options({.name = "dp2·tp2", .train = {.tp = 2}, .rollout_tp = 1});
  strict.publication.canary_tolerance = 1e-12;  // below what rounding allows,
  strict.publication.canary_tokens = 32;        // though some tokens may agree in every bit
  auto world = local_world(strict);
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  runtime::Executor executor;
  const auto outcome = executor.run(publish_often(**world, 1));
  ASSERT_FALSE(outcome.has_value());
  EXPECT_NE(outcome.error().to_string().find("canary: version 1: token"), std::string::npos)
      << outcome.error().to_string();
}

TEST_F(ShardedWorldTest, RefusesMeshesThatDoNotFit) {
  for (const Layout& layout : std::vector<Layout>{{.name = "tp3", .train = {.tp = 3}},
                                                  {.name = "pp8", .train = {.pp = 8}},
                                                  {.name = "rollout tp3", .rollout_tp = 3}}) {
    const auto world = local_world(options(layout));
    ASSERT_FALSE(world.has_value()) << layout.name;
    EXPECT_NE(world.error().to_string().find("4 devices"), std::string::npos)
        << world.error().to_string();
  }
}

}  // namespace
}  // namespace troupe::actors

// Proves the simulated world: the synchronous loop runs over it as it is, its parts add up, the
// same seed gives the same events, better hardware is never slower, and jobs that cannot be are
// refused with what is missing.

#include "sim/world/sim_world.hpp"

#include "actors/algorithm/advantage.hpp"
#include "actors/loops/synchronous.hpp"
#include "sim/catalogue/catalogue.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace troupe::sim {
namespace {

SimJob small_job() {
  SimJob job;
  job.pools = {{.name = "all", .device = *Catalogue::built_in().device("h100"), .devices = 16}};
  job.policy.model = *Catalogue::built_in().model("llama-3.1-8b");
  job.policy.layout.dp = 8;
  job.policy.layout.pp = 2;
  job.policy.layout.recompute = Recompute::kAll;
  job.policy.layout.micro_batch_tokens = 4096;
  job.rollout.replicas = 16;
  job.prompts_per_step = 64;
  job.group_size = 32;
  job.minibatch_prompts = 16;
  job.prompt_lengths.shape = FixedLength{150};
  job.answer_lengths.shape = LogNormalLength{760, 0.8};
  job.answer_lengths.tokens_max = 4096;
  return job;
}

struct StepOutcome {
  actors::StepReport report;
  std::uint64_t digest = 0;
  double step_s = 0;
  std::int64_t tokens = 0;
  double idle = 0;
};

result<StepOutcome> run_step(const SimJob& job) {
  EventLog log;
  SimulationOptions options;
  options.log = &log;
  Simulation simulation(options);
  TROUPE_TRY(const auto world, SimWorld::create(simulation, job));
  actors::AdvantageStepOptions advantage_options;
  TROUPE_TRY(advantage_options.estimator, actors::default_advantages().find("grpo"));
  actors::AdvantageStep advantage(advantage_options);
  actors::Cast<SimWorld> cast = cast_of(*world, advantage);
  StepOutcome out;
  TROUPE_TRY(out.report,
             simulation.run_task(actors::synchronous_step(cast, world->prompts_of(1), 1)));
  out.digest = log.digest();
  out.step_s = seconds(simulation.now().time_since_epoch());
  for (const ReplicaStatistics& one : world->replica_statistics()) out.tokens += one.tokens;
  out.idle = world->phases().idle_share(0, job.pools[0].devices, TimePoint{}, simulation.now());
  return out;
}

double part(const StepOutcome& out, const char* name) {
  return out.report.metrics.value(std::string("timing_s/") + name).value_or(0);
}

TEST(SimWorld, RunsTheSynchronousLoopAsItIs) {
  const auto out = run_step(small_job());
  ASSERT_TRUE(out) << out.error().to_string();
  const double sum = part(*out, "gen") + part(*out, "reward") + part(*out, "old_log_prob") +
                     part(*out, "update_actor") + part(*out, "update_weights");
  EXPECT_NEAR(sum, out->step_s, 1e-6);
  EXPECT_GT(part(*out, "gen"), 5);
  EXPECT_GT(part(*out, "update_actor"), 5);
  EXPECT_GT(out->idle, 0);
  EXPECT_LT(out->idle, 1);
  fmt::print("step {:.1f} s: gen {:.1f}, old log-probs {:.1f}, update {:.1f}, weights {:.1f}\n",
             out->step_s, part(*out, "gen"), part(*out, "old_log_prob"), part(*out, "update_actor"),
             part(*out, "update_weights"));
}

TEST(SimWorld, TheSameSeedGivesTheSameEventsAndAnotherSeedOthers) {
  SimJob job = small_job();
  const auto one = run_step(job);
  const auto again = run_step(job);
  job.seed = 2;
  const auto other = run_step(job);
  ASSERT_TRUE(one && again && other);
  EXPECT_EQ(one->digest, again->digest);
  EXPECT_EQ(one->step_s, again->step_s);
  EXPECT_NE(one->digest, other->digest);
}

TEST(SimWorld, BetterHardwareIsNeverSlowerAndMoreWorkNeverFaster) {
  const SimJob job = small_job();
  const double base = run_step(job)->step_s;
  for (double DeviceSpec::*field : {&DeviceSpec::flops, &DeviceSpec::memory_rate,
                                    &DeviceSpec::nvlink_rate, &DeviceSpec::nic_rate}) {
    SimJob better = job;
    better.pools[0].device.*field *= 2;
    EXPECT_LE(run_step(better)->step_s, base * (1 + 1e-9));
  }
  SimJob more = job;
  more.prompts_per_step *= 2;
  const auto doubled = run_step(more);
  EXPECT_GT(doubled->step_s, base);
  more.pools[0].devices *= 2;
  more.policy.layout.dp *= 2;
  more.rollout.replicas *= 2;
  more.minibatch_prompts *= 2;
  // Twice the devices for twice the work: about the same time.
  EXPECT_NEAR(run_step(more)->step_s, base, 0.15 * base);
}

TEST(SimWorld, WeightsTravelAsThePlannerSays) {
  SimJob job = small_job();
  job.pools.push_back({.name = "rollout", .device = job.pools[0].device, .devices = 16});
  job.rollout.pool = 1;
  const auto traffic = weight_traffic(job);
  ASSERT_TRUE(traffic) << traffic.error().to_string();
  const auto bytes = 2.0 * static_cast<double>(size_of(job.policy.model).parameters);
  // Two rollout nodes get one copy each over the network, and hand it on inside.
  EXPECT_NEAR(traffic->network_bytes, 2 * bytes, 1);
  EXPECT_NEAR(traffic->node_bytes, 14 * bytes, 1);
  EXPECT_EQ(traffic->local_bytes, 0);
  const auto together = weight_traffic(small_job());
  // A stage lies on each node: half of the model goes each way, once.
  EXPECT_NEAR(together->network_bytes, bytes, 1);
  EXPECT_GT(together->local_bytes, 0);
}

TEST(SimWorld, APartOfALargeClusterStandsForTheOthers) {
  for (const bool together : {true, false}) {
    for (const int pp : {1, 2}) {
      SimJob job = small_job();
      job.pools[0].devices = 128;
      job.policy.layout = {.tp = 4, .pp = pp, .dp = 32 / pp};
      job.rollout.layout.tp = 2;
      job.rollout.replicas = 64;
      if (!together) {
        job.pools.push_back(job.pools[0]);
        job.rollout.pool = 1;
      }
      const auto whole = weight_traffic(job, {.ranks_whole = 1'000'000});
      const auto part = weight_traffic(job, {.ranks_whole = 64});
      ASSERT_TRUE(whole && part);
      EXPECT_EQ(whole->parts, 1);
      EXPECT_GE(part->parts, 4);
      const double all = whole->local_bytes + whole->node_bytes + whole->network_bytes;
      EXPECT_NEAR(part->local_bytes + part->node_bytes + part->network_bytes, all, 1e-9 * all);
      EXPECT_NEAR(part->network_bytes, whole->network_bytes, 1e-9 * all);
      std::map<std::int32_t, double> in_whole, in_part;
      for (const TrafficFlow& flow : whole->flows) in_whole[flow.target] += flow.bytes;
      for (const TrafficFlow& flow : part->flows) in_part[flow.target] += flow.bytes;
      ASSERT_EQ(in_whole.size(), in_part.size());
      if (pp == 1 || !together) {
        for (const auto& [device, bytes] : in_whole)
          EXPECT_NEAR(in_part[device], bytes, 1e-6 * all) << device;
      }
    }
  }
}

TEST(SimWorld, AFewLayersAndExpertsStandForAllOfTheirKind) {
  struct Case {
    const char* model;
    TrainLayout layout;
    int tp;
    int replicas;
  };
  for (const Case& tried : {Case{"moonlight-16b-a3b", {.pp = 2, .dp = 8, .ep = 8}, 2, 8},
                            Case{"moonlight-16b-a3b", {.tp = 2, .pp = 2, .dp = 4, .ep = 4}, 4, 4},
                            Case{"llama-7b", {.tp = 4, .pp = 2, .dp = 2}, 2, 8},
                            Case{"llama-7b", {.dp = 16, .sharding = TrainSharding::kFsdp}, 4, 4}}) {
    for (const bool together : {true, false}) {
      SCOPED_TRACE(fmt::format("{} pp {} tp {}", tried.model, tried.layout.pp, tried.layout.tp));
      SimJob job = small_job();
      job.policy.model = *Catalogue::built_in().model(tried.model);
      job.policy.layout = tried.layout;
      job.rollout.layout.tp = tried.tp;
      job.rollout.replicas = tried.replicas;
      if (!together) {
        job.pools.push_back(job.pools[0]);
        job.rollout.pool = 1;
      }
      const auto whole = weight_traffic(job, {.operations_whole = 1e12});
      const auto few = weight_traffic(job, {.operations_whole = 0});
      ASSERT_TRUE(whole) << whole.error().to_string();
      ASSERT_TRUE(few) << few.error().to_string();
      EXPECT_FALSE(whole->thin);
      EXPECT_TRUE(few->thin);
      const double all = whole->local_bytes + whole->node_bytes + whole->network_bytes;
      EXPECT_NEAR(few->local_bytes + few->node_bytes + few->network_bytes, all, 1e-9 * all);
      EXPECT_NEAR(few->network_bytes, whole->network_bytes, 0.03 * all);
      std::map<std::int32_t, double> in_whole, in_few, out_whole, out_few;
      for (const TrafficFlow& flow : whole->flows) {
        in_whole[flow.target] += flow.bytes;
        out_whole[flow.source] += flow.bytes;
      }
      for (const TrafficFlow& flow : few->flows) {
        in_few[flow.target] += flow.bytes;
        out_few[flow.source] += flow.bytes;
      }
      double most_in = 0, most_out = 0;
      for (const auto& [device, bytes] : in_whole) most_in = std::max(most_in, bytes);
      for (const auto& [device, bytes] : out_whole) most_out = std::max(most_out, bytes);
      for (const auto& [device, bytes] : in_whole)
        EXPECT_NEAR(in_few[device], bytes, 0.05 * most_in) << "into " << device;
      for (const auto& [device, bytes] : out_whole)
        EXPECT_NEAR(out_few[device], bytes, 0.15 * most_out) << "out of " << device;
    }
  }
}

TEST(SimWorld, PaddedBatchesThroughOneControllerTakeTheSameTimeOnAnyNumberOfDevices) {
  SimJob job = small_job();
  const auto plain = run_step(job);
  job.controller.row_tokens = 8192;
  const auto padded = run_step(job);
  ASSERT_TRUE(plain && padded);
  const double bytes = 64.0 * 32 * 8192 * job.controller.token_bytes;
  // Generation, log-probs and the update: three times there and back.
  EXPECT_NEAR(padded->step_s - plain->step_s, 3 * bytes / job.constants[Constant::kControllerRate],
              1e-6);
}

TEST(SimWorld, RowsThatGoToRanksInOrderWaitForTheHeaviest) {
  SimJob job = small_job();
  const auto even = run_step(job);
  job.policy.layout.balanced = false;
  const auto uneven = run_step(job);
  ASSERT_TRUE(even && uneven);
  EXPECT_GT(uneven->step_s, 1.02 * even->step_s);
  // Rows of one length are even in any order.
  job.answer_lengths.shape = FixedLength{700};
  const auto fixed = run_step(job);
  job.policy.layout.balanced = true;
  const auto ordered = run_step(job);
  ASSERT_TRUE(fixed && ordered);
  EXPECT_NEAR(fixed->step_s, ordered->step_s, 1e-6);
}

TEST(SimWorld, RefusesJobsThatCannotBe) {
  SimJob job = small_job();
  job.policy.layout.dp = 16;
  auto refused = run_step(job);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("policy wants 32 devices of pool all, which has 16"),
            std::string::npos)
      << refused.error().to_string();
  job = small_job();
  job.policy.model = *Catalogue::built_in().model("llama-70b");
  refused = run_step(job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().root_cause().code, ErrorCode::kResourceExhausted)
      << refused.error().to_string();
  job = small_job();
  job.rollout.layout.tp = 3;
  job.rollout.replicas = 2;
  refused = run_step(job);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().to_string().find("nearest that does is"), std::string::npos);
}

}  // namespace
}  // namespace troupe::sim

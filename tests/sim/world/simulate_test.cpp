// Proves whole simulated runs: the loops beside training run over the cost models as they are, and
// what they take has the closed forms that fixed lengths give; staleness stays in its bound; better
// machines and more lead never cost time; what is declared (failures, slow devices, checkpoints,
// environments) costs what it says; nothing is lost or counted twice; the same job gives the same
// run. Oracles: the synchronous run of the same samples, sums of a run's own parts, and
// conservation.

#include "sim/world/simulate.hpp"

#include "sim/catalogue/catalogue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace troupe::sim {
namespace {

/// 8 devices train, 8 engines generate.
SimJob base_job(SimMode mode, std::int64_t lead = 1) {
  SimJob job;
  // Software between steps stops the trainer only, so that loops beside it would be ahead.
  EXPECT_TRUE(job.constants.set(Constant::kIterationHost, 0));
  const DeviceSpec device = *Catalogue::built_in().device("h100");
  job.pools = {{.name = "train", .device = device, .devices = 8},
               {.name = "rollout", .device = device, .devices = 8}};
  job.policy.model = *Catalogue::built_in().model("llama-3.1-8b");
  job.policy.layout.tp = 2;
  job.policy.layout.dp = 4;
  job.policy.layout.recompute = Recompute::kAll;
  job.policy.layout.micro_batch_tokens = 4096;
  job.rollout.pool = 1;
  job.rollout.replicas = 8;
  job.mode = mode;
  job.pacing.ledger.lead_max = lead;
  job.steps = 6;
  job.prompts_per_step = 32;
  job.group_size = 4;
  job.minibatch_prompts = 32;
  job.prompt_lengths.shape = FixedLength{256};
  job.answer_lengths.shape = LogNormalLength{900, 0.8};
  job.answer_lengths.tokens_max = 4096;
  return job;
}

SimOutcome run(const SimJob& job, bool trace = false) {
  SimulateOptions options;
  options.trace = trace;
  auto outcome = simulate(job, options);
  EXPECT_TRUE(outcome.has_value()) << outcome.error().to_string();
  return outcome ? std::move(*outcome) : SimOutcome{};
}

double phase(const SimStep& step, const std::string& name) {
  const auto found = step.phases_s.find(name);
  return found == step.phases_s.end() ? 0 : found->second;
}

double training(const SimStep& step) {
  return phase(step, "old_log_prob") + phase(step, "ref") + phase(step, "update_actor");
}

/// Mean of the steps behind the first `skipped`.
double steady(const SimOutcome& outcome, std::size_t skipped = 2) {
  double sum = 0;
  for (std::size_t i = skipped; i < outcome.steps.size(); ++i) sum += outcome.steps[i].span_s;
  return sum / static_cast<double>(outcome.steps.size() - skipped);
}

constexpr SimMode kBeside[] = {SimMode::kOneStepOff, SimMode::kAsynchronous, SimMode::kPipelined};

TEST(Simulate, WithoutLeadALoopBesideTakesTheTimeOfTheSynchronousOne) {
  // One engine that holds all samples at once, all as long as each other: nothing is left to
  // chance. Rewards that take no time are over when the last sample is.
  SimJob job = base_job(SimMode::kSynchronous, 0);
  job.rollout.replicas = 1;
  job.prompts_per_step = 8;
  job.minibatch_prompts = 8;
  job.answer_lengths.shape = FixedLength{1000};
  job.answer_lengths.tokens_max = 2048;
  job.reward.sample_s = 0;
  job.steps = 3;
  const SimOutcome wanted = run(job);
  for (const SimMode mode : {SimMode::kOneStepOff, SimMode::kAsynchronous}) {
    job.mode = mode;
    const SimOutcome got = run(job);
    ASSERT_EQ(got.steps.size(), wanted.steps.size());
    for (std::size_t i = 0; i < got.steps.size(); ++i) {
      EXPECT_NEAR(got.steps[i].span_s, wanted.steps[i].span_s, 1e-6) << sim_mode_name(mode);
      EXPECT_EQ(got.steps[i].answer_tokens, wanted.steps[i].answer_tokens);
      EXPECT_EQ(got.steps[i].prompt_tokens, wanted.steps[i].prompt_tokens);
    }
  }
}

TEST(Simulate, WithoutLeadRandomLengthsDifferOnlyByWhoGotWhichSample) {
  // The synchronous loop gives groups to engines before lengths are known, the others sample by
  // sample to the engine with most room, so that prompts are shared less and lengths balance.
  SimJob job = base_job(SimMode::kSynchronous, 0);
  job.steps = 3;
  const SimOutcome wanted = run(job);
  job.mode = SimMode::kAsynchronous;
  const SimOutcome got = run(job);
  for (std::size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].answer_tokens, wanted.steps[i].answer_tokens);
    EXPECT_NEAR(got.steps[i].span_s, wanted.steps[i].span_s, 0.1 * wanted.steps[i].span_s);
  }
}

TEST(Simulate, OneStepOffTakesTheLongerOfRolloutAndTrainingAndThePublication) {
  for (const std::int64_t tokens : {200, 3000}) {  // training, then rollout is the longer
    SimJob job = base_job(SimMode::kOneStepOff, 1);
    job.answer_lengths.shape = FixedLength{tokens};
    job.reward.sample_s = 0;
    const SimOutcome got = run(job);
    SimJob alone = job;
    alone.mode = SimMode::kSynchronous;
    alone.steps = 1;
    const double rollout = phase(run(alone).steps[0], "gen");
    const SimStep& step = got.steps[3];
    const double wanted = std::max(rollout, training(step)) + phase(step, "update_weights");
    EXPECT_NEAR(step.span_s, wanted, 0.03 * wanted)
        << "rollout " << rollout << " s, training " << training(step) << " s";
    EXPECT_EQ(rollout < training(step), tokens == 200);
  }
}

TEST(Simulate, AsynchronousStepsTakeTheLongerOfRolloutAndTrainingWithPublication) {
  SimJob job = base_job(SimMode::kAsynchronous, 1);
  job.reward.sample_s = 0;
  job.steps = 10;
  job.answer_lengths.shape = FixedLength{200};
  const SimOutcome trains = run(job);
  const SimStep& step = trains.steps[6];
  const double sum = training(step) + phase(step, "update_weights");
  EXPECT_NEAR(step.span_s, sum, 1e-6) << "samples were there before they were wanted";
  EXPECT_NEAR(phase(step, "wait_for_batch"), 0, 1e-9);

  // Engines that hold just one step's samples: they are always full, and wait only while weights
  // land.
  job.answer_lengths.shape = FixedLength{3000};
  job.rollout.engine.sequences_max = job.prompts_per_step * job.group_size / job.rollout.replicas;
  const SimOutcome rolls = run(job);
  SimJob alone = job;
  alone.mode = SimMode::kSynchronous;
  alone.steps = 1;
  const double rollout = phase(run(alone).steps[0], "gen");
  double waits = 0;
  for (const WeightLanding& one : rolls.landings) waits += seconds(one.end - one.begin);
  waits /= static_cast<double>(rolls.landings.size());
  EXPECT_GT(rollout, training(rolls.steps[6]));
  EXPECT_NEAR(steady(rolls, 4), rollout + waits, 0.03 * rollout);
}

TEST(Simulate, KeepsStalenessInItsBoundAndUsesIt) {
  for (const std::int64_t lead : {0, 1, 3}) {
    for (const SimMode mode : kBeside) {
      SimJob job = base_job(mode, lead);
      job.steps = 10;
      const SimOutcome got = run(job);
      std::int64_t oldest = 0;
      for (const SimStep& step : got.steps) {
        std::int64_t groups = 0;
        for (const auto& [age, count] : step.staleness) {
          EXPECT_LE(age, lead) << sim_mode_name(mode);
          oldest = std::max(oldest, age);
          groups += count;
        }
        EXPECT_EQ(groups, job.prompts_per_step);
        EXPECT_EQ(step.samples, job.prompts_per_step * job.group_size);
        if (mode == SimMode::kOneStepOff) {
          EXPECT_EQ(step.span_max, 0) << "a sample crossed versions";
        }
      }
      EXPECT_EQ(oldest > 0, lead > 0) << sim_mode_name(mode) << ", lead " << lead;
    }
  }
}

TEST(Simulate, TheSameJobGivesTheSameRun) {
  for (const SimMode mode : kBeside) {
    SimJob job = base_job(mode);
    job.failures.rollout_mtbf_s = 600;
    job.failures.trainer_mtbf_s = 4000;
    job.checkpoints.every_steps = 2;
    job.stragglers = {
        .replica_share = 0.3, .replica_factor = 1.5, .step_share = 0.2, .step_factor = 2};
    job.steps = 4;
    const SimOutcome one = run(job);
    const SimOutcome again = run(job);
    EXPECT_EQ(one.digest, again.digest);
    EXPECT_EQ(one.events, again.events);
    EXPECT_EQ(one.end, again.end);
    job.seed = 2;
    EXPECT_NE(run(job).digest, one.digest);
  }
}

TEST(Simulate, BetterMachinesAreNeverSlowerBesideTraining) {
  for (const SimMode mode : kBeside) {
    const SimJob job = base_job(mode);
    const double base = seconds(run(job).end.time_since_epoch());
    for (double DeviceSpec::*field : {&DeviceSpec::flops, &DeviceSpec::memory_rate,
                                      &DeviceSpec::nvlink_rate, &DeviceSpec::nic_rate}) {
      SimJob better = job;
      for (DevicePool& pool : better.pools) pool.device.*field *= 2;
      // Who gets which sample changes with time, and may make the last one a little later.
      EXPECT_LE(seconds(run(better).end.time_since_epoch()), 1.02 * base) << sim_mode_name(mode);
    }
  }
}

TEST(Simulate, MoreLeadNeverCostsThroughput) {
  double before = 0;
  for (const std::int64_t lead : {0, 1, 2, 4}) {
    SimJob job = base_job(SimMode::kAsynchronous, lead);
    job.steps = 10;
    const double rate = 1 / steady(run(job), 3);
    EXPECT_GE(rate, 0.98 * before) << "lead " << lead;
    before = std::max(before, rate);
  }
}

TEST(Simulate, TrainsEachGroupOnceOrNamesItWhenReplicasDie) {
  for (const SimMode mode : kBeside) {
    SimJob job = base_job(mode);
    job.failures.rollout_mtbf_s = 250;  // of a device: one of the eight dies every half a minute
    job.failures.rollout_restart_s = 40;
    const SimOutcome healthy = run(base_job(mode));
    const SimOutcome got = run(job, true);
    ASSERT_EQ(std::cmp_equal(got.steps.size(), job.steps), true);
    std::int64_t lost = 0;
    std::int64_t dropped = 0;
    for (const SimStep& step : got.steps) lost += step.replicas_lost;
    for (const auto& [reason, groups] : got.groups.dropped) dropped += groups;
    EXPECT_GE(lost, 3);
    EXPECT_FALSE(got.failures.empty());
    EXPECT_EQ(got.groups.issued, got.groups.trained + got.groups.open + dropped);
    EXPECT_EQ(std::set(got.prompts.begin(), got.prompts.end()).size(), got.prompts.size());
    EXPECT_EQ(std::cmp_equal(got.prompts.size(), got.groups.trained), true);
    // Not always later: steps take what is finished, and long groups may stay open at the end.
    EXPECT_GT(got.end.time_since_epoch(), 0.95 * healthy.end.time_since_epoch());
    for (const FailureSpan& one : got.failures)
      EXPECT_GE(seconds(one.end - one.begin), job.failures.rollout_restart_s);
    double failed = 0;
    for (const SimStep& step : got.steps)
      if (const auto idle = step.pools[1].idle_by.find("failure");
          idle != step.pools[1].idle_by.end())
        failed += idle->second;
    EXPECT_GT(failed, 0);
  }
}

TEST(Simulate, AFailedTrainerDoesAgainWhatItsCheckpointLacks) {
  SimJob job = base_job(SimMode::kSynchronous);
  const SimOutcome healthy = run(job);
  job.failures.trainer_mtbf_s = 400;
  job.failures.trainer_restart_s = 30;
  const SimOutcome bare = run(job);
  ASSERT_FALSE(bare.failures.empty());
  double cost = 0;
  for (const FailureSpan& one : bare.failures)
    cost += 30 + seconds(one.begin.time_since_epoch());  // all of it: nothing was saved
  EXPECT_NEAR(seconds(bare.end - healthy.end), cost, 1e-6 * cost);
  job.checkpoints.every_steps = 1;
  job.checkpoints.bytes = 4e9;
  job.checkpoints.rate = 2e9;
  const SimOutcome saved = run(job);
  EXPECT_LT(saved.end, bare.end);
  for (const SimStep& step : saved.steps) EXPECT_NEAR(phase(step, "checkpoint"), 2, 1e-9);
}

TEST(Simulate, SlowDevicesMakeTheirWorkSlowerByTheirFactor) {
  SimJob job = base_job(SimMode::kSynchronous);
  job.steps = 1;
  const SimStep plain = run(job).steps[0];
  job.stragglers = {.replica_share = 1, .replica_factor = 2, .step_share = 1, .step_factor = 3};
  const SimStep slow = run(job).steps[0];
  EXPECT_NEAR(phase(slow, "gen"), 2 * phase(plain, "gen"), 1e-6 * phase(slow, "gen"));
  EXPECT_NEAR(phase(slow, "update_actor"), 3 * phase(plain, "update_actor"), 1e-6);
}

TEST(Simulate, EnvironmentsTakeTheirTurns) {
  SimJob job = base_job(SimMode::kAsynchronous, 0);
  job.prompts_per_step = 1;
  job.minibatch_prompts = 1;
  job.group_size = 4;
  job.answer_lengths.shape = FixedLength{1200};
  job.reward.sample_s = 0;
  job.steps = 2;
  job.pacing.ledger.steps_max = 2;  // nothing begins for a third
  const SimStep plain = run(job).steps[0];
  job.environment =
      SimEnvironment{.turns_min = 3, .turns_max = 3, .turn_s = 5, .sigma = 0, .tokens_a_turn = 100};
  const SimOutcome got = run(job, true);
  const SimStep& step = got.steps[0];
  // The prompt and what was said are prefilled again when a sample comes back.
  EXPECT_NEAR(step.span_s, plain.span_s + 3 * 5, 1.0);
  EXPECT_EQ(step.answer_tokens, plain.answer_tokens + 4 * 2 * 100);
  EXPECT_GT(step.recomputed_tokens, 0);
  const auto turns = std::ranges::count_if(
      got.trajectories, [](const TrajectorySpan& one) { return one.outcome == "turn"; });
  EXPECT_EQ(turns, 2 * 4 * 2);
  std::int64_t made = 0;
  for (const TrajectorySpan& one : got.trajectories) made += one.tokens;
  EXPECT_EQ(made, 2 * 4 * 1200);
}

TEST(Simulate, APipelinedStepLearnsWhileTheRestGenerates) {
  SimJob job = base_job(SimMode::kAsynchronous, 0);
  job.steps = 3;
  const SimOutcome whole = run(job);
  job.mode = SimMode::kPipelined;
  job.pacing.groups_per_part = 4;
  const SimOutcome parts = run(job);
  EXPECT_LT(parts.end, whole.end);
  for (std::size_t i = 0; i < whole.steps.size(); ++i)
    EXPECT_EQ(parts.steps[i].answer_tokens, whole.steps[i].answer_tokens);
}

TEST(Simulate, KvCachesThatAreComputedAgainCostTime) {
  SimJob job = base_job(SimMode::kAsynchronous, 2);
  job.answer_lengths.shape = LogNormalLength{2500, 0.6};
  const SimOutcome keep = run(job);
  job.pacing.kv = KvAtUpdate::kRecompute;
  const SimOutcome again = run(job);
  double kept = 0;
  double recomputed = 0;
  for (const SimStep& step : keep.steps) kept += step.recomputed_tokens;
  for (const SimStep& step : again.steps) recomputed += step.recomputed_tokens;
  EXPECT_EQ(kept, 0);
  EXPECT_GT(recomputed, 10'000);
  EXPECT_GT(again.end, keep.end);
}

TEST(Simulate, SharesOfDeviceTimeAddUp) {
  for (const SimMode mode :
       {SimMode::kSynchronous, SimMode::kOneStepOff, SimMode::kAsynchronous, SimMode::kPipelined}) {
    const SimJob job = base_job(mode);
    const SimOutcome got = run(job);
    for (const SimStep& step : got.steps) {
      for (const PoolUse& pool : step.pools) {
        double busy = 0;
        double idle = 0;
        for (const auto& [who, share] : pool.busy_by) busy += share;
        for (const auto& [cause, share] : pool.idle_by) idle += share;
        EXPECT_NEAR(busy + idle, 1, 1e-9);
        EXPECT_NEAR(idle, pool.idle_share, 1e-12);
      }
      EXPECT_GT(step.run_mfu, 0.01);
      EXPECT_LT(step.run_mfu, 1);
      EXPECT_GT(step.bytes_by_link.at("node") + step.bytes_by_link.at("network"), 0);
    }
    double busy_s = 0;
    for (const ReplicaStatistics& one : got.replicas) busy_s += one.busy_s;
    double logged_s = 0;
    for (const SimStep& step : got.steps)
      logged_s += step.pools[1].busy_by.at("rollout/generate") * step.span_s * 8;
    EXPECT_NEAR(logged_s, busy_s, 0.02 * busy_s) << sim_mode_name(mode);
  }
}

TEST(Simulate, TokensOfTracesAndEnginesAgree) {
  SimJob job = base_job(SimMode::kAsynchronous, 2);
  job.failures.rollout_mtbf_s = 0;
  const SimOutcome got = run(job, true);
  double engines = 0;
  double traced = 0;
  double trained = 0;
  for (const ReplicaStatistics& one : got.replicas) engines += static_cast<double>(one.tokens);
  for (const TrajectorySpan& one : got.trajectories) {
    traced += static_cast<double>(one.tokens);
    EXPECT_LE(one.oldest_version, one.newest_version);
  }
  for (const SimStep& step : got.steps) trained += step.answer_tokens;
  // Those under way at the end have no span yet.
  EXPECT_LE(traced, engines);
  EXPECT_GE(traced, trained);
}

TEST(Simulate, LendsTheTrainersDevicesWhileItWaits) {
  SimJob job = base_job(SimMode::kAsynchronous, 1);
  job.pools.pop_back();
  job.pools[0].devices = 16;
  job.policy.layout.dp = 8;
  job.rollout.pool = 0;
  job.rollout.replicas = 16;
  const SimOutcome got = run(job);
  ASSERT_EQ(got.steps.size(), 6U);
  for (const SimStep& step : got.steps) {
    // Engines give their devices back before training begins.
    EXPECT_LT(step.pools[0].busy_by.at("rollout/generate") * step.span_s,
              phase(step, "wait_for_batch") + 1e-3);
  }
}

TEST(Simulate, ARewardModelScoresByAForwardPass) {
  SimJob job = base_job(SimMode::kSynchronous);
  job.steps = 2;
  const SimStep plain = run(job).steps[1];
  job.reward_model = job.policy;  // of the same size in the same layout: log-probs cost as much
  const SimStep step = run(job).steps[1];
  EXPECT_NEAR(phase(step, "reward"), phase(plain, "reward") + phase(plain, "old_log_prob"), 1e-6);
  EXPECT_GT(step.pools[0].busy_by.at("reward_model/forward"), 0);
  job.mode = SimMode::kAsynchronous;
  EXPECT_GT(run(job).steps[1].pools[0].busy_by.at("reward_model/forward"), 0);
  job.reward_model->pool = 1;
  EXPECT_EQ(simulate(job).error().code, ErrorCode::kUnsupported);
}

TEST(Simulate, RefusesWhatCannotBe) {
  SimJob job = base_job(SimMode::kSynchronous);
  job.environment = SimEnvironment{};
  EXPECT_EQ(simulate(job).error().code, ErrorCode::kUnsupported);
  job = base_job(SimMode::kAsynchronous);
  job.stragglers.replica_factor = 0.5;
  const auto refused = simulate(job);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("replica_factor is 0.5, the nearest possible is 1"),
            std::string::npos)
      << refused.error().message;
  job = base_job(SimMode::kAsynchronous);
  job.rollout.engine.kv_tokens = 1024;  // less than one sample
  const auto small = simulate(job);
  ASSERT_FALSE(small);
  EXPECT_EQ(small.error().code, ErrorCode::kResourceExhausted) << small.error().to_string();
  EXPECT_FALSE(sim_mode_from_name("asynch"));
}

}  // namespace
}  // namespace troupe::sim

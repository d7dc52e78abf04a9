// Proves what the loops beside training promise, with real engines on a tiny model: staleness 0
// gives the bits of the synchronous loop (weights, optimizer, counters, metrics) whatever the
// number and the cut of replicas, pipelined training the same to rounding; a run that was stopped
// in the middle, or inside a step, goes on where it was; and each way in which a run has nothing to
// train on ends with a message of its own.

#include "tests/apps/training/beside/train_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>

namespace troupe::apps {
namespace {

using runtime::Checkpoint;
using testing::kSteps;
using testing::make_rows;
using testing::Words;
namespace support = troupe::testing;

class AsyncTrain : public testing::TrainCase {};

TEST_F(AsyncTrain, StalenessZeroEqualsTheSynchronousLoopBitForBit) {
  expect_run("sync", {"trainer.mode=sync"});
  for (const runtime::MetricsRow& row : steps_of("sync"))
    EXPECT_GT(row.values.at("actor/grad_norm"), 0) << "there is something to learn";
  for (const std::string mode : {"async", "one_step_off"}) {
    for (const std::string replicas : {"1", "2"}) {
      const std::string name = mode + replicas;
      expect_run(name, {"trainer.mode=" + mode, "async.staleness=0",
                        "trainer.rollout_devices=" + replicas});
      expect_same_end("sync", name);
      expect_same_metrics("sync", name);
    }
  }
}

TEST_F(AsyncTrain, StalenessZeroEqualsTheSynchronousLoopWithEnginesCutInTwo) {
  const std::string tp = "actor_rollout_ref.rollout.tensor_model_parallel_size=2";
  expect_run("sync", {"trainer.n_gpus_per_node=2", tp});
  expect_run("async", {"trainer.mode=async", "trainer.n_gpus_per_node=2", tp, "async.staleness=0",
                       "trainer.rollout_devices=2"});
  expect_same_end("sync", "async");
  expect_same_metrics("sync", "async");
}

TEST_F(AsyncTrain, PipelinedWithStalenessZeroEqualsTheSynchronousLoopToRounding) {
  expect_run("sync", {"trainer.mode=sync"});
  expect_run("pipelined", {"trainer.mode=pipelined", "async.staleness=0",
                           "trainer.rollout_devices=2", "async.groups_per_part=1"});
  expect_same_end("sync", "pipelined", 1e-4);
  expect_same_metrics("sync", "pipelined", 1e-3);
}

TEST_F(AsyncTrain, PipelinedWithACriticAndKlInRewardsLearnsAsTheSynchronousLoop) {
  const Words both{"algorithm.adv_estimator=gae", "algorithm.whiten_advantages=false",
                   "algorithm.lam=0.9",           "algorithm.use_kl_in_reward=true",
                   "critic.optim.lr=1e-3",        "actor_rollout_ref.actor.optim.lr=1e-3"};
  for (const std::string kl : {"fixed", "adaptive"}) {
    SCOPED_TRACE(kl);
    Words words = both;
    words.insert(words.end(), {"algorithm.kl_ctrl.type=" + kl, "algorithm.kl_ctrl.kl_coef=0.05",
                               "algorithm.kl_ctrl.horizon=100"});
    expect_run("sync " + kl, words);
    words.insert(words.end(), {"trainer.mode=pipelined", "async.staleness=0",
                               "trainer.rollout_devices=2", "async.groups_per_part=1"});
    expect_run("pipelined " + kl, words);
    const auto left = steps_of("sync " + kl);
    const auto right = steps_of("pipelined " + kl);
    // Of the same weights, so to rounding of the sums alone.
    for (const char* name : {"actor/loss", "critic/vf_loss", "actor/grad_norm", "critic/grad_norm",
                             "actor/reward_kl_penalty_coeff", "critic/advantages/mean"})
      EXPECT_NEAR(left[0].values.at(name), right[0].values.at(name),
                  1e-6 * (1 + std::fabs(left[0].values.at(name))))
          << name;
    expect_same_end("sync " + kl, "pipelined " + kl, 1e-4);
  }
  EXPECT_NE(steps_of("sync fixed").back().values.at("actor/reward_kl_penalty_coeff"),
            steps_of("sync adaptive").back().values.at("actor/reward_kl_penalty_coeff"));
}

TEST_F(AsyncTrain, APipelinedStepWhoseGradientsAreLostBeginsAgainWithoutARestart) {
  std::atomic<int> calls{0};
  const auto losing = [&calls](int every) {
    return [&calls, every](
               const actors::PolicyLossInput& input,
               const actors::PolicyLossOptions& options) -> result<actors::PolicyLossOutput> {
      if (every > 0 && ++calls % every == 0) return fail(ErrorCode::kIo, "a cosmic ray");
      return actors::vanilla_loss(input, options);
    };
  };
  ASSERT_TRUE(registries_.losses.add("steady", {.apply = losing(0)}).has_value());
  ASSERT_TRUE(registries_.losses.add("shaky", {.apply = losing(7)}).has_value());
  for (const std::string loss : {"steady", "shaky"})
    expect_run(loss, {"trainer.mode=pipelined", "async.staleness=0", "async.groups_per_part=1",
                      "actor_rollout_ref.actor.policy_loss.loss_mode=" + loss});
  expect_same_end("steady", "shaky");
  double again = 0;
  for (const runtime::MetricsRow& row : steps_of("shaky")) {
    again += row.values.at("training/steps_begun_again");
    EXPECT_EQ(row.values.at("training/restarts"), 0);
  }
  EXPECT_GE(again, 2);
}

TEST_F(AsyncTrain, RemaxBesideTrainingWithoutLeadEqualsTheSynchronousLoop) {
  expect_run("sync", {"algorithm.adv_estimator=remax"});
  expect_run("async", {"algorithm.adv_estimator=remax", "trainer.mode=async", "async.staleness=0"});
  expect_same_end("sync", "async");
}

TEST_F(AsyncTrain, LentTrainerDevicesGenerateWhileTheTrainerWaitsAndChangeNothing) {
  expect_run("sync", {});
  expect_run("lent", {"trainer.mode=async", "async.staleness=0", "trainer.rollout_devices=1",
                      "async.lend_devices=true"});
  expect_same_end("sync", "lent");
  for (const runtime::MetricsRow& row : steps_of("lent"))
    EXPECT_EQ(row.values.at("rollouter/replicas"), 2) << "one of its own, one lent";
}

TEST_F(AsyncTrain, SamplesKeepTheirKvOverAnUpdateWhenAsked) {
  expect_run("keep", {"trainer.mode=async", "async.staleness=2", "async.on_update=keep",
                      "actor_rollout_ref.rollout.ignore_eos=true",
                      "actor_rollout_ref.rollout.simulated_delay.median_s=0.2",
                      "actor_rollout_ref.rollout.simulated_delay.sigma=1"});
  double span = 0;
  for (const runtime::MetricsRow& row : steps_of("keep")) {
    span = std::max(span, row.values.at("staleness/span/max"));
    EXPECT_LE(row.values.at("staleness/max"), 2);
    EXPECT_GT(row.values.at("actor/grad_norm"), 0);
  }
  EXPECT_GE(span, 1) << "some sample was under way when weights came";
}

TEST_F(AsyncTrain, StopsInsideAStepThatWouldNotEndAndGoesOnFromItsCheckpoint) {
  for (const std::string mode : {"one_step_off", "async", "pipelined"}) {
    SCOPED_TRACE(mode);
    const Words words{"trainer.mode=" + mode, "trainer.rollout_devices=2"};
    Words endless = words;
    endless.emplace_back("actor_rollout_ref.rollout.simulated_delay.median_s=3000");
    std::atomic<bool> stop{false};
    std::jthread watcher([&] {  // rollout has begun once the row of step 0 is there
      const auto file = folder_ / mode / "metrics.jsonl";
      std::error_code none;
      while (std::filesystem::file_size(file, none) == 0 || none)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      stop = true;
    });
    // Had it not been noticed, the watchdog would have made this an error.
    const auto stopped = run(mode, endless, &stop);
    ASSERT_TRUE(stopped.has_value()) << stopped.error().to_string();
    EXPECT_TRUE(stopped->stopped);
    EXPECT_EQ(stopped->last_step, 0);
    EXPECT_TRUE(Checkpoint::open(runtime::checkpoint_folder(folder_ / mode, 0)).has_value());
    const auto rest = run(mode, words);
    ASSERT_TRUE(rest.has_value()) << rest.error().to_string();
    EXPECT_EQ(rest->first_step, 1);
    EXPECT_EQ(rest->last_step, kSteps);
  }
}

TEST_F(AsyncTrain, RunsAheadWithinItsBoundAndReportsIt) {
  expect_run("async", {"trainer.mode=async", "async.staleness=2", "trainer.rollout_devices=2"});
  double groups = 0;
  for (const runtime::MetricsRow& row : steps_of("async")) {
    EXPECT_LE(row.values.at("staleness/max"), 2) << "step " << row.step;
    for (const auto& [name, value] : row.values)
      if (name.starts_with("staleness/age_")) groups += value;
    for (const char* name : {"trainer/idle_ratio", "rollouter/idle_ratio"}) {
      EXPECT_GE(row.values.at(name), 0);
      EXPECT_LE(row.values.at(name), 1);
    }
  }
  EXPECT_EQ(groups, 4.0 * kSteps) << "each trained group has an age";
  const std::string page = support::read_file(folder_ / "async/report.html");
  EXPECT_NE(page.find("Rollout beside training"), std::string::npos);
  EXPECT_NE(page.find("Trainer and rollout replicas over the whole run"), std::string::npos);
}

TEST_F(AsyncTrain, GoesOnWhereItWasAndKeepsItsBound) {
  const Words async{"trainer.mode=async", "async.staleness=2", "trainer.rollout_devices=2"};
  std::atomic<bool> stop{true};
  ASSERT_TRUE(run("run", async, &stop).has_value());  // nothing was trained, nothing is spoilt
  stop = false;
  auto two = async;
  two.emplace_back("trainer.total_training_steps=2");
  ASSERT_TRUE(run("run", two).has_value());
  auto other = async;  // other replicas than before
  other.back() = "trainer.rollout_devices=1";
  const auto rest = run("run", other);
  ASSERT_TRUE(rest.has_value()) << rest.error().to_string();
  EXPECT_EQ(rest->first_step, 3);
  EXPECT_EQ(rest->last_step, kSteps);
  for (const runtime::MetricsRow& row : steps_of("run"))
    EXPECT_LE(row.values.at("staleness/max"), 2);
}

TEST_F(AsyncTrain, ResumedWithStalenessZeroEqualsNeverStopped) {
  const Words async{"trainer.mode=async", "async.staleness=0", "trainer.rollout_devices=1",
                    "trainer.save_freq=1"};
  expect_run("whole", async);
  auto two = async;
  two.emplace_back("trainer.total_training_steps=2");
  ASSERT_TRUE(run("resumed", two).has_value());
  expect_run("resumed", async);
  expect_same_end("whole", "resumed");
  expect_same_metrics("whole", "resumed");
}

TEST_F(AsyncTrain, ModesGoOnFromEachOthersCheckpoints) {
  const Words async{"trainer.mode=async", "async.staleness=1"};
  ASSERT_TRUE(run("run", {"trainer.total_training_steps=1"}).has_value());
  auto second = async;
  second.emplace_back("trainer.total_training_steps=2");
  const auto beside = run("run", second);
  ASSERT_TRUE(beside.has_value()) << beside.error().to_string();
  const auto back = run("run", {});
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_EQ(back->first_step, 3);
  EXPECT_EQ(back->last_step, kSteps);
}

TEST_F(AsyncTrain, EndsWithTheDataWhenItsEpochsAreOver) {
  // Six prompts an epoch make one step of four; the ledger drops nothing, so two epochs are two.
  make_rows(folder_ / "rows.jsonl", 6, "varied");
  const auto done = run(
      "run", {"trainer.mode=async", "trainer.total_training_steps=null", "trainer.total_epochs=2"});
  ASSERT_TRUE(done.has_value()) << done.error().to_string();
  EXPECT_EQ(done->last_step, 2);
  EXPECT_FALSE(done->stopped);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/huggingface/model.safetensors"));
}

TEST_F(AsyncTrain, EndsWithAMessageWhenAllGroupsScoreTheSame) {
  make_rows(folder_ / "rows.jsonl", 24, "equal");
  const auto done =
      run("run", {"trainer.mode=async", "async.drop_zero_variance=true", "async.refills_max=6"});
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().to_string().find("variance"), std::string::npos)
      << done.error().to_string();
}

TEST_F(AsyncTrain, EndsWithTheJudgesErrorWhenAllRewardsFail) {
  make_rows(folder_ / "rows.jsonl", 24, "broken");
  const auto done = run(
      "run", {"trainer.mode=async", "async.retries_max=0", "data.train_batch_size=1",
              "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.rollout.n=2"});
  ASSERT_FALSE(done.has_value());
  EXPECT_NE(done.error().to_string().find("the judge has left"), std::string::npos)
      << done.error().to_string();
}

TEST_F(AsyncTrain, NamesTheSampleThatNeverEnds) {
  const auto done = run("run", {"trainer.mode=async", "async.no_progress_s=1",
                                "actor_rollout_ref.rollout.simulated_delay.median_s=3000"});
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().root_cause().code, ErrorCode::kDeadline);
  EXPECT_NE(done.error().to_string().find("sample 0 runs on rank"), std::string::npos)
      << done.error().to_string();
}

TEST_F(AsyncTrain, EvaluatesInTheBackgroundTheWeightsOfTheStepThatAsked) {
  Words words{"data.val_files=[" + (folder_ / "rows.jsonl").string() + "]", "trainer.test_freq=2",
              "data.val_max_samples=6"};
  expect_run("sync", words);
  words.insert(words.end(), {"trainer.mode=async", "async.staleness=0",
                             "trainer.evaluation_devices=1", "trainer.evaluation_wait_s=120"});
  expect_run("async", words);
  const auto rows = runtime::read_metrics((folder_ / "async/evaluations.jsonl").string());
  ASSERT_TRUE(rows.has_value());
  ASSERT_FALSE(rows->empty());
  EXPECT_EQ(rows->back().step, kSteps) << "the end of the run is waited for";
  const auto between = rows_of("sync");  // the same weights, judged between steps
  for (const runtime::MetricsRow& row : *rows) {
    EXPECT_EQ(row.values.at("evaluation/weight_version"), static_cast<double>(row.step));
    for (const auto& [name, value] : row.values) {
      if (!name.starts_with("val-")) continue;
      EXPECT_EQ(value, between.at(static_cast<std::size_t>(row.step)).values.at(name)) << name;
    }
  }
}

}  // namespace
}  // namespace troupe::apps

// Proves on input that nobody here made (the stories260K checkpoint and GSM8K's own rows) that
// `troupe train` runs 20 GRPO steps end to end with evaluation and checkpoints, and that a run
// which was killed (SIGKILL, wherever it happens to be) and resumed ends with the same bits as one
// that was not: weights, optimizer, counters and every metric but the timings.

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "tests/apps/training/run_program.hpp"
#include "tests/support/test_files.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace troupe {
namespace {

using runtime::Checkpoint;
using testing::Program;

std::vector<std::string> gsm8k_run(const std::filesystem::path& folder) {
  const std::string data = (testing::shared_folder() / "data/gsm8k").string();
  return {"train",
          "actor_rollout_ref.model.path=" + testing::stories_folder().string(),
          "data.train_files=[" + data + "/train.jsonl]",
          "data.val_files=[" + data + "/test.jsonl]",
          "data.train_max_samples=200",
          "data.val_max_samples=24",
          "data.train_batch_size=6",
          "data.max_prompt_length=320",
          "data.max_response_length=24",
          "data.filter_overlong_prompts=true",
          "actor_rollout_ref.actor.ppo_mini_batch_size=3",
          "actor_rollout_ref.actor.shuffle=true",
          "actor_rollout_ref.actor.use_kl_loss=true",
          "actor_rollout_ref.actor.optim.lr=1e-4",
          "actor_rollout_ref.rollout.n=4",
          "actor_rollout_ref.rollout.kv_cache_mb=64",
          "algorithm.adv_estimator=grpo",
          "trainer.n_gpus_per_node=2",
          "trainer.total_training_steps=20",
          "trainer.save_freq=4",
          "trainer.test_freq=10",
          "trainer.seed=7",
          "trainer.progress=false",
          "trainer.default_local_dir=" + folder.string()};
}

std::string marker(const std::filesystem::path& folder) {
  const auto file = folder / runtime::kMarkerFile;
  return std::filesystem::exists(file) ? testing::read_file(file) : std::string();
}

void expect_same_end(const std::filesystem::path& whole, const std::filesystem::path& resumed) {
  const auto a = Checkpoint::open(runtime::checkpoint_folder(whole, 20));
  const auto b = Checkpoint::open(runtime::checkpoint_folder(resumed, 20));
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_EQ(a->index().states, b->index().states);
  ASSERT_EQ(a->index().tensors.size(), b->index().tensors.size());
  for (const auto& [name, tensor] : a->index().tensors)
    EXPECT_EQ(*a->tensor<float>(name), *b->tensor<float>(name)) << name;
}

bool is_timing(const std::string& name) {
  return name.starts_with("timing_s/") || name == "perf/time_per_step" ||
         name == "perf/throughput" || name == "perf/rank_idle_share" || name == "perf/wall_s" ||
         name == "rollout/engine_s";
}

void expect_same_metrics(const std::filesystem::path& whole, const std::filesystem::path& resumed) {
  const auto a = runtime::read_metrics((whole / "metrics.jsonl").string());
  const auto b = runtime::read_metrics((resumed / "metrics.jsonl").string());
  ASSERT_TRUE(a.has_value() && b.has_value());
  ASSERT_EQ(a->size(), 21U);  // validation before step 1, then 20 steps
  ASSERT_EQ(b->size(), a->size());
  for (std::size_t row = 0; row < a->size(); ++row) {
    EXPECT_EQ((*a)[row].step, (*b)[row].step);
    for (const auto& [name, value] : (*a)[row].values) {
      if (is_timing(name)) continue;
      const auto found = (*b)[row].values.find(name);
      ASSERT_NE(found, (*b)[row].values.end()) << name << " in row " << row;
      EXPECT_EQ(value, found->second) << name << " in row " << row;
    }
  }
}

TEST(TroupeTrain, EndsBitIdenticalOnGsm8kAfterBeingKilledTwiceAndResumed) {
  if (!std::filesystem::exists(testing::stories_folder()) ||
      !std::filesystem::exists(testing::shared_folder() / "data/gsm8k"))
    GTEST_SKIP() << "no shared folder at " << testing::shared_folder();
  testing::TemporaryFolder folder;
  const auto whole = folder / "whole";
  ASSERT_EQ(Program(gsm8k_run(whole), folder / "whole.log").wait(), 0)
      << testing::read_file(folder / "whole.log");

  const auto resumed = folder / "resumed";
  const auto log = folder / "resumed.log";
  for (const std::string at : {"4", "12"}) {
    Program victim(gsm8k_run(resumed), log);
    ASSERT_TRUE(victim.kill_when([&] { return marker(resumed).starts_with(at); }))
        << "the run ended before step " << at << ": " << testing::read_file(log);
  }
  ASSERT_EQ(Program(gsm8k_run(resumed), log).wait(), 0) << testing::read_file(log);
  EXPECT_NE(testing::read_file(log).find("resumed from"), std::string::npos);
  expect_same_end(whole, resumed);
  expect_same_metrics(whole, resumed);
  EXPECT_TRUE(std::filesystem::exists(resumed / "huggingface/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(resumed / "report.html"));
}

TEST(TroupeTrain, RefusesAWrongConfigurationBeforeItWritesAnything) {
  testing::TemporaryFolder folder;
  const auto run = folder / "run";
  const auto log = folder / "log";
  auto arguments = gsm8k_run(run);
  arguments.push_back("actor_rollout_ref.actor.ppo_mini_batchsize=3");
  EXPECT_EQ(Program(arguments, log).wait(), 2);
  const std::string said = testing::read_file(log);
  EXPECT_NE(said.find("actor_rollout_ref.actor.ppo_mini_batch_size"), std::string::npos) << said;
  EXPECT_FALSE(std::filesystem::exists(run));

  arguments.back() = "actor_rollout_ref.model.path=" + (folder / "nowhere").string();
  EXPECT_EQ(Program(arguments, log).wait(), 1);
  EXPECT_NE(testing::read_file(log).find("nowhere"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(run));
}

TEST(TroupeTrain, PrintsTheResolvedTreeThatLoadsAgain) {
  testing::TemporaryFolder folder;
  auto arguments = gsm8k_run(folder / "run");
  arguments.push_back("--dry-run");
  ASSERT_EQ(Program(arguments, folder / "tree.yaml").wait(), 0);
  ASSERT_EQ(Program({"train", (folder / "tree.yaml").string(), "--dry-run"}, folder / "again.yaml")
                .wait(),
            0)
      << testing::read_file(folder / "again.yaml");
  EXPECT_EQ(testing::read_file(folder / "tree.yaml"), testing::read_file(folder / "again.yaml"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

}  // namespace
}  // namespace troupe

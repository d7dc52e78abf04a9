// Proves that `troupe train` beside rollout survives SIGKILL wherever it happens to be: the run
// goes on from its newest checkpoint with the samples that were under way, keeps its bound, and
// trains every step once. Interrupted by SIGINT it leaves a checkpoint and says how to go on.

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "tests/apps/training/run_program.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace troupe {
namespace {

using testing::Program;

constexpr std::int64_t kSteps = 12;
constexpr std::int64_t kStaleness = 2;
constexpr std::int64_t kPrompts = 4;

class AsyncResume : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::make_tiny_model(folder_ / "model", {.hidden = 32});
    std::string lines;
    for (int row = 0; row < 20; ++row)
      lines += R"({"data_source":"exact_match","prompt":"say )" + std::to_string(row) +
               R"(","reward_model":{"ground_truth":"a"}})" + "\n";
    testing::write_file(folder_ / "rows.jsonl", lines);
  }

  /// Samples take long enough, by declaration, that a kill finds some of them half done.
  std::vector<std::string> command(const std::string& mode) const {
    return {"train",
            "actor_rollout_ref.model.path=" + (folder_ / "model").string(),
            "data.train_files=[" + (folder_ / "rows.jsonl").string() + "]",
            "data.train_batch_size=" + std::to_string(kPrompts),
            "data.max_prompt_length=40",
            "data.max_response_length=16",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.rollout.kv_cache_mb=16",
            "actor_rollout_ref.rollout.max_num_seqs=4",
            "actor_rollout_ref.rollout.ignore_eos=true",
            "actor_rollout_ref.rollout.simulated_delay.median_s=0.05",
            "actor_rollout_ref.rollout.simulated_delay.sigma=0.9",
            "algorithm.adv_estimator=grpo",
            "async.staleness=" + std::to_string(kStaleness),
            "trainer.mode=" + mode,
            "trainer.rollout_devices=2",
            "trainer.total_training_steps=" + std::to_string(kSteps),
            "trainer.save_freq=1",
            "trainer.max_actor_ckpt_to_keep=2",
            "trainer.seed=3",
            "trainer.progress=false",
            "trainer.default_local_dir=" + run().string()};
  }

  std::filesystem::path run() const { return folder_ / "run"; }
  std::filesystem::path log() const { return folder_ / "log"; }
  std::string said() const { return testing::read_file(log()); }

  /// Step of the newest checkpoint; 0: none.
  std::int64_t saved() const {
    const auto file = run() / runtime::kMarkerFile;
    if (!std::filesystem::exists(file)) return 0;
    const std::string text = testing::read_file(file);
    return text.empty() ? 0 : std::stoll(text);
  }

  void expect_whole() const {
    const auto rows = runtime::read_metrics((run() / "metrics.jsonl").string());
    ASSERT_TRUE(rows.has_value()) << rows.error().to_string();
    ASSERT_EQ(rows->size(), static_cast<std::size_t>(kSteps) + 1);  // step 0 comes before all
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const runtime::MetricsRow& row = (*rows)[static_cast<std::size_t>(step)];
      EXPECT_EQ(row.step, step);
      EXPECT_LE(row.values.at("staleness/max"), kStaleness) << "step " << step;
      EXPECT_EQ(row.values.at("training/weight_version"), static_cast<double>(step));
      double groups = 0;
      for (const auto& [name, value] : row.values)
        if (name.starts_with("staleness/age_")) groups += value;
      EXPECT_EQ(groups, kPrompts) << "step " << step;
    }
    EXPECT_TRUE(std::filesystem::exists(run() / "huggingface/model.safetensors"));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(AsyncResume, SurvivesKillsAtSeveralPointsAndTrainsEveryStepOnce) {
  for (const std::int64_t at : {1, 4, 8}) {
    Program victim(command("async"), log());
    ASSERT_TRUE(victim.kill_when([&] { return saved() >= at; }))
        << "the run ended before step " << at << ": " << said();
  }
  ASSERT_EQ(Program(command("async"), log()).wait(), 0) << said();
  EXPECT_NE(said().find("resumed from"), std::string::npos);
  expect_whole();
}

TEST_F(AsyncResume, SurvivesKillsOfAPipelinedRun) {
  auto words = command("pipelined");
  words.emplace_back("actor_rollout_ref.actor.ppo_mini_batch_size=4");
  Program victim(words, log());
  ASSERT_TRUE(victim.kill_when([&] { return saved() >= 3; })) << said();
  ASSERT_EQ(Program(words, log()).wait(), 0) << said();
  expect_whole();
}

TEST_F(AsyncResume, LeavesACheckpointWhenInterruptedAndGoesOn) {
  {
    Program stopped(command("async"), log());
    ASSERT_TRUE(stopped.signal_when(SIGINT, [&] { return saved() >= 2; })) << said();
    ASSERT_EQ(stopped.wait(), 3) << said();  // stopped after a checkpoint
  }
  EXPECT_LT(saved(), kSteps);
  ASSERT_EQ(Program(command("async"), log()).wait(), 0) << said();
  const auto rows = runtime::read_metrics((run() / "metrics.jsonl").string());
  ASSERT_TRUE(rows.has_value());
  EXPECT_EQ(rows->size(), static_cast<std::size_t>(kSteps) + 1);
}

TEST_F(AsyncResume, InterruptedInsideAStepThatWouldNotEndLeavesACheckpointToo) {
  auto endless = command("one_step_off");
  endless.emplace_back("async.staleness=1");
  endless.emplace_back("actor_rollout_ref.rollout.simulated_delay.median_s=3000");
  {
    Program stopped(endless, log());
    const auto begun = [&] {
      std::error_code none;
      return std::filesystem::file_size(run() / "metrics.jsonl", none) > 0 && !none;
    };
    ASSERT_TRUE(stopped.signal_when(SIGINT, begun)) << said();
    ASSERT_EQ(stopped.wait(), 3) << said();
  }
  EXPECT_TRUE(std::filesystem::exists(run() / runtime::kMarkerFile));
  EXPECT_EQ(saved(), 0);
  ASSERT_EQ(Program(command("async"), log()).wait(), 0) << said();
  expect_whole();
}

}  // namespace
}  // namespace troupe

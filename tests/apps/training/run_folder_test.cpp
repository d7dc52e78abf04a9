// Proves what keeps a run folder sane: one process at a time, a state that survives its JSON, a
// resume that goes on only with the same command and data and that a failed attempt does not spoil,
// a stop that leaves a checkpoint, refusals before anything is written, and weights that are
// numbers.

#include "apps/training/run_lock.hpp"
#include "apps/training/run_state.hpp"
#include "apps/training/sft_app.hpp"
#include "apps/training/train_app.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <vector>

namespace troupe::apps {
namespace {

void make_rows(const std::filesystem::path& file, int count) {
  std::string lines;
  for (int row = 0; row < count; ++row)
    lines += R"({"data_source":"exact_match","prompt":"say )" + std::to_string(row) +
             R"(","response":"a","reward_model":{"ground_truth":"a"}})" + "\n";
  testing::write_file(file, lines);
}

runtime::Config config_of(const testing::TemporaryFolder& folder,
                          const std::vector<std::string>& more) {
  std::vector<std::string> words{"actor_rollout_ref.model.path=" + (folder / "model").string(),
                                 "data.train_files=[" + (folder / "rows.jsonl").string() + "]",
                                 "sft.train_files=[" + (folder / "rows.jsonl").string() + "]",
                                 "sft.train_batch_size=4",
                                 "data.train_batch_size=4",
                                 "data.max_prompt_length=40",
                                 "data.max_response_length=6",
                                 "actor_rollout_ref.rollout.n=2",
                                 "actor_rollout_ref.rollout.kv_cache_mb=16",
                                 "algorithm.adv_estimator=grpo",
                                 "trainer.progress=false",
                                 "trainer.default_local_dir=" + (folder / "run").string()};
  words.insert(words.end(), more.begin(), more.end());
  auto config = runtime::Config::load(schema_for({}), "", words);
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return std::move(*config);
}

TEST(RunLock, IsHeldByOneAtATimeAndFreedWithItsOwner) {
  testing::TemporaryFolder folder;
  {
    const auto first = RunLock::take(folder / "run");
    ASSERT_TRUE(first.has_value()) << first.error().to_string();
    const auto second = RunLock::take(folder / "run");
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::kConflict);
    EXPECT_NE(second.error().message.find(std::to_string(::getpid())), std::string::npos);
  }
  EXPECT_TRUE(RunLock::take(folder / "run").has_value());
  EXPECT_EQ(RunLock::take("").error().code, ErrorCode::kConfig);
}

TEST(RunState, SurvivesItsJsonAndNamesABrokenField) {
  const RunState state{.command = "train",
                       .data_rows = 16,
                       .step = 3,
                       .cursor = {.seed = 7, .epoch = 1, .position = 12},
                       .kl_coefficient = 0.1 + 0.2,
                       .weight_version = WeightVersion{4},
                       .actor_updates = 5,
                       .critic_updates = 6};
  const auto back = RunState::from_json(state.to_json());
  ASSERT_TRUE(back.has_value()) << back.error().to_string();
  EXPECT_EQ(*back, state);
  std::string broken = state.to_json();
  broken.replace(broken.find("\"step\":3"), 8, "\"step\":-1");
  const auto refused = RunState::from_json(broken);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("step"), std::string::npos);
  EXPECT_FALSE(RunState::from_json("[]").has_value());
}

TEST(Resume, RefusesOtherDataOrAnotherCommandAndStaysResumable) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model");
  make_rows(folder / "rows.jsonl", 16);
  const auto two = train(config_of(folder, {"trainer.total_training_steps=2"}), {});
  ASSERT_TRUE(two.has_value()) << two.error().to_string();

  make_rows(folder / "rows.jsonl", 12);
  const auto other_data = train(config_of(folder, {"trainer.total_training_steps=3"}), {});
  ASSERT_FALSE(other_data.has_value());
  EXPECT_EQ(other_data.error().code, ErrorCode::kConflict) << other_data.error().to_string();
  EXPECT_NE(other_data.error().message.find("16 rows"), std::string::npos);

  make_rows(folder / "rows.jsonl", 16);
  const auto other_command = fine_tune(
      config_of(folder, {"sft.total_training_steps=3", "sft.optim.lr_scheduler_type=constant",
                         "sft.optim.min_lr_ratio=0"}));
  ASSERT_FALSE(other_command.has_value());
  EXPECT_NE(other_command.error().message.find("troupe train"), std::string::npos)
      << other_command.error().to_string();

  const auto disabled = train(config_of(folder, {"trainer.resume_mode=disable"}), {});
  ASSERT_FALSE(disabled.has_value());
  EXPECT_EQ(disabled.error().code, ErrorCode::kConfig);

  const auto three = train(config_of(folder, {"trainer.total_training_steps=3"}), {});
  ASSERT_TRUE(three.has_value()) << three.error().to_string();
  EXPECT_EQ(three->first_step, 3);
  EXPECT_EQ(three->last_step, 3);
}

TEST(FineTune, TakesTheStepsItWasAskedForAndRefusesBeforeItWrites) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model");
  make_rows(folder / "rows.jsonl", 16);
  const auto refused = fine_tune(
      config_of(folder, {"sft.total_training_steps=null", "sft.optim.lr_warmup_steps=9"}));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConfig) << refused.error().to_string();
  const auto too_long = fine_tune(config_of(folder, {"sft.max_token_len_per_gpu=2"}));
  ASSERT_FALSE(too_long.has_value());
  EXPECT_EQ(too_long.error().code, ErrorCode::kConfig) << too_long.error().to_string();
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));

  // Four steps are an epoch; two more begin the next one.
  const auto done = fine_tune(config_of(folder, {"sft.total_training_steps=6"}));
  ASSERT_TRUE(done.has_value()) << done.error().to_string();
  EXPECT_EQ(done->last_step, 6);
  EXPECT_TRUE(std::filesystem::exists(done->model / "model.safetensors"));
}

TEST(Stop, IsAnsweredWithTheCheckpointOfTheLastStep) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model");
  make_rows(folder / "rows.jsonl", 16);
  std::atomic<bool> stop{false};
  TrainingRegistries registries;
  ASSERT_TRUE(registries.advantages
                  .add("stopping",
                       [&stop](const actors::AdvantageInput& input,
                               const actors::AdvantageOptions& options) {
                         stop = true;  // in the middle of the first step
                         return actors::dr_grpo_advantage(input, options);
                       })
                  .has_value());
  std::vector<std::string> words{"actor_rollout_ref.model.path=" + (folder / "model").string(),
                                 "data.train_files=[" + (folder / "rows.jsonl").string() + "]",
                                 "data.train_batch_size=4",
                                 "data.max_prompt_length=40",
                                 "data.max_response_length=6",
                                 "actor_rollout_ref.rollout.n=2",
                                 "actor_rollout_ref.rollout.kv_cache_mb=16",
                                 "algorithm.adv_estimator=stopping",
                                 "trainer.progress=false",
                                 "trainer.default_local_dir=" + (folder / "run").string()};
  const auto config = runtime::Config::load(schema_for(registries), "", words);
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  const auto summary = train(*config, registries, &stop);
  ASSERT_TRUE(summary.has_value()) << summary.error().to_string();
  EXPECT_TRUE(summary->stopped);
  EXPECT_EQ(summary->last_step, 1);
  EXPECT_EQ(summary->checkpoint.filename(), "global_step_1");
  EXPECT_TRUE(summary->model.empty());
}

TEST(Train, RefusesWeightsThatAreNotNumbersByTensor) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model", {.spoil = std::numeric_limits<float>::quiet_NaN()});
  make_rows(folder / "rows.jsonl", 16);
  const auto refused = train(config_of(folder, {}), {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(refused.error().message.find("model.norm.weight: element 5"), std::string::npos)
      << refused.error().to_string();
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(Train, EndsWithTheCauseWhenEverySampleFails) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model");
  make_rows(folder / "rows.jsonl", 16);
  const auto ended = train(
      config_of(folder,
                {"actor_rollout_ref.actor.optim.lr=1e30", "trainer.total_training_steps=4",
                 "actor_rollout_ref.rollout.canary.tokens=0", "trainer.val_before_train=false"}),
      {});
  ASSERT_FALSE(ended.has_value());
  EXPECT_NE(ended.error().to_string().find("sequences failed"), std::string::npos)
      << ended.error().to_string();
}

TEST(Train, EndsWithTheCanarysWordWhenWeightsWentBad) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model");
  make_rows(folder / "rows.jsonl", 16);
  const auto ended =
      train(config_of(folder, {"actor_rollout_ref.actor.optim.lr=1e30",
                               "trainer.total_training_steps=4", "trainer.val_before_train=false"}),
            {});
  ASSERT_FALSE(ended.has_value());
  EXPECT_NE(ended.error().to_string().find("canary of version "), std::string::npos)
      << ended.error().to_string();
}

TEST(Train, RefusesBudgetsThatTheLongestSequenceOutgrows) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model");
  make_rows(folder / "rows.jsonl", 16);
  for (const std::string key : {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
                                "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
                                "actor_rollout_ref.rollout.kv_cache_blocks"}) {
    const auto refused = train(config_of(folder, {key + "=1"}), {});
    ASSERT_FALSE(refused.has_value()) << key;
    EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
    EXPECT_NE(refused.error().message.find(key), std::string::npos) << refused.error().to_string();
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  }
}

}  // namespace
}  // namespace troupe::apps

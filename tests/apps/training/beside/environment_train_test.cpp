// Proves that `train` learns from whole episodes of a multi-turn environment, from the
// configuration that comes with it: in every mode, only the model's own tokens trained, `sync` and
// staleness 0 with the same bits; that an environment which always fails ends the run by its name;
// and that a reward which is a program in a sandbox is one like any other.

#include "actors/data/dataset.hpp"
#include "actors/environment/guess_environment.hpp"
#include "apps/training/sft_app.hpp"
#include "tests/apps/training/beside/train_case.hpp"
#include "tests/apps/training/run_program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

using testing::Words;
namespace support = troupe::testing;

/// One token for each character of the game; a turn ends with the last special one.
void make_guess_model(const std::filesystem::path& folder) {
  actors::ByteLevelOptions options;
  options.specials = {"<|pad|>", "<|endoftext|>"};
  options.eos_token = "<|endoftext|>";
  options.alphabet = "0123456789<>?-: gues";
  const auto vocabulary = actors::write_byte_level_tokenizer(folder, options);
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().to_string();
  actors::ModelConfig config = support::tiny_model(*vocabulary, 32);
  config.initializer_range = 0.1;
  config.eos_ids = config.stop_ids = {1};
  const actors::WeightSet weights = actors::random_weights(config, 3);
  const auto saved = actors::save_hf_folder(folder, config, weights.tensors());
  ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
}

class EnvironmentTrain : public testing::TrainCase {
 protected:
  void SetUp() override {
    make_guess_model(folder_ / "fresh");
    auto rows = actors::make_guess_rows({.train_rows = 24, .seed = 2});
    ASSERT_TRUE(rows.has_value());
    save_rows(std::move(rows->train), "rows.jsonl");
    save_rows(std::move(rows->warmup), "warmup.jsonl");
    learn_to_take_a_turn();
  }

  void save_rows(std::vector<actors::PromptRow> rows, const char* name) {
    const auto saved = actors::Dataset::from_rows(std::move(rows)).save((folder_ / name).string());
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
  }

  /// The warm-up that comes with the game: without it hardly a turn would be a guess.
  void learn_to_take_a_turn() {
    const Words words{"actor_rollout_ref.model.path=" + (folder_ / "fresh").string(),
                      "sft.train_files=[" + (folder_ / "warmup.jsonl").string() + "]",
                      "sft.output_dir=" + (folder_ / "guess").string(), "trainer.progress=false",
                      "trainer.default_local_dir=" + (folder_ / "warmup").string()};
    const auto config = runtime::Config::load(schema_for({}), file("guess_warmup.yaml"), words);
    ASSERT_TRUE(config.has_value()) << config.error().to_string();
    const auto tuned = fine_tune(*config);
    ASSERT_TRUE(tuned.has_value()) << tuned.error().to_string();
  }
  static std::string file(const std::string& name) {
    return std::string(TROUPE_SOURCE_DIR) + "/apps/troupe/config/" + name;
  }

  /// Of the configuration that comes with the game, smaller.
  result<TrainSummary> play(const std::string& name, const Words& more) {
    Words words{"actor_rollout_ref.model.path=" + (folder_ / "guess").string(),
                "data.train_files=[" + (folder_ / "rows.jsonl").string() + "]",
                "data.train_batch_size=4",
                "actor_rollout_ref.rollout.n=4",
                "actor_rollout_ref.rollout.kv_cache_mb=16",
                "actor_rollout_ref.rollout.max_num_seqs=6",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
                "async.no_progress_s=60",
                "trainer.total_training_steps=" + std::to_string(testing::kSteps),
                "trainer.seed=5",
                "trainer.progress=false",
                "trainer.default_local_dir=" + (folder_ / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto config =
        runtime::Config::load(schema_for(registries_), file("guess_grpo.yaml"), words);
    if (!config) return fail(config.error());
    return train(*config, registries_);
  }
  void expect_game(const std::string& name, const Words& more) {
    const auto done = play(name, more);
    ASSERT_TRUE(done.has_value()) << name << ": " << done.error().to_string();
    EXPECT_EQ(done->last_step, testing::kSteps);
  }
};

TEST_F(EnvironmentTrain, LearnsFromWholeEpisodesInEveryModeWithToolTokensMasked) {
  for (const std::string mode : {"sync", "one_step_off", "async", "pipelined"}) {
    SCOPED_TRACE(mode);
    expect_game(mode, {"trainer.mode=" + mode});
    double said = 0;
    double turns = 0;
    double gradients = 0;
    for (const runtime::MetricsRow& row : steps_of(mode)) {
      const double tokens = row.values.at("response_length/mean") * 16;
      const double trained = row.values.at("actor/tokens");
      said += tokens - trained;  // by the environment, one token a turn
      EXPECT_LE(trained, tokens);
      gradients += row.values.at("actor/grad_norm");
      turns += row.values.at("async/environment_turns");
    }
    EXPECT_GT(turns, said);
    EXPECT_GT(gradients, 0) << "there was nothing to learn";
    EXPECT_GT(said, 0) << "no episode had a second turn";
  }
}

TEST_F(EnvironmentTrain, StalenessZeroEqualsTheSynchronousLoopBitForBit) {
  expect_game("sync", {"trainer.mode=sync"});
  expect_game("async", {"trainer.mode=async", "async.staleness=0", "trainer.rollout_devices=2"});
  expect_same_end("sync", "async");
}

TEST_F(EnvironmentTrain, JudgesHeldOutPromptsByWholeEpisodes) {
  const Words held_out{"data.val_files=[" + (folder_ / "rows.jsonl").string() + "]",
                       "data.val_max_samples=8",
                       "trainer.test_freq=2",
                       "actor_rollout_ref.rollout.val_kwargs.n=2",
                       "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
                       "actor_rollout_ref.rollout.val_kwargs.temperature=1",
                       "async.staleness=0"};
  const std::string reward = "val-aux/troupe/guess/reward/mean@2";
  Words between = held_out;
  between.emplace_back("trainer.mode=sync");
  expect_game("between", between);
  double score = 0;
  for (const runtime::MetricsRow& row : rows_of("between"))
    if (row.values.contains(reward)) score = std::max(score, row.values.at(reward));
  EXPECT_GT(score, 0) << "only an environment gives scores here";
  Words beside = held_out;
  beside.insert(beside.end(), {"trainer.mode=async", "trainer.evaluation_devices=1",
                               "trainer.evaluation_wait_s=120"});
  expect_game("beside", beside);
  const auto rows = runtime::read_metrics((folder_ / "beside/evaluations.jsonl").string());
  ASSERT_TRUE(rows.has_value());
  ASSERT_FALSE(rows->empty());
  EXPECT_EQ(rows->back().step, testing::kSteps);
  EXPECT_EQ(rows->back().values.at(reward), rows_of("between").back().values.at(reward));
}

TEST_F(EnvironmentTrain, EndsWithItsNameWhenEveryEnvironmentFails) {
  struct Dungeon {
    result<std::string> reset(const actors::EnvironmentRow&) const { return std::string("0"); }
    result<actors::EnvironmentStep> step(const actors::EnvironmentInput&) const {
      return fail(ErrorCode::kIo, "the dungeon is closed");
    }
  };
  ASSERT_TRUE(registries_.environments.add("my/dungeon", Dungeon{}).has_value());
  for (const std::string mode : {"sync", "async"}) {
    const auto done = play(
        mode, {"trainer.mode=" + mode, "environment.name=my/dungeon", "data.train_batch_size=1",
               "environment.retries_max=0", "actor_rollout_ref.actor.ppo_mini_batch_size=1"});
    ASSERT_FALSE(done.has_value());
    const std::string told = done.error().to_string();
    for (const char* part : {"my/dungeon", "the dungeon is closed", "given up"})
      EXPECT_NE(told.find(part), std::string::npos) << "no '" << part << "' in: " << told;
  }
}

TEST_F(EnvironmentTrain, TheCommandMakesItsDataAndRefusesOptionsWithoutEffect) {
  const auto log = folder_ / "log";
  const std::string out = (folder_ / "made").string();
  const Words make{"data", "make", "guess", "--out", out, "--train-rows", "7", "--value-max", "4"};
  ASSERT_EQ(support::Program(make, log).wait(), 0) << support::read_file(log);
  const Words files{out + "/train.jsonl"};
  const auto rows = actors::Dataset::load(files, {});
  ASSERT_TRUE(rows.has_value()) << rows.error().to_string();
  EXPECT_EQ(rows->size(), 7);
  EXPECT_EQ(rows->rows()[0].prompt[0].content, "guess 0-4:");
  Words useless = make;
  useless.insert(useless.end(), {"--items-min", "3"});
  EXPECT_EQ(support::Program(useless, log).wait(), 2);
  EXPECT_NE(support::read_file(log).find("--items-min has no effect"), std::string::npos);
}

TEST_F(EnvironmentTrain, TakesRewardsFromAProgramInASandbox) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "no /usr/bin/python3";
  support::write_file(folder_ / "judge.py", R"(
import json, sys
for line in sys.stdin:
    row = json.loads(line)
    answer = row["response"]
    print(json.dumps({"id": row["id"], "score": len(set(answer)) / 16}), flush=True)
)");
  testing::make_rows(folder_ / "rows.jsonl", 24, "my/judge");
  support::make_tiny_model(folder_ / "model", {.hidden = 32});
  const Words words{
      "reward_model.sandbox.command=[/usr/bin/python3, " + (folder_ / "judge.py").string() + "]",
      "reward_model.sandbox.data_source=my/judge", "reward_model.sandbox.workers=1"};
  expect_run("sync", words);
  Words beside = words;
  beside.insert(beside.end(), {"trainer.mode=async", "async.staleness=0"});
  expect_run("async", beside);
  expect_same_end("sync", "async");
  for (const runtime::MetricsRow& row : steps_of("sync")) {
    EXPECT_GT(row.values.at("critic/score/mean"), 0);
    EXPECT_GT(row.values.at("critic/score/max"), row.values.at("critic/score/min"));
  }
}

}  // namespace
}  // namespace troupe::apps

// Proves that a program trains with an advantage estimator and a reward of its own, picked by name
// in the configuration, that the ranks' number does not change what is learned, what an evaluation
// counts, and pass@k against counting all subsets.

#include "apps/training/evaluate_app.hpp"
#include "apps/training/train_app.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace troupe::apps {
namespace {

void make_rows(const std::filesystem::path& file) {
  std::string lines;
  for (int row = 0; row < 16; ++row)
    lines += R"({"data_source":"my/vowels","prompt":[{"role":"user","content":"say )" +
             std::to_string(row) + R"("}],"reward_model":{"style":"rule","ground_truth":"a"}})" +
             "\n";
  testing::write_file(file, lines);
}

/// Share of letters `a`, so that there is something to learn in a few steps.
double vowel_reward(const actors::RewardInput& input) {
  double vowels = 0;
  for (const char letter : input.solution) vowels += letter >= 'a' && letter <= 'z' ? 1 : 0;
  return vowels / static_cast<double>(std::max<std::size_t>(input.solution.size(), 1));
}

TrainingRegistries own_registries(int* calls) {
  TrainingRegistries registries;
  EXPECT_TRUE(registries.rewards.add("my/vowels", vowel_reward).has_value());
  EXPECT_TRUE(registries.advantages
                  .add("centred",
                       [calls](const actors::AdvantageInput& input,
                               const actors::AdvantageOptions& options) {
                         ++*calls;
                         return actors::dr_grpo_advantage(input, options);
                       })
                  .has_value());
  return registries;
}

result<TrainSummary> run(const testing::TemporaryFolder& folder, const TrainingRegistries& own,
                         int ranks, const std::string& name) {
  const std::vector<std::string> words{
      "actor_rollout_ref.model.path=" + (folder / "model").string(),
      "data.train_files=[" + (folder / "rows.jsonl").string() + "]",
      "data.val_files=[" + (folder / "rows.jsonl").string() + "]",
      "data.train_batch_size=8",
      "data.max_prompt_length=40",
      "data.max_response_length=12",
      "actor_rollout_ref.rollout.n=4",
      "actor_rollout_ref.rollout.kv_cache_mb=16",
      "actor_rollout_ref.actor.optim.lr=1e-2",
      "algorithm.adv_estimator=centred",
      "trainer.n_gpus_per_node=" + std::to_string(ranks),
      "trainer.total_training_steps=4",
      "trainer.progress=false",
      "trainer.default_local_dir=" + (folder / name).string()};
  auto config = runtime::Config::load(schema_for(own), "", words);
  if (!config) return fail(config.error());
  return train(*config, own);
}

TEST(Train, UsesAnAdvantageAndARewardOfTheProgramsOwn) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model", {.hidden = 32, .layers = 2});
  make_rows(folder / "rows.jsonl");
  int calls = 0;
  const TrainingRegistries own = own_registries(&calls);
  const auto summary = run(folder, own, 1, "run");
  ASSERT_TRUE(summary.has_value()) << summary.error().to_string();
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(summary->last_step, 4);
  EXPECT_TRUE(summary->last_validation.contains("val-aux/my/vowels/reward/mean@1"));
}

TEST(Train, LearnsTheSameWithOneRankAsWithTwo) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model", {.hidden = 32, .layers = 2});
  make_rows(folder / "rows.jsonl");
  int calls = 0;
  const TrainingRegistries own = own_registries(&calls);
  const auto one = run(folder, own, 1, "one");
  const auto two = run(folder, own, 2, "two");
  ASSERT_TRUE(one.has_value()) << one.error().to_string();
  ASSERT_TRUE(two.has_value()) << two.error().to_string();
  const auto config = actors::ModelConfig::load(one->model);
  const auto a = actors::load_hf_weights(one->model, *config);
  const auto b = actors::load_hf_weights(two->model, *config);
  for (const actors::NamedTensor& tensor : a->tensors()) {
    const actors::NamedTensor* other = b->find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < tensor.data.size(); ++i) {
      difference += std::abs(static_cast<double>(tensor.data[i]) - other->data[i]);
      size += std::abs(static_cast<double>(tensor.data[i]));
    }
    EXPECT_LT(difference / size, 2e-3) << tensor.name;  // four steps of Adam at lr 1e-2
  }
}

TEST(Train, NamesTheRowsThatNoRewardCovers) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model", {.hidden = 32, .layers = 2});
  make_rows(folder / "rows.jsonl");
  const TrainingRegistries plain;
  auto config = runtime::Config::load(
      schema_for(plain), "",
      std::vector<std::string>{"actor_rollout_ref.model.path=" + (folder / "model").string(),
                               "data.train_files=[" + (folder / "rows.jsonl").string() + "]",
                               "trainer.default_local_dir=" + (folder / "run").string(),
                               "data.max_response_length=12"});
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  const auto refused = train(*config, plain);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("my/vowels"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(Evaluate, ScoresEveryPromptOfASourceAndKeepsSamplesWhenAsked) {
  testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model", {.hidden = 32, .layers = 2});
  make_rows(folder / "rows.jsonl");
  int calls = 0;
  const TrainingRegistries own = own_registries(&calls);
  std::vector<std::string> words{"actor_rollout_ref.model.path=" + (folder / "model").string(),
                                 "data.val_files=[" + (folder / "rows.jsonl").string() + "]",
                                 "data.max_prompt_length=40",
                                 "data.max_response_length=12",
                                 "data.val_batch_size=6",
                                 "actor_rollout_ref.rollout.kv_cache_mb=16",
                                 "actor_rollout_ref.rollout.val_kwargs.n=3",
                                 "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
                                 "actor_rollout_ref.rollout.val_kwargs.temperature=1",
                                 "trainer.n_gpus_per_node=2"};
  const auto config = runtime::Config::load(schema_for(own), "", words);
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  const auto evaluation = evaluate(*config, own, true);
  ASSERT_TRUE(evaluation.has_value()) << evaluation.error().to_string();
  ASSERT_EQ(evaluation->sources.size(), 1U);
  const SourceScores& scores = evaluation->sources.at("my/vowels");
  EXPECT_EQ(scores.prompts, 16);
  EXPECT_EQ(evaluation->samples.size(), 48U);
  double reward = 0;
  for (const auto& sample : evaluation->samples) reward += sample.score / 48;
  EXPECT_NEAR(scores.reward, reward, 1e-9);
  EXPECT_NEAR(scores.pass_at.at(1), scores.average, 1e-9);
  EXPECT_GE(scores.pass_at.at(3), scores.pass_at.at(2));

  std::vector<std::string> cut = words;
  cut.emplace_back("actor_rollout_ref.rollout.tensor_model_parallel_size=2");
  const auto cut_config = runtime::Config::load(schema_for(own), "", cut);
  ASSERT_TRUE(cut_config.has_value()) << cut_config.error().to_string();
  const auto by_two = evaluate(*cut_config, own, true);
  ASSERT_TRUE(by_two.has_value()) << by_two.error().to_string();
  ASSERT_EQ(by_two->samples.size(), evaluation->samples.size());
  EXPECT_EQ(by_two->sources.at("my/vowels").reward, scores.reward);

  words.emplace_back("data.max_response_length=64");  // the model has 64 positions
  const auto no_room = runtime::Config::load(schema_for(own), "", words);
  ASSERT_TRUE(no_room.has_value()) << no_room.error().to_string();
  const auto refused = evaluate(*no_room, own);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("data.max_response_length"), std::string::npos)
      << refused.error().message;
}

TEST(PassAtK, EqualsTheShareOfSubsetsThatHoldARightSample) {
  for (std::int64_t n = 1; n <= 8; ++n) {
    for (std::int64_t c = 0; c <= n; ++c) {
      for (std::int64_t k = 1; k <= n; ++k) {
        double subsets = 0, right = 0;
        for (unsigned set = 0; set < (1U << n); ++set) {
          if (__builtin_popcount(set) != k) continue;
          subsets += 1;
          right += (set & ((1U << c) - 1)) != 0 ? 1 : 0;
        }
        EXPECT_NEAR(pass_at_k(n, c, k), right / subsets, 1e-12) << n << " " << c << " " << k;
      }
    }
  }
}

}  // namespace
}  // namespace troupe::apps

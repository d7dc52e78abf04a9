// Proves that the roles do across rank processes what they do in one process, to the bit: the
// synchronous loop with a reference and a critic gives the same metrics, tokens and weights, and a
// checkpoint of either world continues in the other. Rank processes are children of this binary.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "runtime/task/executor.hpp"
#include "tests/support/process_job.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_world.hpp"
#include "tests/support/world_steps.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::value_or_throw;

WorldOptions world_options(const ModelConfig& model, const std::string& tokenizer_folder,
                           const WeightSet& weights) {
  WorldOptions options = testing::tiny_world_options(model, weights, tokenizer_folder, 2);
  options.policy.plan = {.rows = 10, .epochs = 1, .shuffle = true, .seed = 3};
  options.policy_update.objective.kl_coefficient = 0.05;
  options.reference = options.policy;
  options.critic = options.policy;
  options.critic->engine.head = ModelHead::kValue;
  options.value_update.options.clip = 0.5;
  return options;
}

/// What a world showed of itself, without times.
struct Outcome {
  std::vector<std::map<std::string, double>> metrics;
  std::vector<std::int32_t> tokens;
  std::vector<float> log_probs;
  std::vector<float> weights;
};

class ClusterWorldTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::int64_t vocabulary = 0;
    ASSERT_NO_FATAL_FAILURE(testing::make_tokenizer(folder_.path(), tokenizer_, vocabulary));
    const ModelConfig model = testing::tiny_model(vocabulary);
    weights_.emplace(random_weights(model, 1));
    options_ = world_options(model, folder_.path().string(), *weights_);
    job_.open(system_);
  }

  result<std::unique_ptr<GroupWorld>> local_world() {
    return GroupWorld::create(make_local_place(system_, options_, *tokenizer_, rules_), options_);
  }
  result<std::unique_ptr<GroupWorld>> cluster_world() { return job_.world(options_); }

  static Batch prompts() {
    Batch batch;
    std::vector<std::vector<std::int32_t>> rows;
    std::vector<std::int64_t> ids;
    for (std::int64_t row = 0; row < 5; ++row) {
      rows.emplace_back(static_cast<std::size_t>(3 + 5 * (row % 3)),
                        static_cast<std::int32_t>(10 + row));
      ids.push_back(row);
    }
    const std::vector<std::string> source(5, "any"), truth(5, "a"), extra(5, "{}");
    value_or_throw(batch.set(std::string(column::kPrompts), Column::jagged(rows)));
    value_or_throw(batch.set(std::string(column::kPromptIds), Column::dense(ids)));
    value_or_throw(batch.set(std::string(column::kDataSource), Column::strings(source)));
    value_or_throw(batch.set(std::string(column::kGroundTruth), Column::strings(truth)));
    value_or_throw(batch.set(std::string(column::kExtraInfo), Column::json(extra)));
    return batch;
  }

  testing::TemporaryFolder folder_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<WeightSet> weights_;
  RewardRegistry rules_ = testing::odd_rewards();
  WorldOptions options_;
  runtime::ActorSystem system_;
  testing::ProcessJob job_;
};

runtime::task<Outcome> look(GroupWorld& world, Batch prompts, Outcome outcome) {
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  Batch numbered = value_or_throw(number_samples(prompts, 2));
  Batch batch = co_await world.rollout().generate(std::move(numbered), sampling);
  batch = value_or_throw(batch.resolve());
  outcome.tokens = batch.column(column::kResponses).values<std::int32_t>();
  outcome.log_probs = batch.column(column::kRolloutLogProbs).values<float>();
  const WeightSet weights = co_await world.policy_weights();
  for (const NamedTensor& tensor : weights.tensors())
    outcome.weights.insert(outcome.weights.end(), tensor.data.begin(), tensor.data.end());
  co_return outcome;
}

runtime::task<Outcome> train(GroupWorld& world, Batch prompts, std::int64_t first,
                             std::int64_t last) {
  Outcome outcome;
  outcome.metrics = co_await testing::run_steps(world, prompts, first, last);
  co_return co_await look(world, prompts, std::move(outcome));
}

runtime::task<void> save_to(GroupWorld& world, std::filesystem::path root) {
  runtime::CheckpointWriter writer =
      value_or_throw(runtime::CheckpointWriter::begin({.root = root, .step = 1}));
  co_await world.save(writer);
  value_or_throw(writer.commit());
}

runtime::task<Outcome> go_on_from(GroupWorld& world, std::filesystem::path root, Batch prompts) {
  const auto checkpoint = value_or_throw(runtime::Checkpoint::latest(root));
  co_await world.load(*checkpoint);
  world.policy().set_updates(1);
  world.critic()->set_updates(1);
  world.weights().set_version(WeightVersion{1});
  co_return co_await train(world, prompts, 2, 2);
}

void expect_equal(const Outcome& one, const Outcome& other) {
  ASSERT_EQ(one.metrics.size(), other.metrics.size());
  for (std::size_t step = 0; step < one.metrics.size(); ++step) {
    ASSERT_EQ(one.metrics[step].size(), other.metrics[step].size());
    for (const auto& [name, value] : one.metrics[step]) {
      ASSERT_TRUE(other.metrics[step].contains(name)) << name;
      EXPECT_EQ(value, other.metrics[step].at(name)) << name << " step " << step;
    }
  }
  EXPECT_EQ(one.tokens, other.tokens);
  ASSERT_EQ(one.weights.size(), other.weights.size());
  EXPECT_EQ(
      std::memcmp(one.weights.data(), other.weights.data(), one.weights.size() * sizeof(float)), 0);
  ASSERT_EQ(one.log_probs.size(), other.log_probs.size());
  EXPECT_EQ(std::memcmp(one.log_probs.data(), other.log_probs.data(),
                        one.log_probs.size() * sizeof(float)),
            0);
}

TEST_F(ClusterWorldTest, TrainsToTheSameBitsInProcessesAsInOneProcess) {
  runtime::Executor executor;
  auto local = local_world();
  ASSERT_TRUE(local.has_value()) << local.error().to_string();
  const auto here = executor.run(train(**local, prompts(), 1, 2));
  ASSERT_TRUE(here.has_value()) << here.error().to_string();
  EXPECT_GT(here->metrics[1].at("actor/grad_norm"), 0);

  auto cluster = cluster_world();
  ASSERT_TRUE(cluster.has_value()) << cluster.error().to_string();
  const auto there = executor.run(train(**cluster, prompts(), 1, 2));
  ASSERT_TRUE(there.has_value()) << there.error().to_string();
  expect_equal(*here, *there);
}

TEST_F(ClusterWorldTest, ContinuesACheckpointOfEitherWorldInTheOther) {
  runtime::Executor executor;
  const auto root_here = folder_ / "here";
  const auto root_there = folder_ / "there";
  result<Outcome> whole;
  {
    auto local = local_world();
    ASSERT_TRUE(local.has_value()) << local.error().to_string();
    ASSERT_TRUE(executor.run(train(**local, prompts(), 1, 1)).has_value());
    ASSERT_TRUE(executor.run(save_to(**local, root_here)).has_value());
    whole = executor.run(train(**local, prompts(), 2, 2));
    ASSERT_TRUE(whole.has_value()) << whole.error().to_string();
  }
  {
    auto cluster = cluster_world();
    ASSERT_TRUE(cluster.has_value()) << cluster.error().to_string();
    const auto resumed = executor.run(go_on_from(**cluster, root_here, prompts()));
    ASSERT_TRUE(resumed.has_value()) << resumed.error().to_string();
    expect_equal(*whole, *resumed);
  }
  {
    auto cluster = cluster_world();
    ASSERT_TRUE(cluster.has_value()) << cluster.error().to_string();
    ASSERT_TRUE(executor.run(train(**cluster, prompts(), 1, 1)).has_value());
    const auto saved = executor.run(save_to(**cluster, root_there));
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
  }
  auto local = local_world();
  ASSERT_TRUE(local.has_value()) << local.error().to_string();
  const auto resumed = executor.run(go_on_from(**local, root_there, prompts()));
  ASSERT_TRUE(resumed.has_value()) << resumed.error().to_string();
  expect_equal(*whole, *resumed);
}

TEST_F(ClusterWorldTest, SaysWhichModelIsMissingOnWhichRank) {
  options_.policy.source.random = false;
  options_.policy.source.folder = "/no/such/model";
  const auto world = cluster_world();
  ASSERT_FALSE(world.has_value());
  const Error& root = world.error().root_cause();
  EXPECT_EQ(root.code, ErrorCode::kNotFound) << world.error().to_string();
  EXPECT_NE(root.message.find("/no/such/model"), std::string::npos) << world.error().to_string();
  EXPECT_NE(world.error().to_string().find("policy"), std::string::npos);
}

}  // namespace

}  // namespace troupe::actors

int main(int count, char** words) { return troupe::testing::run_as_rank_or_tests(count, words); }

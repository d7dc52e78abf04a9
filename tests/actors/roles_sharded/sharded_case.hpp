#pragma once

// A small GRPO run over a world of four devices, on any layout of trainer and rollout engine, and
// what it showed of itself.
// **Threads:** one.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "runtime/task/executor.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_world.hpp"
#include "tests/support/world_steps.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors::testing {

using runtime::Batch;
using runtime::Column;
using runtime::value_or_throw;
using troupe::testing::odd_rewards;
using troupe::testing::TemporaryFolder;

inline constexpr double kLearningRate = 3e-3;

/// How one run is cut.
struct Layout {
  std::string name = {};
  ParallelOptions train = {};
  int rollout_tp = 1;
  int devices = 4;
};

inline std::vector<Layout> train_layouts() {
  return {{.name = "dp4", .train = {}},
          {.name = "tp2·fsdp2", .train = {.tp = 2, .sharding = Sharding::kFsdp}},
          {.name = "dp2·tp2", .train = {.tp = 2}},
          {.name = "pp2·dp2", .train = {.pp = 2}},
          {.name = "pp2·tp2", .train = {.tp = 2, .pp = 2}},
          {.name = "fsdp4", .train = {.sharding = Sharding::kFsdp}},
          {.name = "zero1", .train = {.sharding = Sharding::kZero1}},
          {.name = "tp4", .train = {.tp = 4}}};
}

/// Four heads, two kv heads (held twice with tp 4), two layers, a vocabulary that 4 does not
/// divide, tied embeddings.
inline ModelConfig sharded_model(std::int64_t vocabulary) {
  ModelConfig model = troupe::testing::tiny_model(vocabulary, 32, 2);
  return model;
}

inline WorldOptions sharded_options(const ModelConfig& model, const WeightSet& weights,
                                    const std::string& tokenizer_folder, const Layout& layout) {
  WorldOptions options =
      troupe::testing::tiny_world_options(model, weights, tokenizer_folder, layout.devices);
  options.policy.engine.micro_batch_tokens_max = 128;
  options.policy.engine.optimizer.lr = kLearningRate;
  // Far above the rounding of a gradient, far below most gradients: where one is nearly 0, its
  // rounding does not become a step of full size.
  options.policy.engine.optimizer.eps = 1e-3;
  options.policy.engine.parallel = layout.train;
  options.policy.plan = {.rows = 12, .epochs = 1, .shuffle = true, .seed = 3};
  options.rollout_tp = layout.rollout_tp;
  return options;
}

inline Batch sharded_prompts() {
  constexpr std::int64_t kRows = 6;
  Batch batch;
  std::vector<std::vector<std::int32_t>> rows;
  std::vector<std::int64_t> ids;
  for (std::int64_t row = 0; row < kRows; ++row) {
    rows.emplace_back(static_cast<std::size_t>(3 + 5 * (row % 3)),
                      static_cast<std::int32_t>(10 + row));
    ids.push_back(row);
  }
  const std::vector<std::string> source(kRows, "any"), truth(kRows, "a"), extra(kRows, "{}");
  value_or_throw(batch.set(std::string(column::kPrompts), Column::jagged(rows)));
  value_or_throw(batch.set(std::string(column::kPromptIds), Column::dense(ids)));
  value_or_throw(batch.set(std::string(column::kDataSource), Column::strings(source)));
  value_or_throw(batch.set(std::string(column::kGroundTruth), Column::strings(truth)));
  value_or_throw(batch.set(std::string(column::kExtraInfo), Column::json(extra)));
  return batch;
}

/// What a run showed of itself, without times and places.
struct Outcome {
  std::vector<std::map<std::string, double>> metrics;
  std::vector<std::int32_t> tokens;  ///< sampled after the last publication
  std::vector<std::int64_t> versions;
  std::vector<float> weights;
};

/// GRPO, or PPO when the world has a critic.
inline runtime::task<Outcome> sharded_run(GroupWorld& world, std::int64_t first,
                                          std::int64_t last) {
  const Batch prompts = sharded_prompts();
  Outcome outcome;
  outcome.metrics = co_await troupe::testing::run_steps(world, prompts, first, last);
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  sampling.seed = 77;
  Batch numbered = value_or_throw(number_samples(prompts, 2));
  Batch batch = co_await world.rollout().generate(std::move(numbered), std::move(sampling));
  batch = value_or_throw(batch.resolve());
  outcome.tokens = batch.column(column::kResponses).values<std::int32_t>();
  outcome.versions = batch.column(column::kVersions).values<std::int64_t>();
  const WeightSet weights = co_await world.policy_weights();
  for (const NamedTensor& tensor : weights.tensors())
    outcome.weights.insert(outcome.weights.end(), tensor.data.begin(), tensor.data.end());
  co_return outcome;
}

inline void expect_same_bits(const Outcome& one, const Outcome& other, const std::string& which) {
  ASSERT_EQ(one.metrics.size(), other.metrics.size()) << which;
  for (std::size_t step = 0; step < one.metrics.size(); ++step) {
    ASSERT_EQ(one.metrics[step].size(), other.metrics[step].size()) << which;
    for (const auto& [name, value] : one.metrics[step]) {
      ASSERT_TRUE(other.metrics[step].contains(name)) << which << ": " << name;
      EXPECT_EQ(value, other.metrics[step].at(name)) << which << ": " << name << " step " << step;
    }
  }
  EXPECT_EQ(one.tokens, other.tokens) << which;
  ASSERT_EQ(one.weights.size(), other.weights.size()) << which;
  EXPECT_EQ(
      std::memcmp(one.weights.data(), other.weights.data(), one.weights.size() * sizeof(float)), 0)
      << which;
}

/// The same samples and rewards; numbers as near as float rounding leaves them after `steps`.
inline void expect_same_run(const Outcome& plain, const Outcome& cut, const std::string& which) {
  EXPECT_EQ(plain.tokens, cut.tokens) << which;
  EXPECT_EQ(plain.versions, cut.versions) << which;
  ASSERT_EQ(plain.metrics.size(), cut.metrics.size()) << which;
  for (std::size_t step = 0; step < plain.metrics.size(); ++step) {
    const auto& wanted = plain.metrics[step];
    const auto& found = cut.metrics[step];
    for (const char* name : {"critic/score/mean", "critic/score/max", "critic/score/min",
                             "response_length/mean", "training/weight_version"}) {
      ASSERT_TRUE(wanted.contains(name) && found.contains(name)) << which << ": " << name;
      EXPECT_EQ(wanted.at(name), found.at(name)) << which << ": " << name << " step " << step;
    }
    for (const char* name : {"actor/grad_norm", "actor/pg_loss"})
      EXPECT_NEAR(wanted.at(name), found.at(name), 1e-4 * (std::abs(wanted.at(name)) + 1e-2))
          << which << ": " << name << " step " << step;
    EXPECT_LT(found.at("canary/log_probs_diff_max"), 1e-4) << which;
  }
  ASSERT_EQ(plain.weights.size(), cut.weights.size()) << which;
  double largest = 0;
  for (std::size_t i = 0; i < plain.weights.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(plain.weights[i]) -
                                         static_cast<double>(cut.weights[i])));
  // An update moves a weight by up to the learning rate; rounding of its gradient by this much.
  EXPECT_LT(largest, 0.01 * kLearningRate) << which;
}

/// Model, tokenizer and rules that all worlds of a test share.
class ShardedCase : public ::testing::Test {
 protected:
  void SetUp() override {
    std::int64_t vocabulary = 0;
    ASSERT_NO_FATAL_FAILURE(
        troupe::testing::make_tokenizer(folder_.path(), tokenizer_, vocabulary));
    model_ = sharded_model(vocabulary);
    weights_.emplace(random_weights(model_, 1));
  }

  WorldOptions options(const Layout& layout) const {
    return sharded_options(model_, *weights_, folder_.path().string(), layout);
  }
  result<std::unique_ptr<GroupWorld>> local_world(const WorldOptions& options) {
    return GroupWorld::create(make_local_place(system_, options, *tokenizer_, rules_), options);
  }
  /// Steps 1 to `steps` in this process.
  result<Outcome> run_here(const Layout& layout, std::int64_t steps) {
    TROUPE_TRY(auto world, local_world(options(layout)));
    runtime::Executor executor;
    return executor.run(sharded_run(*world, 1, steps));
  }

  TemporaryFolder folder_;
  std::optional<Tokenizer> tokenizer_;
  ModelConfig model_;
  std::optional<WeightSet> weights_;
  RewardRegistry rules_ = odd_rewards();
  runtime::ActorSystem system_;
};

}  // namespace troupe::actors::testing

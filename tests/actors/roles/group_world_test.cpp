// Proves the colocated world over real engines on a tiny model: each role does its part of a step,
// rows come back in the caller's order whatever the balancing, the ledger knows who holds what, and
// a device that is too small is refused with the table.

#include "actors/roles/group_world.hpp"

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/columns.hpp"
#include "actors/loops/sample_numbering.hpp"
#include "runtime/task/executor.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"
#include "tests/support/tiny_world.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

using runtime::Batch;
using runtime::Column;
using runtime::value_or_throw;

class LocalWorldTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::int64_t vocabulary = 0;
    ASSERT_NO_FATAL_FAILURE(testing::make_tokenizer(folder_.path(), tokenizer_, vocabulary));
    const ModelConfig model = testing::tiny_model(vocabulary);
    weights_.emplace(random_weights(model, 1));
    options_.devices = 2;
    options_.policy.model = model;
    options_.policy.weights = weights_->tensors();
    options_.policy.engine.micro_batch_tokens_max = 256;
    options_.policy.engine.optimizer.lr = 1e-2;
    options_.policy.plan.rows = 64;
    options_.policy_update.loss = "vanilla";
    options_.rollout.kv_bytes_max = mebibytes(1);
  }

  result<std::unique_ptr<GroupWorld>> make_world() {
    return GroupWorld::create(make_local_place(system_, options_, *tokenizer_, rules_), options_);
  }

  /// Prompts of different lengths, three samples each.
  static Batch samples() {
    Batch batch;
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<std::int64_t> ids;
    for (std::int64_t row = 0; row < 5; ++row) {
      prompts.emplace_back(static_cast<std::size_t>(3 + 5 * (row % 3)),
                           static_cast<std::int32_t>(10 + row));
      ids.push_back(row);
    }
    const std::vector<std::string> source(5, "exact_match"), truth(5, "a"), extra(5, "{}");
    value_or_throw(batch.set(std::string(column::kPrompts), Column::jagged(prompts)));
    value_or_throw(batch.set(std::string(column::kPromptIds), Column::dense(ids)));
    value_or_throw(batch.set(std::string(column::kDataSource), Column::strings(source)));
    value_or_throw(batch.set(std::string(column::kGroundTruth), Column::strings(truth)));
    value_or_throw(batch.set(std::string(column::kExtraInfo), Column::json(extra)));
    return value_or_throw(number_samples(batch, 3));
  }

  testing::TemporaryFolder folder_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<WeightSet> weights_;
  RewardRegistry rules_ = default_rewards();
  WorldOptions options_;
  runtime::ActorSystem system_;
};

runtime::task<Batch> generate_and_look(GroupWorld& world, Batch prompts) {
  co_await world.weights().publish_present();
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  Batch batch = co_await world.rollout().generate(std::move(prompts), sampling);
  Batch scores = co_await world.reward().score(batch);
  value_or_throw(batch.merge(scores));
  Batch old = co_await world.policy().log_probs(batch);
  value_or_throw(batch.merge(old));
  Batch reference = co_await world.reference()->log_probs(batch);
  value_or_throw(batch.merge(reference));
  co_return value_or_throw(batch.resolve());
}

TEST_F(LocalWorldTest, HandsRowsBackInTheCallersOrderFromEveryRole) {
  options_.reference = options_.policy;
  auto world = make_world();
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  runtime::Executor executor;
  const auto batch = executor.run(generate_and_look(**world, samples()));
  ASSERT_TRUE(batch.has_value()) << batch.error().to_string();
  ASSERT_EQ(batch->rows(), 15);
  EXPECT_EQ(batch->column(column::kPromptIds).scalar<std::int64_t>(14), 4);
  const auto rollout = batch->column(column::kRolloutLogProbs).values<float>();
  const auto trainer = batch->column(column::kOldLogProbs).values<float>();
  const auto reference = batch->column(column::kReferenceLogProbs).values<float>();
  ASSERT_EQ(rollout.size(), trainer.size());
  // Rows in another order would be far apart: the lengths and tokens of rows differ.
  for (std::size_t t = 0; t < rollout.size(); ++t) {
    EXPECT_NEAR(rollout[t], trainer[t], 1e-4) << t;
    EXPECT_NEAR(trainer[t], reference[t], 1e-4) << t;
  }
  EXPECT_LT(*batch->metrics().value("training/rollout_log_probs_diff_max"), 1e-4);
}

runtime::task<Batch> learn_and_publish(GroupWorld& world, Batch prompts) {
  Batch batch = co_await generate_and_look(world, std::move(prompts));
  std::vector<std::vector<float>> advantages;
  for (std::int64_t row = 0; row < batch.rows(); ++row)
    advantages.emplace_back(
        static_cast<std::size_t>(batch.column(column::kResponses).row_length(row)),
        row % 2 == 0 ? 1.0F : -1.0F);
  value_or_throw(batch.set(std::string(column::kAdvantages), Column::jagged(advantages)));
  co_await world.policy().update(batch);
  co_await world.weights().publish();
  // What the trainer now says of the old samples, and what the rollout engine does.
  Batch again = value_or_throw(
      batch.select({std::string(column::kPrompts), std::string(column::kPromptIds),
                    std::string(column::kGroup), std::string(column::kSampleIndex)}));
  SamplingOptions sampling;
  sampling.max_new_tokens = 12;
  Batch fresh = co_await world.rollout().generate(std::move(again), sampling);
  Batch old = co_await world.policy().log_probs(fresh);
  value_or_throw(fresh.merge(old));
  co_return value_or_throw(fresh.resolve());
}

TEST_F(LocalWorldTest, PublishesWhatItLearnedAndStampsTheNewVersion) {
  options_.reference = options_.policy;
  auto world = make_world();
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  runtime::Executor executor;
  const auto batch = executor.run(learn_and_publish(**world, samples()));
  ASSERT_TRUE(batch.has_value()) << batch.error().to_string();
  for (const std::int64_t version : batch->column(column::kVersions).values<std::int64_t>())
    EXPECT_EQ(version, 1);
  const auto rollout = batch->column(column::kRolloutLogProbs).values<float>();
  const auto trainer = batch->column(column::kOldLogProbs).values<float>();
  for (std::size_t t = 0; t < rollout.size(); ++t) EXPECT_NEAR(rollout[t], trainer[t], 1e-4) << t;
}

TEST_F(LocalWorldTest, KnowsWhoHoldsWhatAndRefusesADeviceThatIsTooSmall) {
  auto world = make_world();
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  const auto ledger = *(*world)->ledger(1);
  const auto weight_bytes = static_cast<std::int64_t>(
      static_cast<std::size_t>(options_.policy.model.parameter_count()) * sizeof(float));
  EXPECT_EQ(ledger.find({"policy", "weights"})->bytes.value, weight_bytes);
  EXPECT_EQ(ledger.find({"policy", "optimizer"})->bytes.value, 2 * weight_bytes);
  EXPECT_GT(ledger.find({"rollout", "kv cache"})->bytes.value, 0);
  EXPECT_EQ(ledger.find({"ref", "weights"}), nullptr);

  options_.device_memory = kibibytes(64);
  const auto small = make_world();
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().root_cause().code, ErrorCode::kResourceExhausted)
      << small.error().to_string();
  options_.devices = 0;
  EXPECT_FALSE(make_world().has_value());
}

}  // namespace
}  // namespace troupe::actors

#pragma once

// Whole runs of `train` on a tiny model: made by overrides, compared by their checkpoints and rows.
// **Threads:** one object, one thread.

#include "apps/training/train_app.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

namespace troupe::apps::testing {

namespace support = troupe::testing;
using runtime::Checkpoint;
using Words = std::vector<std::string>;

constexpr std::int64_t kSteps = 4;

inline void make_rows(const std::filesystem::path& file, int count, const std::string& source) {
  std::string lines;
  for (int row = 0; row < count; ++row)
    lines += R"({"data_source":")" + source + R"(","prompt":"say )" + std::to_string(row) +
             R"(","reward_model":{"ground_truth":"a"}})" + "\n";
  support::write_file(file, lines);
}

/// Rewards that vary between samples, that never do, and that fail.
inline void add_rewards(TrainingRegistries& registries) {
  using actors::RewardInput;
  using actors::RewardScore;
  const auto varied = [](const RewardInput& input) {
    double sum = 0;
    for (const char c : input.solution) sum += static_cast<unsigned char>(c);
    return std::fmod(sum, 7.0) / 7.0;
  };
  const auto equal = [](const RewardInput&) { return 0.5; };
  const auto broken = [](const RewardInput&) -> result<RewardScore> {
    return fail(ErrorCode::kInternal, "the judge has left");
  };
  ASSERT_TRUE(registries.rewards.add("varied", varied).has_value());
  ASSERT_TRUE(registries.rewards.add("equal", equal).has_value());
  ASSERT_TRUE(registries.rewards.add("broken", broken).has_value());
}

class TrainCase : public ::testing::Test {
 protected:
  void SetUp() override {
    support::make_tiny_model(folder_ / "model", {.hidden = 32});
    make_rows(folder_ / "rows.jsonl", 24, "varied");
    add_rewards(registries_);
  }

  result<TrainSummary> run(const std::string& name, const Words& more,
                           const std::atomic<bool>* stop = nullptr) {
    Words words{"actor_rollout_ref.model.path=" + (folder_ / "model").string(),
                "data.train_files=[" + (folder_ / "rows.jsonl").string() + "]",
                "data.train_batch_size=4",
                "data.max_prompt_length=40",
                "data.max_response_length=8",
                "actor_rollout_ref.rollout.n=4",
                "actor_rollout_ref.rollout.kv_cache_mb=16",
                "actor_rollout_ref.rollout.max_num_seqs=6",
                "actor_rollout_ref.actor.optim.lr=1e-3",
                "actor_rollout_ref.actor.ppo_mini_batch_size=4",
                "algorithm.adv_estimator=grpo",
                "async.no_progress_s=60",
                "trainer.total_training_steps=" + std::to_string(kSteps),
                "trainer.seed=5",
                "trainer.progress=false",
                "trainer.default_local_dir=" + (folder_ / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto config = runtime::Config::load(schema_for(registries_), "", words);
    if (!config) return fail(config.error());
    return train(*config, registries_, stop);
  }

  void expect_run(const std::string& name, const Words& more) {
    const auto done = run(name, more);
    ASSERT_TRUE(done.has_value()) << name << ": " << done.error().to_string();
    EXPECT_EQ(done->last_step, kSteps);
  }

  std::optional<Checkpoint> end_of(const std::string& name) const {
    auto opened = Checkpoint::open(runtime::checkpoint_folder(folder_ / name, kSteps));
    if (!opened) ADD_FAILURE() << opened.error().to_string();
    return opened ? std::optional(std::move(*opened)) : std::nullopt;
  }

  /// The row of step 0 stands for what was there before the first.
  std::vector<runtime::MetricsRow> rows_of(const std::string& name) const {
    auto rows = runtime::read_metrics((folder_ / name / "metrics.jsonl").string());
    EXPECT_TRUE(rows.has_value());
    return rows.value_or(std::vector<runtime::MetricsRow>());
  }
  std::vector<runtime::MetricsRow> steps_of(const std::string& name) const {
    auto rows = rows_of(name);
    std::erase_if(rows, [](const runtime::MetricsRow& row) { return row.step == 0; });
    EXPECT_EQ(rows.size(), static_cast<std::size_t>(kSteps));
    return rows;
  }

  /// Weights, moments and counters: bit for bit, or to `within` of the largest number.
  void expect_same_end(const std::string& a, const std::string& b, double within = 0) const {
    const auto left = end_of(a);
    const auto right = end_of(b);
    if (!left || !right) return;
    for (const auto& [name, text] : left->index().states)
      EXPECT_EQ(text, right->index().states.at(name)) << name << " of " << a << " and " << b;
    ASSERT_EQ(left->index().tensors.size(), right->index().tensors.size());
    for (const auto& [name, tensor] : left->index().tensors) {
      const auto x = left->tensor<float>(name);
      const auto y = right->tensor<float>(name);
      ASSERT_TRUE(x.has_value() && y.has_value()) << name;
      if (within == 0) {
        EXPECT_TRUE(*x == *y) << name << " of " << a << " and " << b;
        continue;
      }
      ASSERT_EQ(x->size(), y->size());
      double difference = 0;
      double size = 0;
      for (std::size_t i = 0; i < x->size(); ++i) {
        difference += std::fabs(static_cast<double>((*x)[i]) - static_cast<double>((*y)[i]));
        size += std::fabs(static_cast<double>((*x)[i]));
      }
      EXPECT_LE(difference, within * size) << name << " of " << a << " and " << b;
    }
  }

  /// What the loop learned from, and what came of it.
  void expect_same_metrics(const std::string& a, const std::string& b, double within = 0) const {
    const auto left = rows_of(a);
    const auto right = rows_of(b);
    ASSERT_EQ(left.size(), right.size());
    for (std::size_t row = 0; row < left.size(); ++row) {
      EXPECT_EQ(left[row].step, right[row].step);
      for (const auto& [name, value] : left[row].values) {
        if (depends_on_where(name)) continue;
        const auto found = right[row].values.find(name);
        ASSERT_NE(found, right[row].values.end()) << name << " in row " << row << " of " << b;
        if (within == 0) {
          EXPECT_EQ(value, found->second) << name << " in row " << row << " of " << b;
        } else {
          EXPECT_NEAR(value, found->second, within * (1 + std::fabs(value)))
              << name << " in row " << row << " of " << b;
        }
      }
    }
  }

  /// Times, and what is counted by rank, slice, part or transfer.
  static bool depends_on_where(const std::string& name) {
    for (const char* prefix :
         {"timing_s/", "time/", "perf/", "rollout/", "update_weights/", "reward/"})
      if (name.starts_with(prefix)) return true;
    for (const char* end : {"/idle_ratio", "/micro_batches", "canary/replicas"})
      if (name.ends_with(end)) return true;
    return false;
  }

  support::TemporaryFolder folder_;
  TrainingRegistries registries_;
};

}  // namespace troupe::apps::testing

// Proves what the loops beside training promise, with real engines on a tiny model: staleness 0
// gives the bits of the synchronous loop (weights, optimizer, counters, metrics) whatever the
// number and the cut of replicas, pipelined training the same to rounding; a run that was stopped
// in the middle goes on where it was; and each way in which a run has nothing to train on ends with
// a message of its own.

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

namespace troupe::apps {
namespace {

using runtime::Checkpoint;
using Words = std::vector<std::string>;

constexpr std::int64_t kSteps = 4;

void make_rows(const std::filesystem::path& file, int count, const std::string& source) {
  std::string lines;
  for (int row = 0; row < count; ++row)
    lines += R"({"data_source":")" + source + R"(","prompt":"say )" + std::to_string(row) +
             R"(","reward_model":{"ground_truth":"a"}})" + "\n";
  testing::write_file(file, lines);
}

/// Rewards that vary between samples, that never do, and that fail.
void add_rewards(TrainingRegistries& registries) {
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

class AsyncTrain : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::make_tiny_model(folder_ / "model", {.hidden = 32});
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

  testing::TemporaryFolder folder_;
  TrainingRegistries registries_;
};

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
  const std::string page = testing::read_file(folder_ / "async/report.html");
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

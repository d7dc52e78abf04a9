// Proves, by whole runs on a tiny model, that every correction trains; that at lag 0 none of them
// changes what is learned beyond the rounding between both engines; and, with lr 0 over 100 steps,
// that ratios stay 1 and the mismatch between trainer and rollout engine stays flat under
// temperature, top-k and top-p.
#include "apps/training/train_app.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace troupe::apps {
namespace {

using Rows = std::vector<runtime::MetricsRow>;

class CorrectionRun : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::make_tiny_model(folder_ / "model");
    std::string lines;
    for (int row = 0; row < 16; ++row)
      lines += R"({"data_source":"my/letters","prompt":[{"role":"user","content":"say )" +
               std::to_string(row) + R"("}],"reward_model":{"style":"rule","ground_truth":"a"}})" +
               "\n";
    testing::write_file(folder_ / "rows.jsonl", lines);
    ASSERT_TRUE(own_.rewards.add("my/letters", [](const actors::RewardInput& input) {
      double letters = 0;
      for (const char c : input.solution) letters += c >= 'a' && c <= 'z' ? 1 : 0;
      return letters / static_cast<double>(std::max<std::size_t>(input.solution.size(), 1));
    }));
  }

  Rows run(const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> words{"actor_rollout_ref.model.path=" + (folder_ / "model").string(),
                                   "data.train_files=[" + (folder_ / "rows.jsonl").string() + "]",
                                   "data.train_batch_size=8",
                                   "data.max_prompt_length=40",
                                   "data.max_response_length=12",
                                   "actor_rollout_ref.rollout.n=4",
                                   "actor_rollout_ref.rollout.kv_cache_mb=16",
                                   "algorithm.adv_estimator=grpo",
                                   "trainer.progress=false",
                                   "trainer.trace=false",
                                   "trainer.val_before_train=false",
                                   "trainer.log_level=warn",
                                   "trainer.default_local_dir=" + (folder_ / name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const auto config = runtime::Config::load(schema_for(own_), "", words);
    EXPECT_TRUE(config) << name << ": " << config.error().message;
    if (!config) return {};
    const auto done = train(*config, own_);
    EXPECT_TRUE(done) << name << ": " << done.error().to_string();
    if (!done) return {};
    return runtime::read_metrics((folder_ / name / "metrics.jsonl").string()).value();
  }

  testing::TemporaryFolder folder_;
  TrainingRegistries own_;
};

double value(const runtime::MetricsRow& row, const std::string& name) {
  const auto found = row.values.find(name);
  EXPECT_NE(found, row.values.end()) << "step " << row.step << ": no " << name;
  return found == row.values.end() ? std::nan("") : found->second;
}

TEST_F(CorrectionRun, LearnsTheSameAtLagZeroWhateverCorrects) {
  const std::vector<std::string> base{"trainer.total_training_steps=2",
                                      "actor_rollout_ref.actor.optim.lr=1e-3"};
  const Rows plain = run("plain", base);
  ASSERT_EQ(plain.size(), 2U);
  for (const std::string& preset : actors::default_corrections().names()) {
    SCOPED_TRACE(preset);
    auto words = base;
    words.push_back("algorithm.rollout_correction.preset=" + preset);
    // gspo's own aggregation is another than the rest's.
    words.emplace_back("actor_rollout_ref.actor.loss_agg_mode=token-mean");
    const Rows rows = run(preset, words);
    ASSERT_EQ(rows.size(), 2U);
    for (const runtime::MetricsRow& row : rows) {
      EXPECT_NEAR(value(row, "rollout_corr/ratio"), 1, 1e-4);
      EXPECT_NEAR(value(row, "rollout_corr/ratio_ess"), 1, 1e-4);
      EXPECT_NEAR(value(row, "rollout_corr/k3_kl"), 0, 1e-6);
      EXPECT_LT(value(row, "sampling_logp_difference/max"), 1e-4);
    }
    if (preset == "gspo") continue;  // its gradient is that of whole sequences
    EXPECT_NEAR(value(rows[0], "actor/grad_norm"), value(plain[0], "actor/grad_norm"),
                1e-3 * value(plain[0], "actor/grad_norm"));
  }
}

TEST_F(CorrectionRun, LogsRatiosAlsoWhereNothingIsCorrected) {
  const Rows rows = run("logged", {"trainer.total_training_steps=1"});
  ASSERT_EQ(rows.size(), 1U);
  for (const char* name : {"rollout_corr/ratio", "rollout_corr/ratio_min", "rollout_corr/ratio_max",
                           "rollout_corr/ratio_ess", "rollout_corr/kl", "rollout_corr/k3_kl",
                           "rollout_corr/masked_fraction", "sampling_logp_difference/mean",
                           "sampling_logp_difference/max"})
    EXPECT_TRUE(rows[0].values.contains(name)) << name;
}

TEST_F(CorrectionRun, StaysAtRatioOneForAHundredStepsOfNoLearning) {
  const Rows rows =
      run("soak", {"trainer.total_training_steps=100", "actor_rollout_ref.actor.optim.lr=0",
                   "actor_rollout_ref.rollout.temperature=0.8",
                   "actor_rollout_ref.rollout.top_p=0.9", "actor_rollout_ref.rollout.top_k=40"});
  ASSERT_EQ(rows.size(), 100U);
  const auto mean = [&](std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i)
      sum += value(rows[i], "sampling_logp_difference/mean") / static_cast<double>(to - from);
    return sum;
  };
  for (const runtime::MetricsRow& row : rows) {
    SCOPED_TRACE(::testing::Message() << "step " << row.step);
    EXPECT_NEAR(value(row, "rollout_corr/ratio"), 1, 1e-3);
    EXPECT_LT(std::abs(value(row, "rollout_corr/kl")), 1e-3);
    EXPECT_LT(value(row, "rollout_corr/k3_kl"), 1e-4);
    EXPECT_GT(value(row, "rollout_corr/ratio_ess"), 0.999);
  }
  EXPECT_LT(mean(70, 100), 2 * mean(0, 30) + 1e-6) << "the mismatch grows though nothing is learnt";
}

TEST_F(CorrectionRun, HasRatioOneAlsoBetweenWholeDistributions) {
  const Rows rows = run("full", {"trainer.total_training_steps=2",
                                 "actor_rollout_ref.actor.optim.lr=0",
                                 "actor_rollout_ref.rollout.top_p=0.7",
                                 "algorithm.rollout_correction.log_probs=full"});
  for (const runtime::MetricsRow& row : rows)
    EXPECT_NEAR(value(row, "rollout_corr/ratio"), 1, 1e-3);
}

}  // namespace
}  // namespace troupe::apps

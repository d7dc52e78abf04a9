// Proves what the keys of off-policy correction mean, and that combinations which would count a
// ratio twice, have no effect, or cannot be computed are refused at the start: one error that names
// the key and both values.
#include "apps/training/correction_keys.hpp"

#include "apps/training/train_schema.hpp"
#include "runtime/config/config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::apps {
namespace {

using actors::ProximalSource;
using runtime::Config;
using ::testing::HasSubstr;

const std::string kCorrection = "algorithm.rollout_correction.";
const std::string kLoss = "actor_rollout_ref.actor.policy_loss.loss_mode=";

std::vector<std::string> full_words(std::vector<std::string> words) {
  for (std::string& word : words)
    if (word.find('.') > word.find('=')) word = kCorrection + word;
  return words;
}

Config config_of(const std::vector<std::string>& words) {
  auto config = Config::parse(train_schema({}), "", "c.yaml", full_words(words));
  EXPECT_TRUE(config) << config.error().message;
  return *config;
}

std::string refusal(const std::vector<std::string>& words) {
  const auto config = Config::parse(train_schema({}), "", "c.yaml", full_words(words));
  return config ? "(accepted)" : config.error().message;
}

actors::PolicyUpdateSettings settings_of(const Config& config) {
  actors::PolicyUpdateSettings settings;
  const auto applied = apply_correction(config, actors::default_policy_losses(), settings);
  EXPECT_TRUE(applied) << applied.error().message;
  return settings;
}

TEST(CorrectionKeys, CorrectNothingByDefault) {
  const Config config = config_of({});
  const auto step = correction_step_options(config).value();
  EXPECT_EQ(step.correction, actors::CorrectionOptions{});
  EXPECT_FALSE(step.in_loss);
  const auto settings = settings_of(config);
  EXPECT_EQ(settings.loss, "vanilla");
  EXPECT_FALSE(settings.correction.reads_rollout);
  EXPECT_FALSE(settings.cut.has_truncation());
}

TEST(CorrectionKeys, TakeVerlsKeysIntoTheStepsWeights) {
  const auto step =
      correction_step_options(
          config_of({"rollout_is=sequence", "rollout_is_threshold='0.5_5.0'",
                     "rollout_rs=seq_mean_k1", "rollout_rs_threshold='0.99_1.01'",
                     "rollout_token_veto_threshold=1e-4", "opsm_delta=0.1", "m2_threshold=0.04"}))
          .value();
  EXPECT_EQ(step.correction.weight_level, actors::RolloutWeightLevel::kSequence);
  EXPECT_TRUE(step.correction.mask_outside);
  EXPECT_EQ(step.correction.weight_high, 5);
  ASSERT_EQ(step.correction.rejections.size(), 1U);
  EXPECT_EQ(step.correction.rejections[0].low, 0.99);
  EXPECT_EQ(step.correction.veto_least, 1e-4);
  EXPECT_EQ(step.correction.negative_kl_max, 0.1);
  EXPECT_EQ(step.correction.second_moment_max, 0.04);
  EXPECT_FALSE(step.in_loss);
}

TEST(CorrectionKeys, PutWhatComparesTheCurrentPolicyIntoTheLoss) {
  const Config config = config_of({"bypass_mode=true", "opsm_delta=0.1"});
  EXPECT_TRUE(correction_step_options(config)->in_loss);
  const auto settings = settings_of(config);
  EXPECT_EQ(settings.correction.in_loss.negative_kl_max, 0.1);
  EXPECT_TRUE(settings.correction.reads_rollout);
  EXPECT_TRUE(settings.correction.reports_ratios);
}

TEST(CorrectionKeys, SetTheWeightOfLossesThatHaveOne) {
  const auto settings = settings_of(
      config_of({kLoss + "mis", "rollout_is=geometric", "rollout_is_threshold='0.9_1.1'"}));
  EXPECT_EQ(settings.objective.loss.importance.level, actors::RolloutWeightLevel::kGeometric);
  EXPECT_EQ(settings.objective.loss.importance.low, 0.9);
  EXPECT_EQ(settings.objective.loss.importance.high, 1.1);
  EXPECT_TRUE(settings.correction.reads_rollout);
  EXPECT_FALSE(correction_step_options(config_of({kLoss + "mis", "rollout_is=geometric"}))
                   ->correction.changes_weights());
}

TEST(CorrectionKeys, TakeEveryPreset) {
  const auto presets = actors::default_corrections();
  for (const std::string& name : presets.names()) {
    SCOPED_TRACE(name);
    const Config config = config_of({"preset=" + name});
    const auto preset = presets.find(name).value();
    EXPECT_EQ(correction_step_options(config)->correction, preset.options);
    EXPECT_EQ(settings_of(config).loss, preset.policy_loss);
    EXPECT_THAT(describe_correction(config).value(), HasSubstr("loss " + preset.policy_loss));
  }
  EXPECT_TRUE(settings_of(config_of({"preset=decoupled_loglinear"})).correction.interpolates);
  EXPECT_EQ(settings_of(config_of({"preset=tis", kLoss + "cispo"})).loss, "cispo");
}

TEST(CorrectionKeys, RefuseWhatContradictsItself) {
  const std::pair<std::vector<std::string>, std::vector<std::string>> cases[] = {
      {{"preset=tis", "rollout_is=token"}, {"rollout_is", "token", "preset is tis"}},
      {{"preset=topr", kLoss + "tis"}, {"loss_mode", "tis", "preset is topr", "loss topr"}},
      {{"bypass_mode=true", "proximal=recompute"},
       {"proximal", "recompute", "bypass_mode is true"}},
      {{"proximal=loglinear"}, {"proximal", "loglinear", "loss_mode is vanilla"}},
      {{"bypass_mode=true", kLoss + "decoupled"}, {"bypass_mode", "true", "decoupled"}},
      {{"bypass_mode=true", "rollout_is=token"}, {"rollout_is", "token", "bypass_mode is true"}},
      {{"bypass_mode=true", "m2_threshold=0.04"}, {"m2_threshold", "0.04", "rollout"}},
      {{"rollout_is_threshold='3.0'"}, {"rollout_is_threshold", "3.0", "rollout_is is null"}},
      {{"rollout_rs_threshold='0.1'"}, {"rollout_rs_threshold", "0.1", "rollout_rs is not"}},
      {{"rollout_rs=token_k9", "rollout_rs_threshold='1'"}, {"token_k9"}},
      {{"rollout_is_batch_normalize=true"}, {"rollout_is_batch_normalize"}},
      {{kLoss + "tis", "rollout_is_threshold='0.5_2.0'"},
       {"rollout_is_threshold", "0.5_2.0", "loss_mode is tis"}},
      {{kLoss + "tis", "rollout_is_batch_normalize=true"},
       {"rollout_is_batch_normalize", "true", "loss_mode is tis"}},
      {{"log_probs=processed", "actor_rollout_ref.rollout.repetition_penalty=1.2"},
       {"log_probs", "processed", "repetition_penalty is 1.2"}},
      {{"log_probs=processed", "actor_rollout_ref.rollout.top_p=0.9",
        "actor_rollout_ref.actor.use_kl_loss=true"},
       {"log_probs", "processed", "use_kl_loss is true"}},
      {{"rollout_is=token", "actor_rollout_ref.rollout.repetition_penalty=1.2"},
       {"rollout_is", "token", "repetition_penalty 1.2"}},
      {{"opsm_delta=-1"}, {"opsm_delta", "-1"}},
      {{"proximal=loglinear", kLoss + "decoupled", "trainer.critic_warmup=2"},
       {"proximal", "loglinear", "critic_warmup", "2"}},
      {{"m2_threshold=0.04", "trainer.mode=pipelined"},
       {"m2_threshold", "0.04", "trainer.mode is pipelined"}},
  };
  for (const auto& [words, parts] : cases) {
    const std::string message = refusal(words);
    for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part)) << words[0];
  }
}

TEST(CorrectionKeys, CutTheTrainersLogProbsAsSamplingDid) {
  const std::string top_p = "actor_rollout_ref.rollout.top_p=0.9";
  EXPECT_EQ(settings_of(config_of({top_p})).cut.top_p, 0.9);
  EXPECT_FALSE(settings_of(config_of({top_p, "log_probs=full"})).cut.has_truncation());
  // A reference's log-probs are of whole distributions, and so are then the policy's.
  const Config with_kl = config_of({top_p, "actor_rollout_ref.actor.use_kl_loss=true"});
  EXPECT_FALSE(settings_of(with_kl).cut.has_truncation());
  EXPECT_EQ(correction_step_options(with_kl)->log_probs, actors::LogProbKind::kFull);
  EXPECT_EQ(correction_step_options(config_of({top_p}))->log_probs,
            actors::LogProbKind::kProcessed);
}

}  // namespace
}  // namespace troupe::apps

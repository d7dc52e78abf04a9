// Proves that the keys of the streaming loops give the options they name, that one file serves all
// loops, and that each combination that cannot work is one error naming its key and both values.

#include "apps/training/async_keys.hpp"

#include "apps/training/cluster_run.hpp"
#include "apps/training/train_schema.hpp"
#include "runtime/config/config.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace troupe::apps {
namespace {

using runtime::Config;
using Words = std::vector<std::string>;

/// A configuration that every loop takes.
result<Config> parse(std::vector<std::string> overrides) {
  std::vector<std::string> words{"algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4",
                                 "data.train_batch_size=8"};
  words.insert(words.end(), overrides.begin(), overrides.end());
  return Config::parse(train_schema(), "", "c.yaml", words);
}

TEST(AsyncKeys, OneFileServesAllLoopsAndOneKeyChooses) {
  const std::vector<std::string> file{"async.staleness=3",
                                      "trainer.rollout_devices=2",
                                      "trainer.evaluation_devices=1",
                                      "async.rounds=true",
                                      "async.cut=drop",
                                      "async.groups_extra=2"};
  for (const std::string mode : {"sync", "async", "pipelined"}) {
    auto words = file;
    words.push_back("trainer.mode=" + mode);
    const auto config = parse(words);
    ASSERT_TRUE(config.has_value()) << mode << ": " << config.error().message;
    const bool streaming = mode != "sync";
    EXPECT_EQ(streams(*config), streaming);
    EXPECT_EQ(rollout_devices(*config), streaming ? 2 : 0);
    EXPECT_EQ(evaluation_devices(*config), streaming ? 1 : 0);
    EXPECT_EQ(all_devices(*config), streaming ? 4 : 1);
    EXPECT_EQ(ignored_keys(*config).size(), streaming ? 0U : 3U);
  }
}

TEST(AsyncKeys, RolloutGetsTheDevicesOfOneEngineUnlessMoreAreNamed) {
  const auto one = parse({"trainer.mode=async"});
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_EQ(rollout_devices(*one), 1);
  EXPECT_EQ(staleness(*one), 1);
  const auto two =
      parse({"trainer.mode=async", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"});
  ASSERT_TRUE(two.has_value()) << two.error().message;
  EXPECT_EQ(rollout_devices(*two), 2) << "the trainer's one device cannot hold the engine";
  const auto verl = parse({"trainer.mode=async", "rollout.n_gpus_per_node=3"});
  ASSERT_TRUE(verl.has_value()) << verl.error().message;
  EXPECT_EQ(rollout_devices(*verl), 3);
}

TEST(AsyncKeys, GiveTheOptionsOfLedgerAndDispatcher) {
  const auto config = parse(
      {"trainer.mode=async",        "async.staleness=4",       "async.policy=truncate",
       "async.age_max=3",           "async.span_max=2",        "async.groups_extra=5",
       "async.running_max=20",      "async.rounds=true",       "async.cut=restart",
       "async.tail_round_groups=2", "async.samples_extra=1",   "async.hedge_after_s=1.5",
       "async.sample_deadline_s=9", "async.on_deadline=retry", "async.stall_after_s=3",
       "async.score_deadline_s=4",  "async.retries_max=7",     "async.longest_first=true",
       "async.repack_below=6",      "async.moves_max=2",       "async.drop_zero_variance=true",
       "async.refills_max=11",      "async.on_refills=keep",   "data.max_response_length=33"});
  ASSERT_TRUE(config.has_value()) << config.error().message;
  const actors::LedgerOptions ledger = ledger_options(*config, 12);
  EXPECT_EQ(ledger.groups_per_step, 8);
  EXPECT_EQ(ledger.lead_max, 4);
  EXPECT_EQ(ledger.policy, actors::StalePolicy::kTruncate);
  EXPECT_EQ(ledger.age_max, std::optional<std::int64_t>(3));
  EXPECT_EQ(ledger.span_max, std::optional<std::int64_t>(2));
  EXPECT_EQ(ledger.groups_extra, 5);
  EXPECT_EQ(ledger.running_max, 20);
  EXPECT_EQ(ledger.steps_max, 12);
  actors::SamplingOptions sampling;
  sampling.max_new_tokens = 33;
  const actors::DispatchOptions dispatch = dispatch_options(*config, sampling);
  EXPECT_EQ(dispatch.group_size, 4);
  EXPECT_TRUE(dispatch.rounds && dispatch.longest_first && dispatch.drop_zero_variance);
  EXPECT_EQ(dispatch.cut, actors::CutAction::kRestart);
  EXPECT_EQ(dispatch.tail_round_groups, 2);
  EXPECT_EQ(dispatch.samples_extra, 1);
  EXPECT_EQ(dispatch.hedge_after, std::chrono::milliseconds(1500));
  EXPECT_EQ(dispatch.sample_deadline, std::chrono::seconds(9));
  EXPECT_EQ(dispatch.on_deadline, actors::DeadlineAction::kRetry);
  EXPECT_EQ(dispatch.stall_after, std::chrono::seconds(3));
  EXPECT_EQ(dispatch.score_deadline, std::chrono::seconds(4));
  EXPECT_EQ(dispatch.retries_max, 7);
  EXPECT_EQ(dispatch.new_tokens_max, 33);
  EXPECT_EQ(dispatch.repack_below, 6);
  EXPECT_EQ(dispatch.moves_max, 2);
  EXPECT_EQ(dispatch.refills_max, 11);
  EXPECT_EQ(dispatch.on_refills, actors::RefillAction::kKeep);
}

TEST(AsyncKeys, EachWrongCombinationIsOneErrorWithItsKeyAndBothValues) {
  struct Row {
    std::vector<std::string> overrides;
    std::vector<std::string> wanted;
  };
  const std::string actor = "actor_rollout_ref.actor.";
  const std::string tp = "actor_rollout_ref.rollout.tensor_model_parallel_size";
  const std::string async = "trainer.mode=async";
  const std::string pipelined = "trainer.mode=pipelined";
  for (const Row& row : std::vector<Row>{
           {{"trainer.mode=one_step_off", "async.staleness=2"},
            {"async.staleness=2", "one_step_off"}},
           {{async, "async.staleness=2", "async.age_max=1"},
            {"async.age_max=1", "async.staleness = 2", "wait"}},
           {{async, "async.on_update=drain"}, {"async.on_update=drain", "trainer.mode", "async"}},
           {{async, "trainer.rollout_devices=3", tp + "=2"},
            {"trainer.rollout_devices=3", tp, "2"}},
           {{async, "trainer.evaluation_devices=3", "trainer.rollout_devices=2", tp + "=2"},
            {"trainer.evaluation_devices=3", tp, "2"}},
           {{async, "actor_rollout_ref.rollout.sleep_level=2"}, {"sleep_level=2", "async"}},
           {{pipelined, "algorithm.adv_estimator=remax"}, {"adv_estimator=remax", "pipelined"}},
           {{async, "algorithm.adv_estimator=remax", "environment.name=auto"},
            {"adv_estimator=remax", "environment.name = auto"}},
           {{pipelined, actor + "ppo_mini_batch_size=4"},
            {"ppo_mini_batch_size=4", "train_batch_size = 8", "pipelined"}},
           {{pipelined, actor + "ppo_epochs=2"}, {"ppo_epochs=2", "pipelined"}},
           {{pipelined, actor + "shuffle=true"}, {"shuffle=true", "pipelined"}},
           {{pipelined, "algorithm.adv_estimator=reinforce_plus_plus"},
            {"adv_estimator=reinforce_plus_plus", "pipelined"}},
           {{pipelined, "critic.enable=true", "critic.ppo_mini_batch_size=4"},
            {"critic.ppo_mini_batch_size=4", "train_batch_size = 8", "pipelined"}},
           {{pipelined, "critic.enable=true", "critic.ppo_epochs=2"},
            {"critic.ppo_epochs=2", "pipelined"}},
           {{"algorithm.adv_estimator=grpo", "algorithm.whiten_advantages=false"},
            {"whiten_advantages=false", "grpo"}},
           {{pipelined, "async.order=ready"}, {"async.order=ready", "pipelined"}},
           {{pipelined, "async.groups_per_part=9"}, {"groups_per_part=9", "train_batch_size = 8"}},
           {{"async.cut=drop"}, {"async.cut=drop", "async.rounds = false"}},
           {{"async.tail_round_groups=3"}, {"async.tail_round_groups=3", "async.rounds = false"}},
           {{"async.on_deadline=drop"}, {"async.on_deadline=drop", "sample_deadline_s = 0"}},
           {{"async.moves_max=3"}, {"async.moves_max=3", "async.repack_below = 0"}},
           {{"async.refills_max=3"}, {"async.refills_max=3", "drop_zero_variance = false"}},
           {{"async.on_refills=keep"}, {"async.on_refills=keep", "drop_zero_variance = false"}},
           {{"algorithm.adv_estimator=reinforce_plus_plus", "actor_rollout_ref.rollout.n=1",
             "async.drop_zero_variance=true"},
            {"async.drop_zero_variance=true", "rollout.n = 1"}},
           {{"actor_rollout_ref.rollout.simulated_delay.sigma=0.9"},
            {"simulated_delay.sigma=0.9", "median_s = 0"}},
           {{"environment.name=auto", "actor_rollout_ref.rollout.sleep_level=2"},
            {"sleep_level=2", "environment.name = auto"}},
           {{async, "environment.name=auto", "environment.turn_tokens_max=512"},
            {"turn_tokens_max=512", "max_response_length = 512"}},
           {{"environment.sandbox.command=[./game]", "environment.sandbox.data_source=game"},
            {"environment.sandbox.command", "environment.name = ''"}},
           {{"reward_model.sandbox.data_source=mine"},
            {"reward_model.sandbox.data_source=mine", "reward_model.sandbox.command"}},
           {{"reward_model.sandbox.command=[./judge]"}, {"data_source", "command"}},
           {{"reward_model.sandbox.command=[./judge]", "reward_model.sandbox.data_source=mine",
             "reward_model.sandbox.failure_score=drop"},
            {"failure_score=drop", "trainer.mode = sync"}},
           {{"reward_model.sandbox.failure_score=often"}, {"failure_score=often", "number"}},
           {{"rollout.nnodes=2"}, {"trainer.rollout_devices"}},
       }) {
    const auto config = parse(row.overrides);
    ASSERT_FALSE(config.has_value()) << row.overrides.back() << " was accepted";
    EXPECT_EQ(config.error().code, ErrorCode::kConfig);
    for (std::string part : row.wanted) {
      // Messages write `key = 'value'`.
      const std::size_t equals = part.find('=');
      if (equals != std::string::npos && equals > 0 && part[equals - 1] != ' ')
        part = part.substr(0, equals) + " = '" + part.substr(equals + 1) + "'";
      EXPECT_NE(config.error().message.find(part), std::string::npos)
          << "no '" << part << "' in: " << config.error().message;
    }
  }
}

TEST(AsyncKeys, PipelinedTakesWhatIsExactInPartsAndSaysWhatIsNot) {
  const Words pipelined{"trainer.mode=pipelined", "algorithm.adv_estimator=gae"};
  const auto whitened = parse(pipelined);
  ASSERT_FALSE(whitened.has_value());
  EXPECT_NE(whitened.error().message.find("algorithm.whiten_advantages = 'true'"),
            std::string::npos)
      << whitened.error().message;
  for (const Words& more :
       std::vector<Words>{{"algorithm.adv_estimator=gae", "algorithm.whiten_advantages=false"},
                          {"critic.enable=true"},
                          {"algorithm.use_kl_in_reward=true"},
                          {"algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"}}) {
    Words words{"trainer.mode=pipelined"};
    words.insert(words.end(), more.begin(), more.end());
    const auto config = parse(words);
    EXPECT_TRUE(config.has_value()) << config.error().message;
  }
}

TEST(AsyncKeys, APoolLargerThanTheClusterIsNamedByKeyAndBothValues) {
  const auto config = parse({"trainer.mode=async", "trainer.rollout_devices=9",
                             "trainer.n_gpus_per_node=2", "trainer.evaluation_devices=1"});
  ASSERT_TRUE(config.has_value()) << config.error().message;
  const Error told = explain_devices(
      *config, {.code = ErrorCode::kResourceExhausted,
                .message = "group run: infeasible: all bundles together want gpu 12; the cluster "
                           "has gpu 4",
                .origin = {},
                .causes = {}});
  EXPECT_EQ(told.code, ErrorCode::kResourceExhausted);
  for (const char* part : {"trainer.rollout_devices = 9", "wants 12 devices", "n_gpus_per_node (2)",
                           "evaluation_devices (1)", "has gpu 4"})
    EXPECT_NE(told.to_string().find(part), std::string::npos) << told.to_string();
}

TEST(AsyncKeys, PrintedTreesOfStreamingRunsReadBack) {
  for (const std::string mode : {"one_step_off", "async", "pipelined"}) {
    const auto config = parse({"trainer.mode=" + mode, "async.staleness=0"});
    ASSERT_TRUE(config.has_value()) << config.error().message;
    const auto again = Config::parse(train_schema(), config->to_yaml(), "printed");
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_TRUE(*again == *config);
  }
}

}  // namespace
}  // namespace troupe::apps

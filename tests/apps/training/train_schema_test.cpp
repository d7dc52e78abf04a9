// Proves that the trainer's configuration takes verl's names, that its defaults are valid, that no
// key silently loses to another, and that what this build does not do is refused with a reason.

#include "apps/training/train_schema.hpp"

#include "runtime/config/config.hpp"

#include <gtest/gtest.h>

namespace troupe::apps {
namespace {

using runtime::Config;

result<Config> parse(std::vector<std::string> overrides, const TrainSchemaOptions& options = {}) {
  return Config::parse(train_schema(options), "", "c.yaml", overrides);
}

std::string refusal(std::vector<std::string> overrides) {
  const auto config = parse(std::move(overrides));
  return config ? "(accepted)" : config.error().message;
}

TEST(TrainSchema, DefaultsAreValidAndPrintedTreeReadsBack) {
  const auto config = parse({});
  ASSERT_TRUE(config) << config.error().message;
  const auto again = Config::parse(train_schema(), config->to_yaml(true), "printed");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(*again == *config);
}

TEST(TrainSchema, PrintedTreeOfEveryKindOfRunReadsBack) {
  const std::vector<std::vector<std::string>> runs{
      {"data.train_batch_size=8", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"},
      {"actor_rollout_ref.actor.clip_ratio=0.3", "actor_rollout_ref.actor.clip_ratio_high=0.28"},
      {"actor_rollout_ref.actor.clip_ratio_low=0.1", "actor_rollout_ref.actor.clip_ratio_high=0.4"},
      {"sft.optim.lr_scheduler_type=constant", "trainer.seed=5"},
      {"critic.ppo_mini_batch_size=7", "trainer.n_gpus_per_node=2", "data.train_files=[a.jsonl,b]"},
      {"actor_rollout_ref.rollout.stop=['\n', '#']", "algorithm.custom.alpha=0.5"},
  };
  for (const auto& run : runs) {
    const auto config = parse(run);
    ASSERT_TRUE(config) << config.error().message;
    const auto again = Config::parse(train_schema(), config->to_yaml(), "printed");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(*again == *config);
  }
}

TEST(TrainSchema, TakesVerlsNamesAndSpellings) {
  const auto config =
      parse({"algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=5",
             "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
             "actor_rollout_ref.actor.policy_loss.loss_mode=gmpo",
             "actor_rollout_ref.actor.optim.clip_grad=0.5", "trainer.device_count=2",
             "algorithm.kl_penalty=mse+", "algorithm.norm_adv_by_std_in_grpo=false",
             "data.train_files=train.jsonl", "trainer.total_training_steps=20",
             "actor_rollout_ref.model.path=../shared/models/stories260K"});
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->get<std::string>("actor_rollout_ref.actor.kl_loss_type"), "k3");
  EXPECT_EQ(config->get<std::string>("algorithm.kl_penalty"), "k2+");
  EXPECT_EQ(config->get<std::string>("actor_rollout_ref.actor.policy_loss.loss_mode"), "geo_mean");
  EXPECT_EQ(config->get<double>("actor_rollout_ref.actor.grad_clip"), 0.5);
  EXPECT_EQ(config->get<int>("trainer.n_gpus_per_node"), 2);
}

TEST(TrainSchema, ClipRatioNeverLosesSilently) {
  const std::string at = "actor_rollout_ref.actor.";
  const auto both = parse({at + "clip_ratio=0.1"});
  EXPECT_EQ(both->get<double>(at + "clip_ratio_low"), 0.1);
  EXPECT_EQ(both->get<double>(at + "clip_ratio_high"), 0.1);
  const auto one = parse({at + "clip_ratio=0.1", at + "clip_ratio_high=0.3"});
  EXPECT_EQ(one->get<double>(at + "clip_ratio_low"), 0.1);
  EXPECT_EQ(one->get<double>(at + "clip_ratio_high"), 0.3);
  EXPECT_NE(refusal({at + "clip_ratio=0.1", at + "clip_ratio_high=0.3", at + "clip_ratio_low=0.2"})
                .find("has no effect"),
            std::string::npos);
}

TEST(TrainSchema, RefusesWhatCannotWorkBeforeAnyWork) {
  struct Row {
    std::vector<std::string> overrides;
    std::string wanted;
  };
  const std::string grpo = "algorithm.adv_estimator=grpo";
  for (const Row& row : std::vector<Row>{
           {{"trainer.mode=fast"}, "is not one of sync"},
           {{grpo}, "needs at least 2"},
           {{grpo, "actor_rollout_ref.rollout.n=4", "algorithm.gamma=0.9"}, "algorithm.gamma"},
           {{grpo, "actor_rollout_ref.rollout.n=4", "algorithm.lam=0.9"}, "algorithm.lam"},
           {{"algorithm.norm_adv_by_std_in_grpo=true"}, "has no effect"},
           {{"critic.enable=false"}, "needs a critic"},
           {{grpo, "actor_rollout_ref.rollout.n=4", "trainer.critic_warmup=2"}, "critic_warmup"},
           {{"data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=9"},
            "is more than data.train_batch_size = 8"},
           {{"actor_rollout_ref.actor.optim.lr=-1"}, "at least 0"},
           {{"actor_rollout_ref.actor.clip_ratio_c=1"}, "above 1"},
           {{"actor_rollout_ref.rollout.top_p=0"}, "top_p"},
           {{"actor_rollout_ref.rollout.val_kwargs.temperature=0.5"}, "do_sample"},
           {{"trainer.resume_from_path=x"}, "has no effect"},
           {{"trainer.resume_mode=resume_path"}, "needs trainer.resume_from_path"},
           {{"actor_rollout_ref.actor.use_dynamic_bsz=true"}, "ppo_max_token_len_per_gpu"},
           {{"actor_rollout_ref.rollout.name=vllm"}, "is not taken"},
           {{"actor_rollout_ref.rollout.gpu_memory_utilization=0.5"}, "kv_cache_mb"},
           {{"+trainer.seed=1"}, "write trainer.seed=value"},
           {{"algorithm.adv_estimater=grpo"}, "did you mean algorithm.adv_estimator?"},
           {{"optim.lr=1"}, "actor_rollout_ref.actor.optim.lr"},
           {{"algorithm.adv_estimator=grop"}, "did you mean grpo?"},
       }) {
    const std::string message = refusal(row.overrides);
    EXPECT_NE(message.find(row.wanted), std::string::npos)
        << row.overrides[0] << " said " << message;
  }
}

TEST(TrainSchema, RefusesMeshesThatTheDevicesDoNotAdmit) {
  struct Row {
    std::vector<std::string> overrides;
    std::string wanted;
  };
  const std::string actor = "actor_rollout_ref.actor.";
  const std::string mesh = actor + "megatron.";
  const std::string four = "trainer.n_gpus_per_node=4";
  for (const Row& row : std::vector<Row>{
           {{four, mesh + "tensor_model_parallel_size=3"}, "4 devices cannot be cut into tp 3"},
           {{four, mesh + "tensor_model_parallel_size=4", mesh + "pipeline_model_parallel_size=2"},
            "tp 4 × pp 2 = 8"},
           {{four, "critic.megatron.pipeline_model_parallel_size=8"},
            "critic.megatron.pipeline_model_parallel_size"},
           {{four, "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=3"},
            "actor_rollout_ref.ref.megatron.tensor_model_parallel_size"},
           {{four, "actor_rollout_ref.rollout.tensor_model_parallel_size=3"},
            "4 devices cannot be cut into engines of 3"},
           {{mesh + "virtual_pipeline_model_parallel_size=2"}, "needs"},
           {{four, mesh + "pipeline_model_parallel_size=2", mesh + "pipeline_layers=[1,2,1]"},
            "has 3 numbers, wanted pp 2"},
           {{actor + "fsdp_config.fsdp_size=2"}, "has no effect"},
           {{four, actor + "strategy=fsdp", actor + "fsdp_config.fsdp_size=3"},
            "does not divide the 4 data-parallel ranks"},
           {{actor + "strategy=fsdp", mesh + "use_distributed_optimizer=true"}, "has no effect"},
           {{"actor_rollout_ref.ref.megatron.use_distributed_optimizer=true"}, "no optimizer"},
           {{"actor_rollout_ref.rollout.free_cache_engine=false",
             "actor_rollout_ref.rollout.sleep_level=2"},
            "has no effect"},
       }) {
    const std::string message = refusal(row.overrides);
    EXPECT_NE(message.find(row.wanted), std::string::npos)
        << row.overrides.back() << " said " << message;
  }
}

TEST(TrainSchema, GivesTheReferenceTheMeshOfTheActorUnlessItHasItsOwn) {
  const std::string tp = ".megatron.tensor_model_parallel_size";
  const std::vector<std::string> overrides{
      "trainer.n_gpus_per_node=4", "actor_rollout_ref.actor" + tp + "=2",
      "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.fsdp_config.fsdp_size=2"};
  const auto like = parse(overrides);
  ASSERT_TRUE(like) << like.error().message;
  EXPECT_EQ(like->get<int>("actor_rollout_ref.ref" + tp), 2);
  EXPECT_EQ(like->get<std::string>("actor_rollout_ref.ref.strategy"), "fsdp");
  EXPECT_EQ(like->get<int>("critic" + tp), 1);
  auto own = overrides;
  own.push_back("actor_rollout_ref.ref" + tp + "=1");
  own.emplace_back("actor_rollout_ref.ref.strategy=megatron");
  const auto other = parse(own);
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_EQ(other->get<int>("actor_rollout_ref.ref" + tp), 1);
}

TEST(TrainSchema, ProgramsAddTheirOwnNames) {
  EXPECT_FALSE(parse({"algorithm.adv_estimator=mine"}));
  const TrainSchemaOptions own{
      .advantages = {"mine"}, .policy_losses = {"my_loss"}, .rewards = {"my_reward"}};
  const auto config = parse({"algorithm.adv_estimator=mine", "reward.name=my_reward",
                             "actor_rollout_ref.actor.policy_loss.loss_mode=my_loss",
                             "algorithm.gamma=0.5", "reward.custom.scale=2"},
                            own);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->get<int>("reward.custom.scale"), 2);
}

TEST(TrainSchema, UnevenSizesAreLegal) {
  EXPECT_TRUE(parse({"data.train_batch_size=7", "actor_rollout_ref.actor.ppo_mini_batch_size=3",
                     "trainer.n_gpus_per_node=2"}));
}

}  // namespace
}  // namespace troupe::apps

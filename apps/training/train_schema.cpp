#include "apps/training/train_schema.hpp"

#include "apps/training/async_keys.hpp"
#include "apps/training/correction_keys.hpp"
#include "apps/training/judge_keys.hpp"
#include "apps/training/parallel_keys.hpp"
#include "apps/training/sections.hpp"
#include "runtime/config/config.hpp"
#include "sim/scenario/simulation_keys.hpp"

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace troupe::apps {
namespace {

using runtime::above;
using runtime::at_least;
using runtime::between;
using runtime::Config;
using runtime::positive;
using runtime::Schema;
using runtime::ValueType;

constexpr double kMostTokens = 1 << 24;

std::vector<std::string> joined(std::vector<std::string> names,
                                const std::vector<std::string>& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

void declare_data(Schema& s) {
  s.texts("data.train_files", {}, "JSON lines with prompts to train on, one path or a list");
  s.texts("data.val_files", {}, "JSON lines with held-out prompts");
  s.text("data.prompt_key", "prompt", "field that holds the prompt");
  s.text("data.reward_fn_key", "data_source", "field that says which reward scores the row");
  s.text("data.response_key", "response", "field that holds the answer of supervised rows");
  s.text("data.chat_template", "auto", "how messages become text; auto looks at the tokenizer")
      .one_of({"auto", "llama3", "qwen", "plain"});
  s.optional_key("data.default_system", ValueType::kString,
                 "system message where rows have none; null: the chat template's own");
  s.boolean("data.apply_chat_template_kwargs.enable_thinking", true,
            "false: answers begin with an empty think block");
  s.integer("data.max_prompt_length", 512, "tokens; longer prompts meet data.truncation")
      .within(between(1, kMostTokens));
  s.integer("data.max_response_length", 512, "tokens generated at most")
      .within(between(1, kMostTokens));
  s.integer("data.train_batch_size", 1024, "prompts per step").within(between(1, kMostInt));
  s.optional_key("data.val_batch_size", ValueType::kInt, "prompts per validation batch; null: all")
      .within(between(1, kMostInt));
  s.integer("data.train_max_samples", -1, "use only the first rows; -1: all")
      .within(between(-1, kMostInt));
  s.integer("data.val_max_samples", -1, "use only the first rows; -1: all")
      .within(between(-1, kMostInt));
  s.boolean("data.shuffle", true, "new order of prompts each epoch");
  s.optional_key("data.seed", ValueType::kInt, "seed of the order; null: trainer.seed")
      .or_value_of("trainer.seed")
      .within(at_least(0));
  s.boolean("data.filter_overlong_prompts", false, "leave too long prompts out");
  s.text("data.truncation", "error", "what happens to too long prompts")
      .one_of({"error", "left", "right", "middle"});
  s.refused("data.return_raw_chat", "messages are always kept; leave the key out");
  s.refused("data.dataloader_num_workers", "rows are read once, at the start; leave the key out");
  s.refused("data.gen_batch_size", "write async.groups_extra: prompts beyond a step's");
}

/// Optimiser and micro-batch keys that the actor and the critic share.
void declare_training(Schema& s, const std::string& at, double lr, std::int64_t token_budget) {
  s.number(at + ".optim.lr", lr, "learning rate").within(at_least(0));
  s.number(at + ".optim.weight_decay", 0.01, "decoupled; not on norms and biases")
      .within(at_least(0));
  s.numbers(at + ".optim.betas", {0.9, 0.999}, "decay of the two moments")
      .of_size(2)
      .within({.min = 0, .max = 1, .max_open = true});
  s.number(at + ".optim.eps", 1e-8, "added to the root of the second moment").within(positive());
  s.text(at + ".optim.lr_scheduler_type", "constant", "shape after warm-up")
      .one_of({"constant", "linear", "cosine"});
  s.integer(at + ".optim.lr_warmup_steps", 0, "steps in which the rate rises from 0")
      .within(between(0, kMostInt));
  s.number(at + ".optim.min_lr_ratio", 0.0, "last rate of linear and cosine, as a part of lr")
      .within(between(0, 1));
  s.optional_key(at + ".optim.total_training_steps", ValueType::kInt,
                 "length of linear and cosine; null: the run's number of updates")
      .within(between(1, kMostInt));
  s.refused(at + ".optim.lr_warmup_steps_ratio", "write " + at + ".optim.lr_warmup_steps in steps");
  s.number(at + ".grad_clip", 1.0, "global L2 norm of the gradient; 0: no clipping")
      .within(at_least(0));
  s.alias(at + ".optim.clip_grad", at + ".grad_clip");
  s.integer(at + ".ppo_epochs", 1, "passes over the step's samples").within(between(1, 1000));
  s.integer(at + ".ppo_max_token_len_per_gpu", token_budget,
            "tokens of one micro-batch, a hard cap")
      .within(between(1, kMostTokens));
  s.boolean(at + ".use_prefix_grouper", true,
            "samples of a prompt are trained behind one copy of it; the same up to rounding");
  s.boolean(at + ".shuffle", false, "new order of samples in each pass");
  const std::string packed =
      "micro-batches are always filled by tokens; write " + at + ".ppo_max_token_len_per_gpu";
  for (const char* key :
       {"ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz"}) {
    s.refused(at + "." + key, packed);
  }
  s.refused(at + ".ulysses_sequence_parallel_size", "sequence parallelism is not in this build");
}

void declare_model(Schema& s) {
  const std::string at = "actor_rollout_ref.model.";
  s.text(at + "path", "", "Hugging Face folder of the policy");
  s.optional_key(at + "tokenizer_path", ValueType::kString, "folder of the tokenizer; null: path");
  s.text(at + "load_format", "auto",
         "auto reads the weights; random makes new ones from config.json")
      .one_of({"auto", "random"});
  s.boolean(at + "enable_gradient_checkpointing", false,
            "keep layer inputs only and compute the rest again");
  s.open_section("actor_rollout_ref.model.override_config",
                 "fields of config.json to replace, for load_format random");
  s.refused(at + "use_remove_padding", "sequences are always packed without padding");
  s.refused(at + "trust_remote_code", "no code is ever loaded from a model folder");
  s.refused(at + "lora_rank", "LoRA is not in this build");
}

void declare_actor(Schema& s, const TrainSchemaOptions& options) {
  const std::string at = kActor;
  s.optional_key(at + ".ppo_mini_batch_size", ValueType::kInt,
                 "prompts per optimiser step, over all ranks; null: 256, or the batch if smaller")
      .within(between(1, kMostInt));
  declare_training(s, at, 1e-6, 16384);
  s.text(at + ".policy_loss.loss_mode", "vanilla", "policy loss")
      .one_of(joined({"vanilla", "gspo", "cispo", "geo_mean", "gpg", "clip_cov", "kl_cov", "sapo",
                      "dppo_tv", "dppo_kl", "dro"},
                     joined(rollout_ratio_losses(), options.policy_losses)))
      .also_spelled("gmpo", "geo_mean");
  s.number(at + ".policy_loss.clip_cov_ratio", 0.0002, "clip_cov: part of tokens to pick")
      .within(between(0, 1));
  s.number(at + ".policy_loss.clip_cov_lb", 1.0, "clip_cov: least covariance to pick");
  s.number(at + ".policy_loss.clip_cov_ub", 5.0, "clip_cov: most covariance to pick");
  s.number(at + ".policy_loss.kl_cov_ratio", 0.0002, "kl_cov: part of tokens to pick")
      .within(between(0, 1));
  s.number(at + ".policy_loss.ppo_kl_coef", 0.1, "kl_cov: weight of |log ratio| on picked tokens")
      .within(at_least(0));
  s.optional_key(at + ".clip_ratio", ValueType::kDouble,
                 "both bounds of the ratio at once; null: as given below")
      .within(at_least(0));
  s.number(at + ".clip_ratio_low", 0.2, "ratio may fall to 1 - this")
      .or_value_of(at + ".clip_ratio")
      .within(at_least(0));
  s.number(at + ".clip_ratio_high", 0.2, "ratio may rise to 1 + this")
      .or_value_of(at + ".clip_ratio")
      .within(at_least(0));
  s.number(at + ".clip_ratio_c", 3.0,
           "dual clip: bound of the loss where the advantage is negative")
      .within(above(1));
  s.optional_key(at + ".loss_agg_mode", ValueType::kString,
                 "how token losses become one; null: the loss's own (token-mean, gspo "
                 "seq-mean-token-mean)")
      .one_of({"token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm",
               "seq-mean-token-mean"});
  s.optional_key(at + ".loss_scale_factor", ValueType::kDouble,
                 "divisor of seq-mean-token-sum-norm; null: data.max_response_length")
      .within(positive());
  s.number(at + ".entropy_coeff", 0.0, "weight of the entropy bonus");
  s.boolean(at + ".use_kl_loss", false, "KL to the reference in the loss");
  s.number(at + ".kl_loss_coef", 0.001, "weight of that KL").within(at_least(0));
  auto& kind = s.text(at + ".kl_loss_type", "k3", "estimator of that KL; + takes k2's gradient")
                   .one_of({"k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"});
  for (const char* plus : {"", "+"}) {
    kind.also_spelled(std::string("kl") + plus, std::string("k1") + plus)
        .also_spelled(std::string("mse") + plus, std::string("k2") + plus)
        .also_spelled(std::string("low_var_kl") + plus, std::string("k3") + plus);
  }
}

void declare_sampling(Schema& s, const std::string& at, double temperature, std::int64_t n) {
  s.integer(at + ".n", n, "samples per prompt").within(between(1, 65536));
  s.number(at + ".temperature", temperature, "0: always the likeliest token").within(at_least(0));
  s.number(at + ".top_p", 1.0, "keep the likeliest tokens that make up this part")
      .within({.min = 0, .max = 1, .min_open = true});
  s.integer(at + ".top_k", -1, "keep the k likeliest tokens; -1 or 0: all")
      .within(between(-1, kMostInt));
  s.number(at + ".min_p", 0.0, "drop tokens below this part of the likeliest")
      .within(between(0, 1));
  s.number(at + ".repetition_penalty", 1.0, "above 1 makes repeated tokens less likely")
      .within(positive());
}

void declare_rollout(Schema& s) {
  const std::string at = kRollout;
  declare_sampling(s, at, 1.0, 1);
  s.texts(at + ".stop", {}, "strings that end a sample");
  s.boolean(at + ".ignore_eos", false, "go on past the end-of-sequence token");
  s.integer(at + ".max_num_seqs", 256, "sequences in one engine step").within(between(1, 65536));
  s.integer(at + ".max_num_batched_tokens", 2048, "rows of one engine step, prefill included")
      .within(between(1, kMostTokens));
  s.integer(at + ".kv_cache_mb", 1024, "bound on the KV cache of a rank, MiB")
      .within(between(1, 1 << 24));
  s.integer(at + ".kv_cache_blocks", 0, "blocks of 16 tokens; 0: as many as can be in use")
      .within(between(0, kMostInt));
  s.integer(at + ".log_prob_max_token_len_per_gpu", 16384, "tokens of one log-prob micro-batch")
      .within(between(1, kMostTokens));
  declare_sampling(s, at + ".val_kwargs", 0.0, 1);
  s.boolean(at + ".val_kwargs.do_sample", false, "false: greedy validation, whatever else is set");
  s.refused(at + ".name", "this build has one rollout engine, its own; leave the key out");
  s.refused(at + ".mode", "write trainer.mode");
  s.refused(at + ".gpu_memory_utilization", "write " + at + ".kv_cache_mb");
  for (const char* key :
       {"enable_prefix_caching", "enable_chunked_prefill", "calculate_log_probs", "load_format"}) {
    s.refused(at + "." + key, "the engine always does what serves here; leave the key out");
  }
  s.integer("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu", 16384,
            "tokens of one micro-batch of the reference")
      .within(between(1, kMostTokens));
  s.optional_key("actor_rollout_ref.ref.path", ValueType::kString,
                 "folder of the reference policy; null: the policy at the start");
}

void declare_critic(Schema& s) {
  s.optional_key("critic.enable", ValueType::kBool, "null: on if the estimator needs values (gae)");
  s.optional_key("critic.model.path", ValueType::kString,
                 "folder of the critic's first weights; null: the policy's");
  s.boolean("critic.model.enable_gradient_checkpointing", false,
            "keep layer inputs only and compute the rest again");
  s.optional_key("critic.ppo_mini_batch_size", ValueType::kInt,
                 "prompts per optimiser step; null: the actor's")
      .within(between(1, kMostInt));
  declare_training(s, kCritic, 1e-5, 32768);
  s.number("critic.cliprange_value", 0.5, "values may move this far in one step")
      .within(at_least(0));
  s.optional_key("critic.loss_agg_mode", ValueType::kString, "null: token-mean")
      .one_of({"token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm",
               "seq-mean-token-mean"});
}

void declare_algorithm(Schema& s, const TrainSchemaOptions& options) {
  const std::string at = "algorithm.";
  s.text(at + "adv_estimator", "gae", "advantage estimator")
      .one_of(joined({"gae", "grpo", "dr_grpo", "grpo_passk", "gdpo", "rloo", "reinforce_plus_plus",
                      "reinforce_plus_plus_baseline", "remax", "opo", "gpg"},
                     options.advantages))
      .also_spelled("grpo_vectorized", "grpo")
      .also_spelled("rloo_vectorized", "rloo");
  s.number(at + "gamma", 1.0, "discount per token").within(between(0, 1));
  s.number(at + "lam", 1.0, "lambda of gae").within(between(0, 1));
  s.boolean(at + "whiten_advantages", true,
            "gae: advantages of mean 0 and deviation 1 over the step; false: as they are");
  s.optional_key(at + "norm_adv_by_std_in_grpo", ValueType::kBool,
                 "divide by the group's deviation; false: Dr.GRPO; null: as the estimator's paper");
  s.boolean(at + "use_kl_in_reward", false, "subtract KL to the reference from rewards");
  auto& kind = s.text(at + "kl_penalty", "k1", "estimator of that KL")
                   .one_of({"k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+"});
  for (const char* plus : {"", "+"}) {
    kind.also_spelled(std::string("kl") + plus, std::string("k1") + plus)
        .also_spelled(std::string("mse") + plus, std::string("k2") + plus)
        .also_spelled(std::string("low_var_kl") + plus, std::string("k3") + plus);
  }
  s.text(at + "kl_ctrl.type", "fixed", "adaptive moves the coefficient towards target_kl")
      .one_of({"fixed", "adaptive"});
  s.number(at + "kl_ctrl.kl_coef", 0.001, "weight of KL in rewards").within(at_least(0));
  s.number(at + "kl_ctrl.horizon", 10000, "samples over which adaptive moves").within(positive());
  s.number(at + "kl_ctrl.target_kl", 0.1, "KL that adaptive aims at").within(positive());
  s.open_section("algorithm.custom", "for advantage estimators and losses of the program's own");
  s.refused(at + "filter_groups", "write async.drop_zero_variance and async.refills_max");
}

void declare_reward(Schema& s, const TrainSchemaOptions& options) {
  s.text("reward.name", "auto", "which reward; auto chooses by the row's data source")
      .one_of(joined({"auto"}, options.rewards));
  s.boolean("reward.overlong_buffer.enable", false, "soft penalty for long answers (DAPO)");
  s.integer("reward.overlong_buffer.len", 128, "tokens before the limit in which it grows")
      .within(between(1, kMostTokens));
  s.number("reward.overlong_buffer.penalty_factor", 1.0, "penalty at the limit")
      .within(at_least(0));
  s.integer("reward.num_workers", 1, "rewards scored at once").within(between(1, 1024));
  s.open_section("reward.custom", "for rewards of the program's own");
}

void declare_trainer(Schema& s) {
  const std::string at = "trainer.";
  s.text(at + "project_name", "troupe", "first part of the default run folder");
  s.text(at + "experiment_name", "run", "second part of the default run folder");
  s.optional_key(at + "default_local_dir", ValueType::kString,
                 "run folder: metrics, trace, report, checkpoints; null: runs/PROJECT/EXPERIMENT");
  s.integer(at + "seed", 0, "seed of everything random in the run").within(at_least(0));
  s.integer(at + "nnodes", 1, "hosts; more than 1 need a cluster").within(between(1, 1 << 20));
  s.integer(at + "n_gpus_per_node", 1,
            "devices; without a cluster and a GPU, ranks that are threads")
      .within(between(1, 1024));
  s.alias(at + "device_count", at + "n_gpus_per_node");
  s.integer(at + "threads_per_rank", 1, "threads of one rank's arithmetic")
      .within(between(1, 1024));
  s.integer(at + "device_memory_mb", 0, "memory ledger's capacity of a device, MiB; 0: this host's")
      .within(between(0, 1 << 24));
  s.integer(at + "total_epochs", 30, "passes over the prompts").within(between(1, kMostInt));
  s.optional_key(at + "total_training_steps", ValueType::kInt, "stop after this step; null: epochs")
      .within(between(0, kMostInt));
  s.integer(at + "save_freq", -1, "checkpoint every so many steps; -1: only at the end")
      .within(between(-1, kMostInt));
  s.integer(at + "test_freq", -1, "validate every so many steps; -1: only at the end")
      .within(between(-1, kMostInt));
  s.boolean(at + "val_before_train", true, "validate before the first step");
  s.boolean(at + "val_only", false, "validate and stop");
  s.text(at + "resume_mode", "auto", "auto: from the newest checkpoint of the run folder, if any")
      .one_of({"auto", "disable", "resume_path"});
  s.optional_key(at + "resume_from_path", ValueType::kString, "checkpoint for resume_path");
  s.optional_key(at + "max_actor_ckpt_to_keep", ValueType::kInt,
                 "older ones are removed; null: all")
      .within(between(1, kMostInt));
  s.boolean(at + "balance_batch", true, "give ranks equal work by token counts");
  s.integer(at + "restarts_max", 0,
            "times the run goes on from its newest checkpoint after a rank's death")
      .within(between(0, kMostInt));
  s.integer(at + "critic_warmup", 0, "steps in which only the critic learns")
      .within(between(0, kMostInt));
  s.number(at + "call_timeout_s", 1800, "seconds that one call of a worker group may take")
      .within(between(0.001, 1e7));
  s.boolean(at + "trace", true, "write trace.json");
  s.boolean(at + "progress", true, "show a progress line");
  s.text(at + "log_level", "info", "what goes to stderr")
      .one_of({"debug", "info", "warn", "error"});
  s.refused(at + "logger", "metrics.jsonl, trace and report are always written; leave the key out");
}

void declare_cluster(Schema& s) {
  const std::string at = "cluster.";
  s.text(at + "address", "",
         "host:port of a troupe head, where the run gets its devices; empty with several nnodes: "
         "TROUPE_ADDRESS, or the head on this host");
  s.text(at + "token_file", "",
         "the cluster's join token; empty: TROUPE_TOKEN_FILE, or the head's");
  s.text(at + "tls", "", "folder of certificates (troupe cert make); empty: TROUPE_TLS, or no TLS");
  s.boolean(at + "trusted_network", false, "listen beyond this host without certificates");
  s.text(at + "listen", "",
         "address of this host where ranks reach it; empty: the one that leads to the head");
  s.text(at + "strategy", "PACK", "how devices are chosen")
      .one_of({"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"});
  s.text(at + "level", "node", "what the strategy packs into or spreads over")
      .one_of({"rack", "domain", "node", "socket"});
  s.integer(at + "max_per_domain", 0,
            "devices of the run in one domain of the level; 0: any number")
      .within(between(0, 1024));
  s.number(at + "cpus_per_gpu", 1, "CPU cores reserved with each device").within(between(0, 4096));
  s.integer(at + "memory_mb_per_gpu", 0, "host memory reserved with each device, MiB")
      .within(between(0, 1 << 30));
  s.integer(at + "priority", 0, "of the run's devices over other runs'")
      .within(between(-1000, 1000));
  s.number(at + "wait_s", 300, "seconds that the run may wait for its devices")
      .within(between(0.001, 1e7));
  s.number(at + "join_wait_s", 10,
           "seconds in which nodes may still join before too small a cluster is an error")
      .within(between(0, 1e7));
}

void declare_supervised(Schema& s) {
  s.texts("sft.train_files", {}, "JSON lines with prompt and response");
  s.texts("sft.val_files", {}, "held-out rows; loss only");
  s.integer("sft.train_batch_size", 64, "rows per optimiser step").within(between(1, kMostInt));
  s.integer("sft.max_length", 1024, "tokens of prompt and response together")
      .within(between(2, kMostTokens));
  s.text("sft.truncation", "error", "what happens to longer rows")
      .one_of({"error", "left", "right"});
  s.integer("sft.total_epochs", 1, "passes over the rows").within(between(1, kMostInt));
  s.optional_key("sft.total_training_steps", ValueType::kInt, "stop after this step; null: epochs")
      .within(between(0, kMostInt));
  s.boolean("sft.loss_on_prompt", false, "learn the prompt's tokens too");
  s.boolean("sft.shuffle", true, "new order of rows each epoch");
  s.number("sft.optim.lr", 1e-3, "learning rate").within(at_least(0));
  s.number("sft.optim.weight_decay", 0.01, "decoupled").within(at_least(0));
  s.numbers("sft.optim.betas", {0.9, 0.95}, "decay of the two moments")
      .of_size(2)
      .within({.min = 0, .max = 1, .max_open = true});
  s.number("sft.optim.eps", 1e-8, "added to the root of the second moment").within(positive());
  s.text("sft.optim.lr_scheduler_type", "cosine", "shape after warm-up")
      .one_of({"constant", "linear", "cosine"});
  s.integer("sft.optim.lr_warmup_steps", 0, "steps in which the rate rises from 0")
      .within(between(0, kMostInt));
  s.number("sft.optim.min_lr_ratio", 0.0, "last rate, as a part of lr").within(between(0, 1));
  s.optional_key("sft.optim.total_training_steps", ValueType::kInt, "null: the run's")
      .within(between(1, kMostInt));
  s.number("sft.grad_clip", 1.0, "global L2 norm of the gradient; 0: no clipping")
      .within(at_least(0));
  s.integer("sft.max_token_len_per_gpu", 8192, "tokens of one micro-batch, a hard cap")
      .within(between(1, kMostTokens));
  s.integer("sft.save_freq", -1, "checkpoint every so many steps; -1: only at the end")
      .within(between(-1, kMostInt));
  s.integer("sft.test_freq", -1, "held-out loss every so many steps; -1: only at the end")
      .within(between(-1, kMostInt));
  s.optional_key("sft.output_dir", ValueType::kString,
                 "folder of the trained model; null: in the run");
}

result<void> check_clip(const Config& c) {
  const std::string at = "actor_rollout_ref.actor.";
  const auto both = c.get_optional<double>(at + "clip_ratio");
  if (!both) return {};
  const auto low = c.get<double>(at + "clip_ratio_low");
  const auto high = c.get<double>(at + "clip_ratio_high");
  if (low == *both || high == *both) return {};
  return c.refuse(at + "clip_ratio",
                  "has no effect, as clip_ratio_low ({}) and clip_ratio_high ({}) are both given; "
                  "leave one side out",
                  low, high);
}

result<void> check_batches(const Config& c) {
  const auto train = c.get<std::int64_t>("data.train_batch_size");
  for (const char* key :
       {"actor_rollout_ref.actor.ppo_mini_batch_size", "critic.ppo_mini_batch_size"}) {
    const auto mini = c.get_optional<std::int64_t>(key);
    // Sizes need not divide: the last mini-batch is smaller.
    if (mini && *mini > train) {
      return c.refuse(key, "is more than data.train_batch_size = {} ({})", train,
                      c.place("data.train_batch_size"));
    }
  }
  if (c.get<std::int64_t>("actor_rollout_ref.rollout.max_num_seqs") >
      c.get<std::int64_t>("actor_rollout_ref.rollout.max_num_batched_tokens")) {
    return c.refuse("actor_rollout_ref.rollout.max_num_seqs",
                    "is more than actor_rollout_ref.rollout.max_num_batched_tokens = {}",
                    c.get<std::int64_t>("actor_rollout_ref.rollout.max_num_batched_tokens"));
  }
  return {};
}

bool among(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

result<void> check_estimator(const Config& c, const std::vector<std::string>& own) {
  const auto name = c.get<std::string>("algorithm.adv_estimator");
  if (std::find(own.begin(), own.end(), name) != own.end()) return {};  // takes what it likes
  const auto unused = [&](const char* key) {
    return c.refuse(key, "has no effect with algorithm.adv_estimator = {}", name);
  };
  if (c.get<double>("algorithm.gamma") != 1 && !among(name, {"gae", "reinforce_plus_plus"})) {
    return unused("algorithm.gamma");
  }
  if (c.get<double>("algorithm.lam") != 1 && name != "gae") return unused("algorithm.lam");
  if (!c.get<bool>("algorithm.whiten_advantages") && name != "gae")
    return unused("algorithm.whiten_advantages");
  const auto by_std = c.get_optional<bool>("algorithm.norm_adv_by_std_in_grpo");
  if (by_std && !among(name, {"grpo", "grpo_passk", "gdpo", "dr_grpo"})) {
    return unused("algorithm.norm_adv_by_std_in_grpo");
  }
  if (by_std.value_or(false) && name == "dr_grpo") {
    return c.refuse("algorithm.norm_adv_by_std_in_grpo", "contradicts adv_estimator = dr_grpo");
  }
  const auto n = c.get<std::int64_t>("actor_rollout_ref.rollout.n");
  if (n < 2 && among(name, {"grpo", "dr_grpo", "grpo_passk", "gdpo", "rloo", "opo", "gpg",
                            "reinforce_plus_plus_baseline"})) {
    return c.refuse("actor_rollout_ref.rollout.n",
                    "{} compares samples of one prompt and needs at least 2", name);
  }
  const auto critic = c.get_optional<bool>("critic.enable");
  if (critic == std::optional(false) && name == "gae") {
    return c.refuse("critic.enable", "algorithm.adv_estimator = gae needs a critic");
  }
  return {};
}

result<void> check_warmup(const Config& c) {
  const bool critic = c.get_optional<bool>("critic.enable")
                          .value_or(c.get<std::string>("algorithm.adv_estimator") == "gae");
  if (critic || c.get<std::int64_t>("trainer.critic_warmup") == 0) return {};
  return c.refuse("trainer.critic_warmup", "needs a critic; without one nothing would learn");
}

result<void> check_schedule(const Config& c) {
  for (const char* at : {"actor_rollout_ref.actor.optim.", "critic.optim.", "sft.optim."}) {
    const std::string prefix = at;
    const auto total = c.get_optional<std::int64_t>(prefix + "total_training_steps");
    const auto warmup = c.get<std::int64_t>(prefix + "lr_warmup_steps");
    const bool decays = c.get<std::string>(prefix + "lr_scheduler_type") != "constant";
    if (decays && total && warmup >= *total) {
      return c.refuse(prefix + "lr_warmup_steps", "is not below {}total_training_steps = {}",
                      prefix, *total);
    }
    if (!decays && c.get<double>(prefix + "min_lr_ratio") > 0) {
      return c.refuse(prefix + "min_lr_ratio", "has no effect with a constant learning rate");
    }
  }
  return {};
}

result<void> check_validation(const Config& c) {
  const std::string at = "actor_rollout_ref.rollout.val_kwargs.";
  const bool sample = c.get<bool>(at + "do_sample");
  const auto temperature = c.get<double>(at + "temperature");
  if (!sample && temperature > 0) {
    return c.refuse(at + "temperature", "has no effect while {}do_sample is false", at);
  }
  if (sample && temperature == 0) {
    return c.refuse(at + "do_sample", "needs {}temperature above 0", at);
  }
  if (!sample && c.get<std::int64_t>(at + "n") > 1) {
    return c.refuse(at + "n", "greedy validation gives the same sample each time; set {}do_sample",
                    at);
  }
  if (c.get<double>("actor_rollout_ref.rollout.temperature") == 0 &&
      c.get<std::int64_t>("actor_rollout_ref.rollout.n") > 1) {
    return c.refuse("actor_rollout_ref.rollout.temperature",
                    "greedy sampling gives {} equal samples of a prompt",
                    c.get<std::int64_t>("actor_rollout_ref.rollout.n"));
  }
  return {};
}

result<void> check_others(const Config& c) {
  const std::string actor = "actor_rollout_ref.actor.";
  if (c.get<double>(actor + "policy_loss.clip_cov_lb") >=
      c.get<double>(actor + "policy_loss.clip_cov_ub")) {
    return c.refuse(actor + "policy_loss.clip_cov_lb", "is not below clip_cov_ub = {}",
                    c.get<double>(actor + "policy_loss.clip_cov_ub"));
  }
  const auto mode = c.get<std::string>("trainer.resume_mode");
  if (mode == "resume_path" && c.is_null("trainer.resume_from_path")) {
    return c.refuse("trainer.resume_mode", "needs trainer.resume_from_path");
  }
  if (mode != "resume_path" && !c.is_null("trainer.resume_from_path")) {
    return c.refuse("trainer.resume_from_path", "has no effect with trainer.resume_mode = {}",
                    mode);
  }
  const auto agg = c.get_optional<std::string>(actor + "loss_agg_mode");
  if (!c.is_null(actor + "loss_scale_factor") &&
      agg != std::optional<std::string>("seq-mean-token-sum-norm")) {
    return c.refuse(actor + "loss_scale_factor",
                    "has no effect unless loss_agg_mode is seq-mean-token-sum-norm");
  }
  if (c.get<bool>("reward.overlong_buffer.enable") &&
      c.get<std::int64_t>("reward.overlong_buffer.len") >
          c.get<std::int64_t>("data.max_response_length")) {
    return c.refuse("reward.overlong_buffer.len", "is more than data.max_response_length = {}",
                    c.get<std::int64_t>("data.max_response_length"));
  }
  return {};
}

}  // namespace

Schema train_schema(const TrainSchemaOptions& options) {
  Schema s;
  declare_trainer(s);
  declare_cluster(s);
  declare_data(s);
  declare_model(s);
  declare_actor(s, options);
  declare_rollout(s);
  declare_critic(s);
  declare_parallel(s);
  declare_async(s);
  declare_judges(s);
  declare_algorithm(s, options);
  declare_correction(s);
  declare_reward(s, options);
  declare_supervised(s);
  sim::declare_simulation(s);
  s.rule(check_clip);
  s.rule(check_batches);
  s.rule([own = options.advantages](const Config& c) { return check_estimator(c, own); });
  s.rule(check_warmup);
  s.rule(check_schedule);
  s.rule(check_validation);
  s.rule(check_others);
  return s;
}

}  // namespace troupe::apps

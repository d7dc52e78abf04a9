#include "apps/training/train_settings.hpp"

#include "actors/algorithm/aggregation.hpp"
#include "apps/training/async_keys.hpp"
#include "apps/training/config_seconds.hpp"
#include "apps/training/correction_keys.hpp"
#include "apps/training/sections.hpp"
#include "apps/training/train_schema.hpp"
#include "runtime/base/rng.hpp"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

namespace troupe::apps {

using actors::LossAggregation;
using runtime::Config;

namespace {

// Streams of the run's seed, so that no two uses of it share numbers.
constexpr std::uint64_t kSamplingStream = 1;
constexpr std::uint64_t kActorShuffleStream = 2;
constexpr std::uint64_t kCriticShuffleStream = 3;
constexpr std::uint64_t kLossStream = 4;
constexpr std::uint64_t kValidationStream = 5;

std::uint64_t run_seed(const Config& config) {
  return static_cast<std::uint64_t>(config.get<std::int64_t>("trainer.seed"));
}

/// Names of `registry` beyond those of `built_in`.
template <class Registry>
std::vector<std::string> added_names(const Registry& registry, const Registry& built_in) {
  const std::vector<std::string> known = built_in.names();
  std::vector<std::string> added;
  for (const std::string& name : registry.names()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) added.push_back(name);
  }
  return added;
}

result<LossAggregation> aggregation_of(const Config& config, const std::string& key,
                                       LossAggregation otherwise) {
  const auto name = config.get_optional<std::string>(key);
  if (!name) return otherwise;
  return actors::loss_aggregation_from_name(*name);
}

}  // namespace

runtime::Schema schema_for(const TrainingRegistries& registries) {
  return train_schema(
      {.advantages = added_names(registries.advantages, actors::default_advantages()),
       .policy_losses = added_names(registries.losses, actors::default_policy_losses()),
       .rewards = registries.rewards.names()});
}

ModelOptions model_options(const Config& config) {
  ModelOptions options;
  options.random_weights =
      config.get<std::string>("actor_rollout_ref.model.load_format") == "random";
  options.seed = run_seed(config);
  options.chat_template = config.get<std::string>("data.chat_template");
  options.chat.default_system = config.get_optional<std::string>("data.default_system");
  options.chat.empty_think_block =
      !config.get<bool>("data.apply_chat_template_kwargs.enable_thinking");
  if (const auto folder =
          config.get_optional<std::string>("actor_rollout_ref.model.tokenizer_path"))
    options.tokenizer_folder = *folder;
  const std::string section = "actor_rollout_ref.model.override_config";
  for (const std::string& key : config.keys_below(section))
    options.config_overrides[key] = runtime::to_yaml_text(config.value(section + "." + key));
  return options;
}

actors::DatasetOptions dataset_options(const Config& config, std::int64_t rows_wanted) {
  actors::DatasetOptions options;
  options.row.prompt_key = config.get<std::string>("data.prompt_key");
  options.row.source_key = config.get<std::string>("data.reward_fn_key");
  options.row.response_key = config.get<std::string>("data.response_key");
  options.rows_wanted = std::max<std::int64_t>(rows_wanted, 0);
  return options;
}

actors::PromptLoaderOptions loader_options(const Config& config, std::int64_t batch_size,
                                           bool training, std::int64_t positions) {
  actors::PromptLoaderOptions options;
  options.batch_size = batch_size;
  options.prompt_tokens_max =
      std::min(config.get<std::int64_t>("data.max_prompt_length"),
               positions - config.get<std::int64_t>("data.max_response_length"));
  options.shuffle = training && config.get<bool>("data.shuffle");
  options.drop_last = training;
  options.filter_overlong = config.get<bool>("data.filter_overlong_prompts");
  const auto truncation = actors::truncation_from_name(config.get<std::string>("data.truncation"));
  TROUPE_CHECK(truncation.has_value(), "data.truncation: the schema allows an unknown name");
  options.truncation = *truncation;
  return options;
}

actors::SamplingOptions sampling_options(const Config& config, const ModelBundle& model,
                                         bool validation) {
  const std::string at = validation ? std::string(kRollout) + ".val_kwargs" : kRollout;
  actors::SamplingOptions sampling;
  sampling.temperature = config.get<double>(at + ".temperature");
  sampling.top_p = config.get<double>(at + ".top_p");
  sampling.top_k = static_cast<std::int32_t>(config.get<std::int64_t>(at + ".top_k"));
  sampling.min_p = config.get<double>(at + ".min_p");
  sampling.repetition_penalty = config.get<double>(at + ".repetition_penalty");
  if (validation && !config.get<bool>(at + ".do_sample")) sampling.temperature = 0;
  sampling.max_new_tokens =
      static_cast<std::int32_t>(config.get<std::int64_t>("data.max_response_length"));
  sampling.stop_ids = model.stop_ids();
  sampling.stop_strings = config.get<std::vector<std::string>>(std::string(kRollout) + ".stop");
  sampling.ignore_eos = config.get<bool>(std::string(kRollout) + ".ignore_eos");
  sampling.seed = mix_seed(run_seed(config), validation ? kValidationStream : kSamplingStream);
  return sampling;
}

actors::EngineOptions engine_options(const Config& config, const ModelBundle& model) {
  const std::string at = kRollout;
  actors::EngineOptions engine;
  engine.max_model_tokens =
      static_cast<std::int32_t>(std::min(config.get<std::int64_t>("data.max_prompt_length") +
                                             config.get<std::int64_t>("data.max_response_length"),
                                         model.config().positions_max));
  engine.max_num_seqs = static_cast<std::int32_t>(config.get<std::int64_t>(at + ".max_num_seqs"));
  engine.max_num_batched_tokens =
      static_cast<std::int32_t>(config.get<std::int64_t>(at + ".max_num_batched_tokens"));
  engine.kv_blocks = static_cast<std::int32_t>(config.get<std::int64_t>(at + ".kv_cache_blocks"));
  engine.kv_bytes_max = mebibytes(config.get<std::int64_t>(at + ".kv_cache_mb"));
  engine.weight_memory = config.get<std::string>(at + ".weight_memory") == "in_place"
                             ? actors::WeightMemory::kInPlace
                             : actors::WeightMemory::kDoubleBuffered;
  engine.tp_timeout = std::min<Duration>(engine.tp_timeout, call_timeout(config));
  engine.token_bytes = [&tokenizer = model.tokenizer()](std::int32_t id) {
    return tokenizer.token_bytes(id);
  };
  return engine;
}

result<actors::TrainEngineOptions> train_engine_options(const Config& config,
                                                        const std::string& section,
                                                        std::int64_t steps_total) {
  actors::TrainEngineOptions engine;
  actors::OptimizerOptions& optimizer = engine.optimizer;
  const std::string at = section + ".optim.";
  optimizer.lr = config.get<double>(at + "lr");
  const auto betas = config.get<std::vector<double>>(at + "betas");
  optimizer.beta1 = betas[0];
  optimizer.beta2 = betas[1];
  optimizer.eps = config.get<double>(at + "eps");
  optimizer.weight_decay = config.get<double>(at + "weight_decay");
  optimizer.grad_norm_max = config.get<double>(section + ".grad_clip");
  TROUPE_TRY(optimizer.schedule,
             actors::lr_schedule_from_name(config.get<std::string>(at + "lr_scheduler_type")));
  optimizer.warmup_steps = config.get<std::int64_t>(at + "lr_warmup_steps");
  optimizer.total_steps =
      config.get_optional<std::int64_t>(at + "total_training_steps").value_or(steps_total);
  if (optimizer.schedule != actors::LrSchedule::kConstant &&
      optimizer.warmup_steps >= optimizer.total_steps)
    return config.refuse(at + "lr_warmup_steps", "is not below the {} optimizer steps of the run",
                         optimizer.total_steps);
  optimizer.lr_min_ratio = config.get<double>(at + "min_lr_ratio");
  engine.micro_batch_tokens_max = config.get<std::int64_t>(
      section + (section == "sft" ? ".max_token_len_per_gpu" : ".ppo_max_token_len_per_gpu"));
  if (section != "sft") engine.share_prompts = config.get<bool>(section + ".use_prefix_grouper");
  engine.recompute = config.get<bool>(
      section == kCritic ? "critic.model.enable_gradient_checkpointing"
                         : "actor_rollout_ref.model.enable_gradient_checkpointing");
  engine.head = section == kCritic ? actors::ModelHead::kValue : actors::ModelHead::kLanguage;
  engine.seed = run_seed(config);
  engine.threads = config.get<int>("trainer.threads_per_rank");
  engine.collective_timeout = std::min<Duration>(engine.collective_timeout, call_timeout(config));
  return engine;
}

result<actors::PolicyUpdateSettings> policy_update_settings(
    const Config& config, const actors::PolicyLossRegistry& losses) {
  const std::string at = std::string(kActor) + ".";
  actors::PolicyUpdateSettings settings;
  settings.loss = config.get<std::string>(at + "policy_loss.loss_mode");
  TROUPE_TRY(const actors::PolicyLoss chosen, losses.find(settings.loss));
  actors::PolicyLossOptions& loss = settings.objective.loss;
  TROUPE_TRY(loss.aggregation,
             aggregation_of(config, at + "loss_agg_mode", chosen.default_aggregation));
  loss.clip_low = config.get<double>(at + "clip_ratio_low");
  loss.clip_high = config.get<double>(at + "clip_ratio_high");
  loss.clip_dual = config.get<double>(at + "clip_ratio_c");
  loss.clip_cov_ratio = config.get<double>(at + "policy_loss.clip_cov_ratio");
  loss.clip_cov_low = config.get<double>(at + "policy_loss.clip_cov_lb");
  loss.clip_cov_high = config.get<double>(at + "policy_loss.clip_cov_ub");
  loss.kl_cov_ratio = config.get<double>(at + "policy_loss.kl_cov_ratio");
  loss.kl_cov_coefficient = config.get<double>(at + "policy_loss.ppo_kl_coef");
  loss.seed = mix_seed(run_seed(config), kLossStream);
  settings.temperature =
      static_cast<float>(config.get<double>(std::string(kRollout) + ".temperature"));
  settings.loss_scale_factor =
      config.get_optional<double>(at + "loss_scale_factor")
          .value_or(static_cast<double>(config.get<std::int64_t>("data.max_response_length")));
  settings.objective.entropy_coefficient = config.get<double>(at + "entropy_coeff");
  if (config.get<bool>(at + "use_kl_loss")) {
    settings.objective.kl_coefficient = config.get<double>(at + "kl_loss_coef");
    TROUPE_TRY(settings.objective.kl,
               actors::kl_kind_from_name(config.get<std::string>(at + "kl_loss_type")));
  }
  TROUPE_TRY_VOID(apply_correction(config, losses, settings));
  return settings;
}

result<actors::ValueUpdateSettings> value_update_settings(const Config& config) {
  actors::ValueUpdateSettings settings;
  TROUPE_TRY(settings.options.aggregation,
             aggregation_of(config, "critic.loss_agg_mode", LossAggregation::kTokenMean));
  settings.options.clip = config.get<double>("critic.cliprange_value");
  settings.loss_scale_factor =
      static_cast<double>(config.get<std::int64_t>("data.max_response_length"));
  return settings;
}

result<actors::AdvantageStepOptions> advantage_step_options(
    const Config& config, const actors::AdvantageRegistry& advantages) {
  actors::AdvantageStepOptions step;
  const auto name = config.get<std::string>("algorithm.adv_estimator");
  TROUPE_TRY(step.estimator, advantages.find(name));
  step.options.gamma = config.get<double>("algorithm.gamma");
  step.options.lambda = config.get<double>("algorithm.lam");
  step.options.whiten = config.get<bool>("algorithm.whiten_advantages");
  step.options.norm_by_std = config.get_optional<bool>("algorithm.norm_adv_by_std_in_grpo");
  step.kl_in_reward = config.get<bool>("algorithm.use_kl_in_reward");
  TROUPE_TRY(step.kl_kind,
             actors::kl_kind_from_name(config.get<std::string>("algorithm.kl_penalty")));
  step.kl_controller = {.beta = config.get<double>("algorithm.kl_ctrl.kl_coef"),
                        .adaptive = config.get<std::string>("algorithm.kl_ctrl.type") == "adaptive",
                        .target = config.get<double>("algorithm.kl_ctrl.target_kl"),
                        .horizon = config.get<double>("algorithm.kl_ctrl.horizon")};
  TROUPE_TRY_VOID(step.kl_controller.check());
  if (config.get<bool>("reward.overlong_buffer.enable"))
    step.overlong = actors::OverlongOptions{
        .response_tokens_max = config.get<std::int64_t>("data.max_response_length"),
        .buffer_tokens = config.get<std::int64_t>("reward.overlong_buffer.len"),
        .factor = config.get<double>("reward.overlong_buffer.penalty_factor")};
  step.greedy_baseline = name == "remax";
  step.keep_returns = wants_critic(config);
  return step;
}

actors::MinibatchPlan minibatch_plan(const Config& config, const std::string& section) {
  const auto samples = config.get<std::int64_t>(std::string(kRollout) + ".n");
  const std::int64_t prompts = minibatch_prompts(config, section);
  return {.rows = prompts * samples,
          .epochs = config.get<std::int64_t>(section + ".ppo_epochs"),
          .shuffle = config.get<bool>(section + ".shuffle"),
          .seed = mix_seed(run_seed(config),
                           section == kCritic ? kCriticShuffleStream : kActorShuffleStream),
          .balance = config.get<bool>("trainer.balance_batch")};
}

std::int64_t updates_per_step(const Config& config, const std::string& section) {
  const actors::MinibatchPlan plan = minibatch_plan(config, section);
  const std::int64_t rows = config.get<std::int64_t>("data.train_batch_size") *
                            config.get<std::int64_t>(std::string(kRollout) + ".n");
  return plan.epochs * ((rows + plan.rows - 1) / plan.rows);
}

bool wants_cluster(const Config& config) {
  return config.get<std::int64_t>("trainer.nnodes") > 1 ||
         !config.get<std::string>("cluster.address").empty();
}

result<void> refuse_cluster(const Config& config, std::string_view command) {
  if (config.get<std::int64_t>("trainer.nnodes") > 1)
    return config.refuse("trainer.nnodes", "troupe {} runs on this host only", command);
  if (!config.get<std::string>("cluster.address").empty())
    return config.refuse("cluster.address", "troupe {} runs on this host only", command);
  return {};
}

Duration call_timeout(const Config& config) { return seconds_of(config, "trainer.call_timeout_s"); }

std::uint64_t data_seed(const Config& config) {
  const auto own = config.get_optional<std::int64_t>("data.seed");
  return own ? static_cast<std::uint64_t>(*own) : run_seed(config);
}

std::string run_folder(const Config& config) {
  return config.get_optional<std::string>("trainer.default_local_dir")
      .value_or("runs/" + config.get<std::string>("trainer.project_name") + "/" +
                config.get<std::string>("trainer.experiment_name"));
}

Bytes device_memory(const Config& config) {
  const auto configured = config.get<std::int64_t>("trainer.device_memory_mb");
  if (configured > 0) return mebibytes(configured);
  const std::int64_t host =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const int beside = rollout_devices(config) + evaluation_devices(config);
  return Bytes{host / (config.get<std::int64_t>("trainer.n_gpus_per_node") + beside)};
}

}  // namespace troupe::apps

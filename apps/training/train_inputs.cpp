#include "apps/training/train_inputs.hpp"

#include "actors/rollout/block_pool.hpp"
#include "actors/train/streamed_update.hpp"
#include "apps/training/async_keys.hpp"
#include "apps/training/cluster_run.hpp"
#include "apps/training/correction_keys.hpp"
#include "apps/training/judge_keys.hpp"
#include "apps/training/parallel_keys.hpp"
#include "apps/training/sections.hpp"
#include "apps/training/service_keys.hpp"
#include "runtime/base/log.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

namespace troupe::apps {

using runtime::Checkpoint;
using runtime::Config;

namespace {

/// Where rank processes find what the controller has opened.
actors::ModelSource source_of(const ModelBundle& model, const ModelOptions& options) {
  return {.config = model.config().to_json(),
          .folder = std::filesystem::absolute(model.folder()).string(),
          .random = options.random_weights,
          .seed = options.seed,
          .tokenizer_folder = std::filesystem::absolute(model.tokenizer_folder()).string()};
}

result<std::unique_ptr<ModelBundle>> open_same_shape(const std::string& key,
                                                     const std::string& folder,
                                                     const ModelOptions& options,
                                                     const ModelBundle& policy) {
  TROUPE_TRY(auto bundle, ModelBundle::open(folder, options));
  if (bundle->config().vocab_size != policy.config().vocab_size)
    return fail(ErrorCode::kConflict, "{}: {}: vocab_size {}, the policy has {}", key, folder,
                bundle->config().vocab_size, policy.config().vocab_size);
  return bundle;
}

/// The longest sequence of these prompts must fit into the KV cache.
result<void> check_kv_blocks(const Config& config, const actors::PromptLoader& prompts) {
  const std::string key = "actor_rollout_ref.rollout.kv_cache_blocks";
  const std::int64_t longest =
      prompts.longest_prompt() + config.get<std::int64_t>("data.max_response_length");
  const std::int64_t wanted = (longest + actors::kBlockTokens - 1) / actors::kBlockTokens;
  if (config.get<std::int64_t>(key) > 0 && config.get<std::int64_t>(key) < wanted)
    return config.refuse(key, "holds less than the longest sequence, {} tokens in {} blocks",
                         longest, wanted);
  return {};
}

/// The longest sequence that this data can give must fit every micro-batch and the KV cache.
result<void> check_budgets(const Config& config, const TrainInputs& inputs) {
  const std::int64_t longest =
      inputs.train->longest_prompt() + config.get<std::int64_t>("data.max_response_length");
  std::vector<std::string> keys{"actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
                                "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"};
  if (wants_reference(config))
    keys.emplace_back("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu");
  if (wants_critic(config)) keys.emplace_back("critic.ppo_max_token_len_per_gpu");
  for (const std::string& key : keys) {
    if (config.get<std::int64_t>(key) < longest)
      return config.refuse(key, "is below the longest prompt and response, {} + {} tokens",
                           inputs.train->longest_prompt(),
                           config.get<std::int64_t>("data.max_response_length"));
  }
  for (const ModelBundle* model : {inputs.reference.get(), inputs.critic.get()}) {
    if (model != nullptr && model->config().positions_max < longest)
      return fail(ErrorCode::kConflict, "{}: {} positions, the longest prompt and response take {}",
                  model->folder().string(), model->config().positions_max, longest);
  }
  TROUPE_TRY_VOID(check_kv_blocks(config, *inputs.train));
  if (inputs.validation) TROUPE_TRY_VOID(check_kv_blocks(config, *inputs.validation));
  if (config.get<std::string>("algorithm.adv_estimator") == "gdpo")
    return config.refuse("algorithm.adv_estimator",
                         "gdpo needs separate reward components, which `troupe train` has not; "
                         "call gdpo_advantage from a program of your own");
  return {};
}

/// What a pipelined step cannot learn from part by part, by what the registries know of it.
result<void> check_pipelined_update(const Config& config, const actors::WorldOptions& options,
                                    const TrainingRegistries& registries) {
  TROUPE_TRY(const actors::PolicyLoss loss, registries.losses.find(options.policy_update.loss));
  actors::StreamedUpdatePlan plan;
  plan.step_rows = config.get<std::int64_t>("data.train_batch_size") *
                   config.get<std::int64_t>("actor_rollout_ref.rollout.n");
  plan.minibatch_rows = options.policy.plan.rows;
  plan.epochs = options.policy.plan.epochs;
  if (options.critic) {
    plan.minibatch_rows = std::min(plan.minibatch_rows, options.critic->plan.rows);
    plan.epochs = std::max(plan.epochs, options.critic->plan.epochs);
  }
  plan.advantage = config.get<std::string>("algorithm.adv_estimator");
  plan.advantage_is_local =
      plan.advantage == "gae" && !config.get<bool>("algorithm.whiten_advantages");
  TROUPE_TRY(const auto corrects, correction_step_options(config));
  if (corrects.correction.normalise)
    plan.batch_wide.emplace_back("algorithm.rollout_correction.rollout_is_batch_normalize");
  if (corrects.correction.second_moment_max)
    plan.batch_wide.emplace_back("algorithm.rollout_correction.m2_threshold");
  plan.loss = options.policy_update.loss;
  plan.loss_selects = loss.selects_tokens();
  if (auto fits = actors::check_streamed_update(plan); !fits)
    return config.refuse("trainer.mode", "{}", fits.error().message);
  return {};
}

}  // namespace

result<void> check_generation(const Config& config, const ModelBundle& model) {
  const std::int64_t positions = model.config().positions_max;
  if (config.get<std::int64_t>("data.max_response_length") >= positions)
    return config.refuse("data.max_response_length", "leaves no room in {} positions of {}",
                         positions, model.folder().string());
  for (const bool validation : {false, true}) {
    auto sampling = sampling_options(config, model, validation).check();
    if (!sampling)
      return fail(std::move(sampling).error().wrap(
          ErrorCode::kConfig, validation ? std::string(kRollout) + ".val_kwargs" : kRollout));
  }
  return {};
}

result<actors::PromptLoader> open_prompts(const Config& config, const ModelBundle& model,
                                          const actors::RewardRegistry& rewards, bool training) {
  const std::string key = training ? "data.train_files" : "data.val_files";
  const auto files = config.get<std::vector<std::string>>(key);
  const auto most =
      config.get<std::int64_t>(training ? "data.train_max_samples" : "data.val_max_samples");
  TROUPE_TRY(auto dataset, actors::Dataset::load(files, dataset_options(config, most)));
  if (config.get<std::string>("reward.name") == "auto") {
    for (const actors::PromptRow& row : dataset.rows()) {
      if (!rewards.covers(row.data_source))
        return fail(ErrorCode::kConfig, "{}: row {}: no reward for data_source '{}', known: {}",
                    key, row.prompt_id, row.data_source, fmt::join(rewards.names(), ", "));
    }
  }
  const std::int64_t batch =
      training ? config.get<std::int64_t>("data.train_batch_size")
               : config.get_optional<std::int64_t>("data.val_batch_size").value_or(dataset.size());
  return actors::PromptLoader::create(
      std::move(dataset),
      [&model](std::span<const actors::Message> messages) { return model.encode_prompt(messages); },
      loader_options(config, batch, training, model.config().positions_max));
}

result<TrainInputs> open_inputs(const Config& config, const TrainingRegistries& registries) {
  TrainInputs inputs;
  const auto path = config.get<std::string>("actor_rollout_ref.model.path");
  if (path.empty()) return config.refuse("actor_rollout_ref.model.path", "names no model folder");
  if (config.get<std::vector<std::string>>("data.train_files").empty())
    return config.refuse("data.train_files", "names no file");
  TROUPE_TRY(inputs.policy, ModelBundle::open(path, model_options(config)));
  TROUPE_TRY_VOID(check_generation(config, *inputs.policy));
  const auto reference = config.get_optional<std::string>("actor_rollout_ref.ref.path");
  if (reference && wants_reference(config)) {
    TROUPE_TRY(inputs.reference,
               open_same_shape("actor_rollout_ref.ref.path", *reference, {}, *inputs.policy));
  }
  const auto critic = config.get_optional<std::string>("critic.model.path");
  if (critic && wants_critic(config)) {
    TROUPE_TRY(inputs.critic, open_same_shape("critic.model.path", *critic, {}, *inputs.policy));
  }
  TROUPE_TRY(inputs.train, open_prompts(config, *inputs.policy, registries.rewards, true));
  if (!config.get<std::vector<std::string>>("data.val_files").empty()) {
    TROUPE_TRY(inputs.validation, open_prompts(config, *inputs.policy, registries.rewards, false));
  }
  TROUPE_TRY_VOID(check_budgets(config, inputs));
  return inputs;
}

std::int64_t total_steps(const Config& config, const actors::PromptLoader& train) {
  const std::int64_t by_epochs =
      config.get<std::int64_t>("trainer.total_epochs") * train.batches_per_epoch();
  return config.get_optional<std::int64_t>("trainer.total_training_steps").value_or(by_epochs);
}

result<actors::WorldOptions> world_options(const Config& config, const TrainInputs& inputs,
                                           const TrainingRegistries& registries,
                                           std::int64_t steps) {
  actors::WorldOptions options;
  options.devices = run_devices(config);
  options.device_memory = device_memory(config);
  options.reward_workers = config.get<int>("reward.num_workers");
  const auto rule = config.get<std::string>("reward.name");
  if (rule != "auto") options.reward_rule = rule;
  options.call_deadline = call_timeout(config);
  options.temperature =
      static_cast<float>(config.get<double>("actor_rollout_ref.rollout.temperature"));

  const std::string actor = kActor;
  options.policy.model = inputs.policy->config();
  options.policy.weights = inputs.policy->weights().tensors();
  options.policy.source = source_of(*inputs.policy, model_options(config));
  const std::int64_t policy_steps =
      std::max<std::int64_t>(steps - config.get<std::int64_t>("trainer.critic_warmup"), 0);
  TROUPE_TRY(options.policy.engine,
             train_engine_options(config, actor, policy_steps * updates_per_step(config, actor)));
  options.policy.plan = minibatch_plan(config, actor);
  options.policy.engine.forward_tokens_max =
      config.get<std::int64_t>("actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu");
  TROUPE_TRY(options.policy.engine.parallel, parallel_options(config, actor, options.policy.model));
  TROUPE_TRY(options.policy_update, policy_update_settings(config, registries.losses));
  options.losses = registries.losses;
  if (wants_reference(config)) {
    options.reference = options.policy;
    options.reference->engine.forward_tokens_max =
        config.get<std::int64_t>("actor_rollout_ref.ref.log_prob_max_token_len_per_gpu");
    if (inputs.reference) {
      options.reference->model = inputs.reference->config();
      options.reference->weights = inputs.reference->weights().tensors();
      options.reference->source = source_of(*inputs.reference, {});
    }
    TROUPE_TRY(options.reference->engine.parallel,
               parallel_options(config, kReference, options.reference->model));
  }
  if (wants_critic(config)) {
    const ModelBundle& first = inputs.critic ? *inputs.critic : *inputs.policy;
    options.critic =
        actors::TrainedRole{.model = first.config(),
                            .weights = first.weights().tensors(),
                            .source = inputs.critic ? source_of(first, {}) : options.policy.source,
                            .engine = {},
                            .plan = minibatch_plan(config, kCritic)};
    TROUPE_TRY(options.critic->engine,
               train_engine_options(config, kCritic, steps * updates_per_step(config, kCritic)));
    TROUPE_TRY(options.critic->engine.parallel,
               parallel_options(config, kCritic, options.critic->model));
    TROUPE_TRY(options.value_update, value_update_settings(config));
  }
  options.rollout = engine_options(config, *inputs.policy);
  TROUPE_TRY(options.rollout_tp, rollout_tp(config, options.policy.model));
  options.publication = publication_options(config);
  set_world(config, options);
  options.reward_commands = reward_commands(config);
  options.reward_report_failed = uses_service(config);
  options.environment = environment_options(config);
  options.environment_workers = config.get<int>("environment.workers");
  options.environment_commands = environment_commands(config);
  if (loop_mode(config) == LoopMode::kPipelined)
    TROUPE_TRY_VOID(check_pipelined_update(config, options, registries));
  return options;
}

result<std::optional<Checkpoint>> checkpoint_to_resume(const Config& config,
                                                       const std::string& folder) {
  const auto mode = config.get<std::string>("trainer.resume_mode");
  if (mode == "disable") {
    if (std::filesystem::exists(std::filesystem::path(folder) / runtime::kMarkerFile))
      return config.refuse("trainer.resume_mode",
                           "{} holds checkpoints of an earlier run; choose another folder", folder);
    return std::optional<Checkpoint>();
  }
  if (mode == "auto") return Checkpoint::latest(folder);
  TROUPE_TRY(auto checkpoint,
             Checkpoint::open(*config.get_optional<std::string>("trainer.resume_from_path")));
  return std::optional<Checkpoint>(std::move(checkpoint));
}

result<void> check_resumed(const RunState& state, const std::string& command,
                           std::int64_t data_rows, const Checkpoint& checkpoint) {
  const std::string folder = checkpoint.folder().string();
  if (state.command != command)
    return fail(ErrorCode::kConflict, "{}: a checkpoint of troupe {}, not of troupe {}", folder,
                state.command, command);
  if (state.data_rows != data_rows)
    return fail(ErrorCode::kConflict, "{}: trained on {} rows, the data now has {}", folder,
                state.data_rows, data_rows);
  return {};
}

void warn_of_changes(const Config& config, const Checkpoint& checkpoint) {
  const auto blob = checkpoint.blob("config.yaml");
  if (!blob) return;
  const auto bytes = blob->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto before = Config::parse(schema_for({}), text, "config.yaml of the checkpoint");
  if (!before) return;  // written by a program with names of its own
  for (const std::string& key : config.keys_below("")) {
    if (!before->has(key) || before->value(key) == config.value(key)) continue;
    log::warn("resume: {} is {}, was {} in {}", key, runtime::to_yaml_text(config.value(key)),
              runtime::to_yaml_text(before->value(key)), checkpoint.folder().string());
  }
}

}  // namespace troupe::apps

#include "apps/training/evaluate_app.hpp"

#include "actors/loops/columns.hpp"
#include "actors/loops/validation.hpp"
#include "actors/roles/role_meshes.hpp"
#include "apps/training/judge_keys.hpp"
#include "apps/training/parallel_keys.hpp"
#include "apps/training/train_inputs.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/executor.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace troupe::apps {
namespace {

using runtime::Batch;
using runtime::Config;
using runtime::task;
using runtime::value_or_throw;
using runtime::WorkerGroup;
namespace column = actors::column;

struct PromptTally {
  std::int64_t samples = 0;
  std::int64_t right = 0;
  double reward = 0;
};

/// Adds finished samples to the tallies, by source and prompt.
void tally(const Batch& batch, const actors::Tokenizer& tokenizer, bool keep_samples,
           std::map<std::string, std::map<std::int64_t, PromptTally>>& tallies,
           Evaluation& evaluation) {
  const Batch local = value_or_throw(batch.resolve());
  for (std::int64_t row = 0; row < local.rows(); ++row) {
    const std::string source(local.column(column::kDataSource).text(row));
    PromptTally& prompt =
        tallies[source][local.column(column::kPromptIds).scalar<std::int64_t>(row)];
    const double score = local.column(column::kScores).scalar<float>(row);
    prompt.samples += 1;
    prompt.right += local.column(column::kAccuracy).scalar<float>(row) >= 0.5F ? 1 : 0;
    prompt.reward += score;
    if (!keep_samples) continue;
    const auto text = [&](std::string_view name) {
      return tokenizer.decode(local.column(name).row<std::int32_t>(row), {.skip_special = true});
    };
    evaluation.samples.push_back(
        {.data_source = source,
         .prompt = text(column::kPrompts),
         .response = text(column::kResponses),
         .answer = std::string(local.column(column::kAnswers).text(row)),
         .ground_truth = std::string(local.column(column::kGroundTruth).text(row)),
         .score = score});
  }
}

SourceScores scores_of(const std::map<std::int64_t, PromptTally>& prompts, std::int64_t n) {
  SourceScores scores;
  double samples = 0;
  double right = 0;
  std::vector<std::int64_t> ks;
  for (std::int64_t k = 1; k < n; k *= 2) ks.push_back(k);
  ks.push_back(n);
  for (const auto& [id, prompt] : prompts) {
    scores.prompts += 1;
    samples += static_cast<double>(prompt.samples);
    right += static_cast<double>(prompt.right);
    scores.reward += prompt.reward;
    for (const std::int64_t k : ks) scores.pass_at[k] += pass_at_k(prompt.samples, prompt.right, k);
  }
  if (samples == 0) return scores;
  scores.average = right / samples;
  scores.reward /= samples;
  for (auto& [k, sum] : scores.pass_at) sum /= static_cast<double>(scores.prompts);
  return scores;
}

/// The rollout engines, one group of them all.
result<std::unique_ptr<actors::RolloutReplicas>> rollout_replicas(runtime::ActorSystem& system,
                                                                  actors::Turnstile& publishing,
                                                                  const Config& config,
                                                                  const ModelBundle& model) {
  const int devices = config.get<int>("trainer.n_gpus_per_node");
  TROUPE_TRY(const int tp, rollout_tp(config, model.config()));
  TROUPE_TRY(std::vector<actors::RolloutSeat> seats,
             actors::rollout_seats({.policy = {}, .tp = tp, .devices = devices}));
  const actors::RolloutWorker::Options worker{.model = model.config(),
                                              .engine = engine_options(config, model)};
  const auto make =
      [&system, tp, worker, timeout = call_timeout(config)](
          const actors::GroupMaking& making,
          const actors::RolloutSeat& seat) -> result<WorkerGroup<actors::RolloutWorker>> {
    runtime::GroupOptions options;
    options.name = actors::group_name(seat.name, making.generation);
    TROUPE_TRY(options.mesh, actors::rollout_mesh(tp, static_cast<int>(seat.devices.size())));
    options.call_deadline = timeout;
    options.create_deadline = making.within;
    return WorkerGroup<actors::RolloutWorker>::create(
        system, std::move(options), [worker](runtime::WorkerContext& context) {
          return actors::RolloutWorker::create(context, worker);
        });
  };
  return actors::RolloutReplicas::create(make, std::move(seats), publishing, {});
}

result<std::unique_ptr<actors::GroupReward>> reward_role(runtime::ActorSystem& system,
                                                         const Config& config,
                                                         const ModelBundle& model,
                                                         const TrainingRegistries& registries) {
  const auto rule = config.get<std::string>("reward.name");
  const auto make = [&system, &model, &registries, rule = rule == "auto" ? std::string() : rule,
                     workers = config.get<int>("reward.num_workers"),
                     timeout = call_timeout(config)](const actors::GroupMaking& making) {
    runtime::GroupOptions options;
    options.name = actors::group_name("reward", making.generation);
    options.mesh = runtime::Mesh::data_parallel(workers);
    options.collectives = false;
    options.call_deadline = timeout;
    options.create_deadline = making.within;
    return WorkerGroup<actors::RewardWorker>::create(
        system, std::move(options), [&model, &registries, rule](runtime::WorkerContext&) {
          return std::make_unique<actors::RewardWorker>(model.tokenizer(), registries.rewards,
                                                        rule);
        });
  };
  return actors::GroupReward::create(make, {});
}

task<std::vector<Batch>> generate_and_score(actors::RolloutReplicas& replicas,
                                            actors::GroupReward& reward, const ModelBundle& model,
                                            std::vector<Batch> prompts, std::int64_t n,
                                            actors::SamplingOptions sampling) {
  const actors::WeightHandle weights{
      .tensors = runtime::value_or_throw(actors::tensor_batch(model.weights().tensors(), nullptr)),
      .version = WeightVersion{0}};
  auto& group = replicas.group(0);
  const std::vector<actors::WeightHandle> handles(static_cast<std::size_t>(group.size()), weights);
  co_await group.call<&actors::RolloutWorker::load_weights>(handles);
  replicas.set_serving(0);
  actors::GroupRollout rollout(replicas, std::nullopt);
  std::vector<Batch> finished;
  co_await actors::validate<actors::GroupWorld>(rollout, reward, std::move(prompts), n,
                                                std::move(sampling), &finished);
  co_return finished;
}

}  // namespace

double pass_at_k(std::int64_t n, std::int64_t c, std::int64_t k) {
  if (n - c < k) return 1;
  double none_right = 1;
  for (std::int64_t i = n - c + 1; i <= n; ++i)
    none_right *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none_right;
}

result<Evaluation> evaluate(const Config& config, const TrainingRegistries& registries,
                            bool keep_samples) {
  TROUPE_TRY_VOID(refuse_cluster(config, "eval"));
  if (wants_environment(config))
    return config.refuse("environment.name", "troupe eval takes samples of one turn");
  const auto path = config.get<std::string>("actor_rollout_ref.model.path");
  if (path.empty()) return config.refuse("actor_rollout_ref.model.path", "names no model folder");
  if (config.get<std::vector<std::string>>("data.val_files").empty())
    return config.refuse("data.val_files", "names no file");
  TROUPE_TRY(const auto model, ModelBundle::open(path, model_options(config)));
  TROUPE_TRY_VOID(check_generation(config, *model));
  TROUPE_TRY(const auto prompts, open_prompts(config, *model, registries.rewards, false));
  runtime::ActorSystem system;
  actors::Turnstile publishing;
  TROUPE_TRY(const auto rollout, rollout_replicas(system, publishing, config, *model));
  TROUPE_TRY(const auto reward, reward_role(system, config, *model, registries));
  Evaluation evaluation;
  evaluation.samples_per_prompt =
      config.get<std::int64_t>("actor_rollout_ref.rollout.val_kwargs.n");
  runtime::Executor executor;
  TROUPE_TRY(const std::vector<Batch> finished,
             executor.run(generate_and_score(*rollout, *reward, *model, prompts.all(),
                                             evaluation.samples_per_prompt,
                                             sampling_options(config, *model, true))));
  std::map<std::string, std::map<std::int64_t, PromptTally>> tallies;
  for (const Batch& batch : finished)
    tally(batch, model->tokenizer(), keep_samples, tallies, evaluation);
  for (const auto& [source, by_prompt] : tallies)
    evaluation.sources[source] = scores_of(by_prompt, evaluation.samples_per_prompt);
  return evaluation;
}

}  // namespace troupe::apps

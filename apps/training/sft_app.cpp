#include "apps/training/sft_app.hpp"

#include "actors/roles/batch_pack.hpp"
#include "actors/roles/engine_checkpoint.hpp"
#include "actors/roles/policy_worker.hpp"
#include "apps/training/run_lock.hpp"
#include "apps/training/run_state.hpp"
#include "apps/training/supervised_rows.hpp"
#include "apps/training/train_inputs.hpp"
#include "runtime/base/file.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "runtime/observe/progress.hpp"
#include "runtime/task/executor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

using actors::PolicyWorker;
using runtime::Batch;
using runtime::Checkpoint;
using runtime::Config;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

struct SftInputs {
  std::unique_ptr<ModelBundle> model;
  SupervisedRows train;
  std::optional<SupervisedRows> validation;
};

result<SftInputs> open_sft_inputs(const Config& config) {
  TROUPE_TRY_VOID(refuse_cluster(config, "sft"));
  const auto path = config.get<std::string>("actor_rollout_ref.model.path");
  if (path.empty()) return config.refuse("actor_rollout_ref.model.path", "names no model folder");
  const auto files = config.get<std::vector<std::string>>("sft.train_files");
  if (files.empty()) return config.refuse("sft.train_files", "names no file");
  SftInputs inputs;
  TROUPE_TRY(inputs.model, ModelBundle::open(path, model_options(config)));
  SupervisedOptions options;
  options.dataset = dataset_options(config, 0);
  options.tokens_max =
      std::min(config.get<std::int64_t>("sft.max_length"), inputs.model->config().positions_max);
  TROUPE_TRY(options.truncation,
             actors::truncation_from_name(config.get<std::string>("sft.truncation")));
  options.loss_on_prompt = config.get<bool>("sft.loss_on_prompt");
  TROUPE_TRY(inputs.train, SupervisedRows::load(files, *inputs.model, options));
  const auto held_out = config.get<std::vector<std::string>>("sft.val_files");
  if (!held_out.empty()) {
    TROUPE_TRY(inputs.validation, SupervisedRows::load(held_out, *inputs.model, options));
  }
  const std::int64_t longest =
      std::max(inputs.train.longest(), inputs.validation ? inputs.validation->longest() : 0);
  if (config.get<std::int64_t>("sft.max_token_len_per_gpu") < longest)
    return config.refuse("sft.max_token_len_per_gpu", "is below the longest row, {} tokens",
                         longest);
  return inputs;
}

class FineTuner {
 public:
  FineTuner(const Config& config, const SftInputs& inputs, const std::atomic<bool>* stop)
      : config_(config),
        inputs_(inputs),
        folder_(run_folder(config)),
        rows_(config.get<std::int64_t>("sft.train_batch_size")),
        stop_(stop),
        progress_(stderr, runtime::ProgressLine::options_for(stderr), clock_) {
    const std::int64_t by_epochs = config.get<std::int64_t>("sft.total_epochs") * steps_per_epoch();
    steps_total_ =
        config.get_optional<std::int64_t>("sft.total_training_steps").value_or(by_epochs);
  }

  result<SftSummary> run();

 private:
  std::int64_t steps_per_epoch() const { return (inputs_.train.size() + rows_ - 1) / rows_; }
  std::vector<std::int64_t> order(std::int64_t epoch) const;
  bool due(const char* key) const;
  /// Looked at once a step, so that a run never stops without the checkpoint of its last step.
  bool stop_requested() const { return stop_ != nullptr && stop_->load(); }
  task<void> main(std::optional<Checkpoint> checkpoint);
  task<void> one_step();
  task<void> validate(Metrics& metrics);
  task<void> save();
  task<void> export_model();

  const Config& config_;
  const SftInputs& inputs_;
  const std::filesystem::path folder_;
  const std::int64_t rows_;
  const std::atomic<bool>* stop_;
  std::int64_t steps_total_ = 0;
  SteadyClock clock_;
  runtime::ProgressLine progress_;
  std::optional<runtime::CheckpointWriter> saving_;
  runtime::ActorSystem system_;  // outlives the group
  std::optional<runtime::WorkerGroup<PolicyWorker>> group_;
  std::optional<runtime::MetricsWriter> writer_;
  RunState state_;
  bool stopping_ = false;
  SftSummary summary_;
};

std::vector<std::int64_t> FineTuner::order(std::int64_t epoch) const {
  if (config_.get<bool>("sft.shuffle"))
    return actors::epoch_order(inputs_.train.size(), state_.cursor.seed, epoch);
  std::vector<std::int64_t> in_file(static_cast<std::size_t>(inputs_.train.size()));
  std::iota(in_file.begin(), in_file.end(), 0);
  return in_file;
}

bool FineTuner::due(const char* key) const {
  const auto every = config_.get<std::int64_t>(key);
  return state_.step == steps_total_ || (every > 0 && state_.step % every == 0);
}

task<void> FineTuner::validate(Metrics& metrics) {
  if (!inputs_.validation) co_return;
  std::vector<std::int64_t> all(static_cast<std::size_t>(inputs_.validation->size()));
  std::iota(all.begin(), all.end(), 0);
  Batch batch = inputs_.validation->batch(all, 0, inputs_.validation->size());
  const Metrics found = co_await group_->call<&PolicyWorker::sft_loss>(std::move(batch));
  summary_.validation_loss = found.value("val/loss");
  value_or_throw(metrics.merge(found));
}

task<void> FineTuner::save() {
  value_or_throw(writer_->sync());
  saving_.emplace(value_or_throw(runtime::CheckpointWriter::begin(
      {.root = folder_,
       .step = state_.step,
       .keep = config_.get_optional<std::int64_t>("trainer.max_actor_ckpt_to_keep").value_or(0)})));
  co_await actors::save_role(*group_, "actor", *saving_);
  value_or_throw(saving_->add_state("trainer", state_.to_json()));
  const std::string yaml = config_.to_yaml();
  value_or_throw(saving_->add_blob("config.yaml", std::as_bytes(std::span(yaml))));
  value_or_throw(saving_->commit());
  saving_.reset();
}

task<void> FineTuner::export_model() {
  const actors::WeightSet weights =
      co_await actors::gather_weights(*group_, actors::expected_tensors(inputs_.model->config()));
  const auto wanted = config_.get_optional<std::string>("sft.output_dir");
  summary_.model = wanted ? std::filesystem::path(*wanted) : folder_ / "huggingface";
  value_or_throw(actors::save_hf_folder(summary_.model, inputs_.model->config(), weights.tensors(),
                                        {.tokenizer_folder = inputs_.model->tokenizer_folder()}));
}

task<void> FineTuner::one_step() {
  const std::int64_t epoch = state_.step / steps_per_epoch();
  const std::int64_t first = state_.step % steps_per_epoch() * rows_;
  Batch batch = inputs_.train.batch(order(epoch), first, rows_);
  const actors::RowOrder rows =
      value_or_throw(actors::balanced_order(batch, group_->mesh().data_parts()));
  batch = value_or_throw(batch.reorder(rows.order));
  const TimePoint begin = clock_.now();
  Metrics metrics = co_await group_->call<&PolicyWorker::update_sft>(std::move(batch));
  summary_.train_seconds += seconds(clock_.now() - begin);
  state_.step += 1;
  state_.cursor.epoch = state_.step / steps_per_epoch();
  summary_.last_loss = metrics.value("train/loss");
  if (!std::isfinite(summary_.last_loss.value_or(0)))
    throw runtime::Failure(Error{
        .code = ErrorCode::kAborted,
        .message = fmt::format("sft: the loss of step {} is {}", state_.step, *summary_.last_loss),
        .origin = {},
        .causes = {}});
  metrics.add("training/epoch", static_cast<double>(epoch), Reduction::kLast);
  metrics.add("timing_s/step", seconds(clock_.now() - begin), Reduction::kLast);
  if (due("sft.test_freq")) co_await validate(metrics);
  value_or_throw(writer_->write(state_.step, metrics));
  stopping_ = stop_requested();
  if (due("sft.save_freq") || stopping_) co_await save();
  if (!config_.get<bool>("trainer.progress")) co_return;
  runtime::ProgressReport line;
  line.label = "sft";
  line.step = state_.step;
  line.steps_total = steps_total_;
  line.loss = summary_.last_loss;
  progress_.update(line);
}

task<void> FineTuner::main(std::optional<Checkpoint> checkpoint) {
  state_.cursor.seed = data_seed(config_);
  state_.command = "sft";
  state_.data_rows = inputs_.train.size();
  if (checkpoint) {
    const std::string text = value_or_throw(checkpoint->state("trainer"));
    state_ = value_or_throw(RunState::from_json(text));
    value_or_throw(check_resumed(state_, "sft", inputs_.train.size(), *checkpoint));
    warn_of_changes(config_, *checkpoint);
    co_await actors::load_role(*group_, "actor", *checkpoint);
    progress_.say(
        fmt::format("resumed from {}, step {}", checkpoint->folder().string(), state_.step));
  }
  writer_.emplace(value_or_throw(
      runtime::MetricsWriter::open((folder_ / "metrics.jsonl").string(),
                                   checkpoint ? std::optional(state_.step) : std::nullopt)));
  value_or_throw(write_text_file((folder_ / "config.yaml").string(), config_.to_yaml()));
  stopping_ = stop_requested();
  while (state_.step < steps_total_ && !stopping_) co_await one_step();
  summary_.last_step = state_.step;
  summary_.stopped = state_.step < steps_total_;
  if (!summary_.stopped) co_await export_model();
}

result<SftSummary> FineTuner::run() {
  actors::TrainWorkerOptions worker;
  worker.model = inputs_.model->config();
  worker.weights = inputs_.model->weights().tensors();
  TROUPE_TRY(worker.engine, train_engine_options(config_, "sft", steps_total_));
  TROUPE_TRY(const RunLock lock, RunLock::take(folder_));
  TROUPE_TRY(auto checkpoint, checkpoint_to_resume(config_, folder_.string()));
  summary_.run_folder = folder_;
  runtime::GroupOptions options;
  options.name = "sft";
  options.call_deadline = call_timeout(config_);
  options.mesh = runtime::Mesh::data_parallel(config_.get<int>("trainer.n_gpus_per_node"));
  TROUPE_TRY(group_, runtime::WorkerGroup<PolicyWorker>::create(
                         system_, std::move(options), [&worker](runtime::WorkerContext& context) {
                           return PolicyWorker::create(context, worker);
                         }));
  runtime::Executor executor(&clock_);
  auto done = executor.run(main(std::move(checkpoint)));
  progress_.finish();
  if (!done) return fail(std::move(done).error());
  return summary_;
}

}  // namespace

result<SftSummary> fine_tune(const Config& config, const std::atomic<bool>* stop) {
  actors::gemm_self_test();
  TROUPE_TRY(const SftInputs inputs, open_sft_inputs(config));
  FineTuner tuner(config, inputs, stop);
  return tuner.run();
}

}  // namespace troupe::apps

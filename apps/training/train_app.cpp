#include "apps/training/train_app.hpp"

#include "actors/loops/synchronous.hpp"
#include "actors/loops/validation.hpp"
#include "actors/train/train_engine.hpp"
#include "apps/training/cluster_run.hpp"
#include "apps/training/run_lock.hpp"
#include "apps/training/run_state.hpp"
#include "apps/training/trace_calls.hpp"
#include "apps/training/train_inputs.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/observe/idle_share.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "runtime/observe/progress.hpp"
#include "runtime/observe/report.hpp"
#include "runtime/task/executor.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

using actors::GroupWorld;
using actors::StepReport;
using runtime::Batch;
using runtime::Checkpoint;
using runtime::Config;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

class Trainer {
 public:
  Trainer(const Config& config, const TrainInputs& inputs, std::int64_t steps_total,
          actors::AdvantageStep advantage, const std::atomic<bool>* stop)
      : config_(config),
        inputs_(inputs),
        steps_total_(steps_total),
        folder_(run_folder(config)),
        advantage_(std::move(advantage)),
        stop_(stop),
        calls_(trace_),
        progress_(stderr, runtime::ProgressLine::options_for(stderr), clock_) {}

  /// `earlier`: what a run had reached that a rank's death ended; this one goes on from its newest
  /// checkpoint.
  result<TrainSummary> run(const TrainingRegistries& registries,
                           const actors::WorldOptions& options, const TrainSummary* earlier);

  /// What was reached, also by a run that failed.
  const TrainSummary& summary() const { return summary_; }
  /// True when the run ended because a rank died: another one may go on where it stopped.
  bool lost_ranks() const { return lost_ranks_; }

 private:
  result<std::unique_ptr<actors::WorldPlace>> make_place(const TrainingRegistries& registries,
                                                         const actors::WorldOptions& options);
  result<std::optional<Checkpoint>> checkpoint_of(const TrainSummary* earlier) const;
  void write_outputs();
  task<void> main(std::optional<Checkpoint> checkpoint);
  task<void> resume(const Checkpoint& checkpoint);
  task<void> one_step();
  task<void> validate(Metrics& metrics);
  task<void> save();
  task<void> export_model();
  void report(const StepReport& report);
  bool due(const char* key) const;
  /// Looked at once a step, so that a run never stops without the checkpoint of its last step.
  bool stop_requested() const { return (stop_ != nullptr && stop_->load()) || told_to_stop_; }
  std::filesystem::path file(const char* name) const {
    return std::filesystem::path(folder_) / name;
  }

  const Config& config_;
  const TrainInputs& inputs_;
  const std::int64_t steps_total_;
  const std::string folder_;
  actors::AdvantageStep advantage_;
  const std::atomic<bool>* stop_;
  SteadyClock clock_;
  runtime::Trace trace_;
  TraceCalls calls_;
  runtime::ProgressLine progress_;
  runtime::PullMeter meter_;
  std::optional<runtime::CheckpointWriter> saving_;
  std::atomic<bool> told_to_stop_{false};  // by `troupe stop`; outlives the session that sets it
  runtime::ActorSystem system_;            // outlives the world
  std::unique_ptr<ClusterRun> cluster_;    // null: ranks are threads; outlives the world
  std::unique_ptr<GroupWorld> world_;
  std::optional<actors::Cast<GroupWorld>> cast_;
  std::optional<runtime::MetricsWriter> writer_;
  RunState state_;
  bool stopping_ = false;
  bool lost_ranks_ = false;
  TrainSummary summary_;
};

bool Trainer::due(const char* key) const {
  const auto every = config_.get<std::int64_t>(key);
  return state_.step == steps_total_ || (every > 0 && state_.step % every == 0);
}

task<void> Trainer::resume(const Checkpoint& checkpoint) {
  const std::string text = value_or_throw(checkpoint.state("trainer"));
  state_ = value_or_throw(RunState::from_json(text));
  value_or_throw(check_resumed(state_, "train", inputs_.train->rows(), checkpoint));
  warn_of_changes(config_, checkpoint);
  co_await world_->load(checkpoint);
  actors::KlController controller = advantage_.kl_controller();
  controller.beta = state_.kl_coefficient;
  advantage_.set_kl_controller(controller);
  world_->weights().set_version(state_.weight_version);
  world_->policy().set_updates(state_.actor_updates);
  if (world_->critic() != nullptr) world_->critic()->set_updates(state_.critic_updates);
  progress_.say(fmt::format("resumed from {}, step {}", checkpoint.folder().string(), state_.step));
}

task<void> Trainer::validate(Metrics& metrics) {
  if (!inputs_.validation) co_return;
  const TimePoint begin = clock_.now();
  const auto samples = config_.get<std::int64_t>("actor_rollout_ref.rollout.val_kwargs.n");
  Metrics found = co_await actors::validate<GroupWorld>(
      world_->rollout(), world_->reward(), inputs_.validation->all(), samples,
      sampling_options(config_, *inputs_.policy, true));
  std::map<std::string, double> values;
  for (const auto& [name, entry] : found) values[name] = entry.value().value_or(0);
  if (summary_.first_validation.empty()) summary_.first_validation = values;
  summary_.last_validation = std::move(values);
  value_or_throw(metrics.merge(found));
  metrics.add("timing_s/testing", seconds(clock_.now() - begin), Reduction::kSum);
}

task<void> Trainer::save() {
  const runtime::ScopedSpan span(&trace_, {"controller", "controller"}, "save_checkpoint", "io",
                                 state_.step);
  value_or_throw(writer_->sync());
  saving_.emplace(value_or_throw(runtime::CheckpointWriter::begin(
      {.root = folder_,
       .step = state_.step,
       .keep = config_.get_optional<std::int64_t>("trainer.max_actor_ckpt_to_keep").value_or(0)})));
  co_await world_->save(*saving_);
  value_or_throw(saving_->add_state("trainer", state_.to_json()));
  const std::string yaml = config_.to_yaml();
  value_or_throw(saving_->add_blob("config.yaml", std::as_bytes(std::span(yaml))));
  summary_.checkpoint = value_or_throw(saving_->commit());
  saving_.reset();
}

task<void> Trainer::export_model() {
  const actors::WeightSet weights = co_await world_->policy_weights();
  summary_.model = file("huggingface");
  value_or_throw(actors::save_hf_folder(summary_.model, inputs_.policy->config(), weights.tensors(),
                                        {.tokenizer_folder = inputs_.policy->tokenizer_folder()}));
}

void Trainer::report(const StepReport& report) {
  value_or_throw(writer_->write(report.step, report.metrics));
  if (!config_.get<bool>("trainer.progress")) return;
  runtime::ProgressReport line;
  line.step = report.step;
  line.steps_total = steps_total_;
  line.reward = report.metrics.value("critic/score/mean");
  line.response_length = report.metrics.value("response_length/mean");
  line.tokens_per_second = report.metrics.value("perf/throughput");
  for (const auto& [name, entry] : report.metrics) {
    if (name.starts_with("val-core/") && name.find("/acc/mean@") != std::string::npos)
      line.note = fmt::format("val {:.3f}", entry.value().value_or(0));
  }
  progress_.update(line);
}

task<void> Trainer::one_step() {
  const std::int64_t step = state_.step + 1;
  calls_.set_step(step);
  const TimePoint begin = clock_.now();
  const std::int64_t bytes_before = meter_.bytes();
  actors::PromptLoader::Step prompts = value_or_throw(inputs_.train->next(state_.cursor));
  const std::int64_t epoch = state_.cursor.epoch;
  StepReport report = co_await actors::synchronous_step(*cast_, prompts.batch, step);
  const double taken = seconds(clock_.now() - begin);
  summary_.train_seconds += taken;

  state_.step = step;
  state_.cursor = prompts.next;
  state_.kl_coefficient = advantage_.kl_controller().beta;
  state_.weight_version = world_->weights().version();
  state_.actor_updates = world_->policy().updates();
  if (world_->critic() != nullptr) state_.critic_updates = world_->critic()->updates();

  Metrics& metrics = report.metrics;
  if (metrics.value("actor/step_skipped").value_or(0) > 0)
    log::warn("step {}: the policy's gradient was not finite, the update was skipped", step);
  const double devices = run_devices(config_);
  const double rows = static_cast<double>(prompts.batch.rows() * cast_->group_size);
  metrics.add("training/global_step", static_cast<double>(step), Reduction::kLast);
  metrics.add("training/epoch", static_cast<double>(epoch), Reduction::kLast);
  metrics.add("training/restarts", static_cast<double>(summary_.restarts), Reduction::kLast);
  metrics.add("perf/time_per_step", taken, Reduction::kLast);
  metrics.add("perf/throughput",
              metrics.value("perf/total_num_tokens").value_or(0) / (taken * devices),
              Reduction::kLast);
  metrics.add("perf/controller_bytes_per_row",
              static_cast<double>(meter_.bytes() - bytes_before) / rows, Reduction::kLast);
  const auto idle = runtime::idle_share(calls_.take_spans(), begin, clock_.now());
  metrics.add("perf/rank_idle_share", idle.mean, Reduction::kLast);
  if (due("trainer.test_freq")) co_await validate(metrics);
  this->report(report);  // before the checkpoint: a resumed run keeps the rows up to its step
  stopping_ = stop_requested();
  if (due("trainer.save_freq") || stopping_) co_await save();
}

task<void> Trainer::main(std::optional<Checkpoint> checkpoint) {
  if (checkpoint) {
    co_await resume(*checkpoint);
  } else {
    state_.cursor.seed = data_seed(config_);
    state_.kl_coefficient = advantage_.kl_controller().beta;
    state_.command = "train";
    state_.data_rows = inputs_.train->rows();
  }
  const std::optional<std::int64_t> resumed =
      checkpoint ? std::optional(state_.step) : std::nullopt;
  writer_.emplace(
      value_or_throw(runtime::MetricsWriter::open(file("metrics.jsonl").string(), resumed)));
  value_or_throw(write_text_file(file("config.yaml").string(), config_.to_yaml()));
  if (summary_.restarts == 0) summary_.first_step = state_.step + 1;
  co_await world_->weights().publish_present();
  const bool only = config_.get<bool>("trainer.val_only");
  if (only || (!checkpoint && config_.get<bool>("trainer.val_before_train"))) {
    StepReport first{.step = 0, .metrics = {}};
    calls_.set_step(0);
    co_await validate(first.metrics);
    if (!checkpoint) this->report(first);  // a resumed run's file has this row already
  }
  stopping_ = stop_requested();
  while (!only && state_.step < steps_total_ && !stopping_) co_await one_step();
  summary_.last_step = state_.step;
  summary_.stopped = !only && state_.step < steps_total_;
  if (!only && !summary_.stopped) co_await export_model();
}

result<std::optional<Checkpoint>> Trainer::checkpoint_of(const TrainSummary* earlier) const {
  if (earlier == nullptr) return checkpoint_to_resume(config_, folder_);
  TROUPE_TRY(auto newest, Checkpoint::latest(folder_));
  // None yet: from where the run began.
  return newest ? std::move(newest) : checkpoint_to_resume(config_, folder_);
}

result<std::unique_ptr<actors::WorldPlace>> Trainer::make_place(
    const TrainingRegistries& registries, const actors::WorldOptions& options) {
  if (!wants_cluster(config_)) {
    return actors::make_local_place(system_, options, inputs_.policy->tokenizer(),
                                    registries.rewards);
  }
  ClusterRunOptions run;
  run.name = config_.get<std::string>("trainer.experiment_name");
  run.rank_command = registries.rank_command;
  run.on_stop = [this](const std::string& reason) {
    log::warn("told to stop after this step: {}", reason);
    told_to_stop_ = true;
  };
  TROUPE_TRY(cluster_, ClusterRun::open(system_, config_, std::move(run)));
  log::info("devices of the run:\n{}", cluster_->describe());
  return cluster_->place(options);
}

void Trainer::write_outputs() {
  if (config_.get<bool>("trainer.trace")) {
    if (cluster_) cluster_->record_turns(trace_);
    auto written = trace_.write(file("trace.json").string());
    if (!written) log::warn("{}", written.error().to_string());
  }
  if (!writer_) return;
  auto written = runtime::write_report({.metrics = file("metrics.jsonl").string(),
                                        .trace = file("trace.json").string(),
                                        .config = file("config.yaml").string(),
                                        .output = file("report.html").string(),
                                        .title = "Troupe run " + folder_});
  if (!written) log::warn("{}", written.error().to_string());
}

result<TrainSummary> Trainer::run(const TrainingRegistries& registries,
                                  const actors::WorldOptions& options,
                                  const TrainSummary* earlier) {
  TROUPE_TRY(const RunLock lock, RunLock::take(folder_));
  TROUPE_TRY(auto checkpoint, checkpoint_of(earlier));
  if (earlier != nullptr) {
    summary_ = *earlier;
    ++summary_.restarts;
  }
  summary_.run_folder = folder_;
  if (checkpoint) summary_.checkpoint = checkpoint->folder();

  actors::WorldOptions traced = options;
  traced.trace = &calls_;
  TROUPE_TRY(auto place, make_place(registries, traced));
  auto world = GroupWorld::create(std::move(place), traced);
  if (!world) {
    lost_ranks_ = world.error().root_cause().code == ErrorCode::kRankDead;
    return fail(std::move(world).error());
  }
  world_ = std::move(*world);
  cast_.emplace(actors::Cast<GroupWorld>{
      .world = *world_,
      .rollout = world_->rollout(),
      .reward = world_->reward(),
      .policy = world_->policy(),
      .reference = world_->reference(),
      .critic = world_->critic(),
      .weights = world_->weights(),
      .advantage = advantage_,
      .sampling = sampling_options(config_, *inputs_.policy, false),
      .group_size = config_.get<std::int64_t>("actor_rollout_ref.rollout.n"),
      .critic_warmup_steps = config_.get<std::int64_t>("trainer.critic_warmup"),
      .meter = &meter_});
  runtime::Executor executor(&clock_);
  auto done = executor.run(main(std::move(checkpoint)));
  progress_.finish();
  lost_ranks_ = !done && world_->dead_cause().has_value();
  write_outputs();
  if (!done) return fail(std::move(done).error());
  return summary_;
}

}  // namespace

result<TrainSummary> train(const Config& config, const TrainingRegistries& registries,
                           const std::atomic<bool>* stop) {
  actors::gemm_self_test();
  TROUPE_TRY(const TrainInputs inputs, open_inputs(config, registries));
  const std::int64_t steps = total_steps(config, *inputs.train);
  TROUPE_TRY(const auto options, world_options(config, inputs, registries, steps));
  TROUPE_TRY(const auto advantage, advantage_step_options(config, registries.advantages));
  const auto restarts_max = config.get<std::int64_t>("trainer.restarts_max");
  TrainSummary reached;
  for (std::int64_t restarts = 0;; ++restarts) {
    Trainer trainer(config, inputs, steps, actors::AdvantageStep(advantage), stop);
    auto done = trainer.run(registries, options, restarts == 0 ? nullptr : &reached);
    const bool again = !done && trainer.lost_ranks() && restarts < restarts_max &&
                       (stop == nullptr || !stop->load());
    if (!again) return done;
    reached = trainer.summary();
    log::warn("restarting ({} of {}) from the newest checkpoint: {}", restarts + 1, restarts_max,
              done.error().to_string());
  }
}

}  // namespace troupe::apps

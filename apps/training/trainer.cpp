#include "apps/training/trainer.hpp"

#include "actors/loops/validation.hpp"
#include "actors/roles/engine_checkpoint.hpp"
#include "actors/roles/group_weights.hpp"
#include "apps/training/async_keys.hpp"
#include "apps/training/config_seconds.hpp"
#include "apps/training/correction_keys.hpp"
#include "apps/training/run_lock.hpp"
#include "apps/training/service_keys.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/observe/idle_share.hpp"
#include "runtime/observe/report.hpp"
#include "runtime/task/executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::apps {

using actors::GroupWorld;
using actors::StepReport;
using runtime::Checkpoint;
using runtime::Config;
using runtime::Metrics;
using runtime::Reduction;
using runtime::task;
using runtime::value_or_throw;

namespace {

/// True when `error` or a cause of it says that a rank is dead.
bool says_rank_dead(const Error& error) {
  return error.code == ErrorCode::kRankDead ||
         std::any_of(error.causes.begin(), error.causes.end(), says_rank_dead);
}

}  // namespace

Trainer::Trainer(const Config& config, const TrainInputs& inputs, std::int64_t steps_total,
                 actors::AdvantageStep advantage, const std::atomic<bool>* stop)
    : config_(config),
      inputs_(inputs),
      steps_total_(steps_total),
      folder_(run_folder(config)),
      advantage_(std::move(advantage)),
      stop_(stop),
      calls_(trace_),
      progress_(stderr, runtime::ProgressLine::options_for(stderr), clock_) {}

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
  // Beside training, versions count trained steps; the synchronous loop skips critic warm-up.
  world_->weights().set_version(uses_service(config_) ? WeightVersion{state_.step}
                                                      : state_.weight_version);
  world_->policy().set_updates(state_.actor_updates);
  if (world_->critic() != nullptr) world_->critic()->set_updates(state_.critic_updates);
  loop_->begin(state_.cursor, state_.step);
  loop_->load(checkpoint);
  progress_.say(fmt::format("resumed from {}, step {}", checkpoint.folder().string(), state_.step));
}

void Trainer::keep_validation(std::map<std::string, double> values) {
  if (summary_.first_validation.empty()) summary_.first_validation = values;
  summary_.last_validation = std::move(values);
}

/// Seconds since the run's first step, those before it was resumed included.
double Trainer::wall() const { return wall_before_ + seconds(clock_.now() - began_); }

/// How long evaluations are waited for, at the end; a run that was told to stop does not.
TimePoint Trainer::evaluation_until() const {
  return clock_.now() +
         (stopping_ ? Duration::zero() : seconds_of(config_, "trainer.evaluation_wait_s"));
}

/// Held-out score of the weights as they are: on replicas of its own in the background, else now.
task<void> Trainer::judge(Metrics& metrics) {
  if (!lane_) {
    co_await validate(metrics);
    co_return;
  }
  const bool last = state_.step == steps_total_;
  if (last) {  // the end of the run is judged, whatever still runs
    co_await lane_->finish(evaluation_until());
  }
  value_or_throw(metrics.merge(co_await lane_->begin(state_.step, wall())));
}

task<void> Trainer::validate(Metrics& metrics) {
  if (!inputs_.validation) co_return;
  const TimePoint begin = clock_.now();
  const auto samples = config_.get<std::int64_t>("actor_rollout_ref.rollout.val_kwargs.n");
  Metrics found = co_await actors::validate<GroupWorld>(
      world_->rollout(), world_->reward(), inputs_.validation->all(), samples,
      sampling_options(config_, *inputs_.policy, true), nullptr, world_->environment());
  keep_validation(values_of(found));
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
  co_await loop_->save(*saving_);
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
  const std::int64_t epoch = state_.cursor.epoch;
  std::optional<StepReport> report = co_await loop_->step(step);
  if (!report && loop_->interrupted()) {
    stopping_ = true;
    co_await loop_->drain();
    co_await save();
    co_return;
  }
  if (!report) {
    log::warn("the data ended after step {} of {}", state_.step, steps_total_);
    data_ended_ = true;
    co_return;
  }
  remember(step);
  measure(report->metrics, epoch, begin, bytes_before);
  if (due("trainer.test_freq")) co_await judge(report->metrics);
  this->report(*report);  // before the checkpoint: a resumed run keeps the rows up to its step
  stopping_ = stop_requested();
  if (stopping_) co_await loop_->drain();
  if (due("trainer.save_freq") || stopping_) co_await save();
}

/// What the step has changed and a checkpoint must hold.
void Trainer::remember(std::int64_t step) {
  state_.step = step;
  state_.cursor = loop_->cursor();
  state_.kl_coefficient = advantage_.kl_controller().beta;
  state_.weight_version = world_->weights().version();
  state_.actor_updates = world_->policy().updates();
  if (world_->critic() != nullptr) state_.critic_updates = world_->critic()->updates();
}

void Trainer::measure(Metrics& metrics, std::int64_t epoch, TimePoint begin,
                      std::int64_t bytes_before) {
  const double taken = seconds(clock_.now() - begin);
  summary_.train_seconds += taken;
  if (metrics.value("actor/step_skipped").value_or(0) > 0)
    log::warn("step {}: the policy's gradient was not finite, the update was skipped", state_.step);
  const auto rows =
      static_cast<double>(config_.get<std::int64_t>("data.train_batch_size") * cast_->group_size);
  metrics.add("training/global_step", static_cast<double>(state_.step), Reduction::kLast);
  metrics.add("training/epoch", static_cast<double>(epoch), Reduction::kLast);
  metrics.add("training/restarts", static_cast<double>(summary_.restarts), Reduction::kLast);
  metrics.add("perf/time_per_step", taken, Reduction::kLast);
  metrics.add("perf/wall_s", wall(), Reduction::kLast);
  metrics.add("perf/throughput",
              metrics.value("perf/total_num_tokens").value_or(0) / (taken * all_devices(config_)),
              Reduction::kLast);
  metrics.add("perf/controller_bytes_per_row",
              static_cast<double>(meter_.bytes() - bytes_before) / rows, Reduction::kLast);
  const auto idle = runtime::idle_share(calls_.take_spans(), begin, clock_.now());
  metrics.add("perf/rank_idle_share", idle.mean, Reduction::kLast);
}

result<void> Trainer::open_files(bool resumed) {
  const std::optional<std::int64_t> step = resumed ? std::optional(state_.step) : std::nullopt;
  const std::string metrics = file("metrics.jsonl").string();
  TROUPE_TRY(auto writer, runtime::MetricsWriter::open(metrics, step));
  writer_.emplace(std::move(writer));
  if (resumed) {
    TROUPE_TRY(const auto rows, runtime::read_metrics(metrics));
    if (!rows.empty()) {
      const auto found = rows.back().values.find("perf/wall_s");
      if (found != rows.back().values.end()) wall_before_ = found->second;
    }
  }
  if (world_->evaluator() != nullptr && inputs_.validation) {
    TROUPE_TRY(lane_, EvaluationLane::open(
                          *world_->evaluator(), world_->reward(), clock_,
                          {.file = file(kEvaluationsFile),
                           .batches = inputs_.validation->all(),
                           .samples_per_prompt =
                               config_.get<std::int64_t>("actor_rollout_ref.rollout.val_kwargs.n"),
                           .sampling = sampling_options(config_, *inputs_.policy, true),
                           .environment = world_->environment()},
                          step, [this](const EvaluationLane::Values& values) {
                            keep_validation(values);
                          }));
  }
  return write_text_file(file("config.yaml").string(), config_.to_yaml());
}

/// A new run, or one that goes on from `checkpoint`; opens the files of the run folder.
task<void> Trainer::begin(const std::optional<Checkpoint>& checkpoint) {
  if (checkpoint) {
    co_await resume(*checkpoint);
  } else {
    state_.cursor.seed = data_seed(config_);
    state_.kl_coefficient = advantage_.kl_controller().beta;
    state_.command = "train";
    state_.data_rows = inputs_.train->rows();
    loop_->begin(state_.cursor, 0);
  }
  value_or_throw(open_files(checkpoint.has_value()));
  if (summary_.restarts == 0) summary_.first_step = state_.step + 1;
}

task<void> Trainer::main(std::optional<Checkpoint> checkpoint) {
  co_await begin(checkpoint);
  co_await world_->weights().publish_present();
  const bool only = config_.get<bool>("trainer.val_only");
  if (only || (!checkpoint && config_.get<bool>("trainer.val_before_train"))) {
    StepReport first{.step = 0, .metrics = {}};
    calls_.set_step(0);
    began_ = clock_.now();
    co_await judge(first.metrics);
    if (!checkpoint) this->report(first);  // a resumed run's file has this row already
  }
  // An evaluation that the checkpointed run had begun and not ended.
  if (checkpoint && lane_ && due("trainer.test_freq"))
    co_await lane_->begin(state_.step, wall_before_);
  stopping_ = stop_requested();
  began_ = clock_.now();
  if (!only && state_.step < steps_total_ && !stopping_) {
    co_await loop_->start();
    while (state_.step < steps_total_ && !stopping_ && !data_ended_) co_await one_step();
    co_await loop_->stop();
  }
  summary_.stopped = !only && !data_ended_ && state_.step < steps_total_;
  co_await end();
  summary_.last_step = state_.step;
  if (!only && !summary_.stopped) co_await export_model();
}

/// What is due and not there yet: the checkpoint of a run whose data ended early, evaluations.
task<void> Trainer::end() {
  if (data_ended_ && !due("trainer.save_freq")) co_await save();
  if (!lane_) co_return;
  const TimePoint until = evaluation_until();
  if (data_ended_) {
    co_await lane_->finish(until);
    co_await lane_->begin(state_.step, wall());
  }
  co_await lane_->finish(until);
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
                                    registries.rewards, registries.environments);
  }
  ClusterRunOptions run;
  run.name = config_.get<std::string>("trainer.experiment_name");
  run.rank_command = registries.rank_command;
  run.on_stop = [this](const std::string& reason) {
    log::warn("told to stop: {}", reason);
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
                                        .evaluations = file(kEvaluationsFile).string(),
                                        .trace = file("trace.json").string(),
                                        .config = file("config.yaml").string(),
                                        .output = file("report.html").string(),
                                        .title = "Troupe run " + folder_});
  if (!written) log::warn("{}", written.error().to_string());
}

std::unique_ptr<TrainLoop> Trainer::make_loop() {
  if (!uses_service(config_)) return make_sync_loop(*cast_, *inputs_.train);
  // Samples in turns, one step after the other: the service without any lead.
  StreamingLoopOptions options{.mode = streams(config_) ? loop_mode(config_) : LoopMode::kAsync,
                               .service = service_options(config_, steps_total_, cast_->sampling),
                               .groups_per_part = groups_per_part(config_),
                               .epochs = {}};
  options.service.stop = [this] { return stop_requested(); };
  if (config_.is_null("trainer.total_training_steps"))
    options.epochs = config_.get<std::int64_t>("trainer.total_epochs");
  return make_streaming_loop(*cast_, *inputs_.train, std::move(options));
}

void Trainer::make_cast() {
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
      .meter = &meter_,
      .correction = &*correction_});
  cast_->streaming = world_->streaming();
  cast_->environment = world_->environment();
  loop_ = make_loop();
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
  if (!world) return fail(std::move(world).error());
  world_ = std::move(*world);
  TROUPE_TRY(auto correction, correction_step_options(config_));
  TROUPE_TRY(const std::string corrects, describe_correction(config_));
  log::info("{}", corrects);
  correction_.emplace(std::move(correction));
  make_cast();
  runtime::Executor executor(&clock_);
  auto done = executor.run(main(std::move(checkpoint)));
  progress_.finish();
  write_outputs();
  if (!done) return fail(std::move(done).error());
  return summary_;
}

bool Trainer::lost_ranks(const Error& error) const {
  if (says_rank_dead(error)) return true;
  if (!world_ || !actors::may_be_of_a_death(error)) return false;
  // Who was left alone may say so before the report of the death is here.
  const TimePoint until = steady_now() + actors::kDeathReportWithin;
  while (!world_->dead_cause() && steady_now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return world_->dead_cause().has_value();
}

}  // namespace troupe::apps

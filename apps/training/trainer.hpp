#pragma once

// `Trainer`: one attempt at a run, from opening the world to the exported model.
//
// It drives whichever loop the configuration names, and does what all of them need: checkpoints
// and resuming, validation, metrics, trace, progress, stopping.
// **Ownership:** owns world and loop; borrows configuration and inputs.
// **Threads:** the calling thread is the controller.
// **Invariants:** one `run` an object; a row of metrics is written before the checkpoint of its
// step, so a resumed run keeps the rows up to where it goes on.

#include "actors/loops/cast.hpp"
#include "actors/roles/group_world.hpp"
#include "apps/training/cluster_run.hpp"
#include "apps/training/evaluation_lane.hpp"
#include "apps/training/run_state.hpp"
#include "apps/training/trace_calls.hpp"
#include "apps/training/train_app.hpp"
#include "apps/training/train_inputs.hpp"
#include "apps/training/train_loop.hpp"
#include "runtime/observe/metrics_writer.hpp"
#include "runtime/observe/progress.hpp"

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace troupe::apps {

class Trainer {
 public:
  Trainer(const runtime::Config& config, const TrainInputs& inputs, std::int64_t steps_total,
          actors::AdvantageStep advantage, const std::atomic<bool>* stop);

  /// `earlier`: what a run had reached that a rank's death ended; this one goes on from its newest
  /// checkpoint.
  result<TrainSummary> run(const TrainingRegistries& registries,
                           const actors::WorldOptions& options, const TrainSummary* earlier);

  /// What was reached, also by a run that failed.
  const TrainSummary& summary() const { return summary_; }
  /// True when `error`, which ended the run, came of a rank's death: another run may go on where it
  /// stopped. Blocks for seconds where the news of a death may be under way.
  bool lost_ranks(const Error& error) const;

 private:
  result<std::unique_ptr<actors::WorldPlace>> make_place(const TrainingRegistries& registries,
                                                         const actors::WorldOptions& options);
  result<std::optional<runtime::Checkpoint>> checkpoint_of(const TrainSummary* earlier) const;
  void make_cast();
  std::unique_ptr<TrainLoop> make_loop();
  void write_outputs();
  runtime::task<void> main(std::optional<runtime::Checkpoint> checkpoint);
  result<void> open_files(bool resumed);
  runtime::task<void> begin(const std::optional<runtime::Checkpoint>& checkpoint);
  runtime::task<void> resume(const runtime::Checkpoint& checkpoint);
  runtime::task<void> one_step();
  void remember(std::int64_t step);
  runtime::task<void> judge(runtime::Metrics& metrics);
  runtime::task<void> validate(runtime::Metrics& metrics);
  runtime::task<void> end();
  void keep_validation(std::map<std::string, double> values);
  double wall() const;
  TimePoint evaluation_until() const;
  runtime::task<void> save();
  runtime::task<void> export_model();
  void measure(runtime::Metrics& metrics, std::int64_t epoch, TimePoint begin,
               std::int64_t bytes_before);
  void report(const actors::StepReport& report);
  bool due(const char* key) const;
  /// Looked at once a step, and where a step beside rollout waits; a run never stops without a
  /// checkpoint of its last step.
  bool stop_requested() const { return (stop_ != nullptr && stop_->load()) || told_to_stop_; }
  std::filesystem::path file(const char* name) const {
    return std::filesystem::path(folder_) / name;
  }

  const runtime::Config& config_;
  const TrainInputs& inputs_;
  const std::int64_t steps_total_;
  const std::string folder_;
  actors::AdvantageStep advantage_;
  std::optional<actors::CorrectionStep> correction_;  // made before the cast
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
  std::unique_ptr<actors::GroupWorld> world_;
  std::optional<actors::Cast<actors::GroupWorld>> cast_;
  std::unique_ptr<TrainLoop> loop_;
  std::optional<runtime::MetricsWriter> writer_;
  std::unique_ptr<EvaluationLane> lane_;  // null: validation takes its turn between steps
  RunState state_;
  TimePoint began_{};       // of this process's first step
  double wall_before_ = 0;  // seconds that the run took before it was resumed
  bool stopping_ = false;
  bool data_ended_ = false;
  TrainSummary summary_;
};

}  // namespace troupe::apps

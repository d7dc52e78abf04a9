#pragma once

// `EvaluationLane`: validation on replicas of its own, of weights that do not move, while training
// goes on.
//
//   co_await lane.begin(step);     // brings the weights there; the rest runs in the background
//   co_await lane.finish(until);   // at the end of the run
//
// Results are rows of `evaluations.jsonl`, under the step whose weights were judged; reports join
// them with the rows of `metrics.jsonl`.
// **Ownership:** borrows evaluator, rewards and clock. Destroying it ends what runs.
// **Threads:** controller's thread, inside its executor.
// **Invariants:** one evaluation at a time; one that is due while another runs is left out with a
// warning, never waited for, but for the last of a run; an evaluation that fails is a warning.

#include "actors/data/prompt_loader.hpp"
#include "actors/loops/background.hpp"
#include "actors/loops/validation.hpp"
#include "actors/roles/group_world.hpp"
#include "runtime/observe/metrics_writer.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::apps {

inline constexpr const char* kEvaluationsFile = "evaluations.jsonl";

struct EvaluationLaneOptions {
  std::filesystem::path file;
  std::vector<runtime::Batch> batches;  ///< held-out prompts
  std::int64_t samples_per_prompt = 1;
  actors::SamplingOptions sampling;
  actors::GroupEnvironment* environment = nullptr;  ///< null: a sample is one turn
};

/// The value of each metric by its name; 0 of one that has none.
std::map<std::string, double> values_of(const runtime::Metrics& metrics);

class EvaluationLane {
 public:
  using Values = std::map<std::string, double>;
  /// `resumed`: rows of later steps are forgotten. `done` hears each result.
  static result<std::unique_ptr<EvaluationLane>> open(actors::GroupEvaluator& evaluator,
                                                      actors::GroupReward& reward,
                                                      const Clock& clock,
                                                      EvaluationLaneOptions options,
                                                      std::optional<std::int64_t> resumed,
                                                      std::function<void(const Values&)> done);

  /// Of the weights after `step`, which are the policy's now and `wall` seconds into the run. A
  /// step that has its row already is not judged again. Returns metrics of the transfer.
  runtime::task<runtime::Metrics> begin(std::int64_t step, double wall);
  /// Until what runs has ended. False: not by `until`; it is ended then.
  runtime::task<bool> finish(TimePoint until);
  bool busy() const { return running_.has_value(); }

 private:
  EvaluationLane(actors::GroupEvaluator& evaluator, actors::GroupReward& reward, const Clock& clock,
                 EvaluationLaneOptions options, runtime::MetricsWriter writer,
                 std::function<void(const Values&)> done)
      : evaluator_(evaluator),
        reward_(reward),
        clock_(clock),
        options_(std::move(options)),
        writer_(std::move(writer)),
        done_(std::move(done)) {}
  runtime::task<void> evaluate(std::int64_t step, double wall);

  actors::GroupEvaluator& evaluator_;
  actors::GroupReward& reward_;
  const Clock& clock_;
  const EvaluationLaneOptions options_;
  runtime::MetricsWriter writer_;
  std::function<void(const Values&)> done_;
  std::optional<std::int64_t> running_;  ///< step under judgement
  actors::Bell ended_;
  std::unique_ptr<actors::BackgroundTasks> background_;  // last: its task uses the rest
};

}  // namespace troupe::apps

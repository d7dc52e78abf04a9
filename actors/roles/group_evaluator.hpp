#pragma once

// The evaluator: a rollout group on devices of its own that serves one version of the weights
// until it is given another, so that evaluation never blocks training and does not see it.
//
//   co_await evaluator.publish();                     // the policy's weights as they are
//   co_await validate<W>(evaluator.rollout(), …);     // at leisure
//
// **Ownership:** borrows its group, the way of publications and the role that counts versions; the
// world owns them.
// **Threads:** controller's thread.
// **Invariants:** what it generates is of `version()`. When its group dies an evaluation under way
// fails; the next publication makes the group anew.

#include "actors/roles/group_rollout.hpp"
#include "actors/roles/group_weights.hpp"
#include "runtime/task/task.hpp"

namespace troupe::actors {

class GroupEvaluator {
 public:
  /// `way`: its replicas are the evaluator's one group. `weights` says what the policy's version
  /// is.
  GroupEvaluator(const PublicationWay& way, const GroupWeights& weights)
      : way_(way), weights_(weights), rollout_(way.replicas, std::nullopt) {}

  /// Brings the policy's weights here, in between two publications of the training loop. To be
  /// called when they are those of `weights().version()`: not while an update is under way.
  /// Metrics `evaluation/weight_version`, `timing_s/evaluation_weights`. Throws `Failure`.
  runtime::task<runtime::Metrics> publish();
  GroupRollout& rollout() { return rollout_; }
  runtime::task<runtime::Batch> generate(runtime::Batch prompts, SamplingOptions sampling);
  WeightVersion version() const { return version_; }
  /// Its one group, for who looks at it or ends it.
  RolloutReplicas& replicas() { return way_.replicas; }

 private:
  const PublicationWay way_;
  const GroupWeights& weights_;
  GroupRollout rollout_;
  WeightVersion version_{-1};  ///< none yet
};

}  // namespace troupe::actors

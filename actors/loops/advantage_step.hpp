#pragma once

// The step of a loop that runs on the controller: scores to token rewards to advantages.
//
// A step may come in parts: the KL coefficient is the same for all of them, and moves at the end.
// Reads only small columns (scores, groups, lengths; values and log-probs where the estimator or
// an in-reward KL needs them), and returns the new columns as a batch to merge.
// **Ownership:** owns the KL controller, whose coefficient is part of a checkpoint.
// **Threads:** controller's thread.
// **Invariants:** rows that `valid` marks as padding take part in nothing.

#include "actors/algorithm/advantage.hpp"
#include "actors/algorithm/kl.hpp"
#include "actors/algorithm/reward_shaping.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/column_ref.hpp"

#include <optional>
#include <utility>

namespace troupe::actors {

struct AdvantageStepOptions {
  AdvantageFunction estimator;
  AdvantageOptions options;
  bool kl_in_reward = false;
  KlKind kl_kind = {KlEstimator::kK1, false};
  KlController kl_controller;
  std::optional<OverlongOptions> overlong;  ///< DAPO's soft length penalty
  bool greedy_baseline = false;             ///< the estimator wants `baseline_scores` (remax)
  bool keep_returns = false;                ///< a critic will learn from them
};

class AdvantageStep {
 public:
  explicit AdvantageStep(AdvantageStepOptions options) : options_(std::move(options)) {}

  /// Columns in: responses (lengths only), response_mask, scores, group; optional values,
  /// old_log_probs + ref_log_prob, baseline_scores. Out: advantages, returns (when kept), with
  /// metrics `critic/{score,rewards,advantages,returns,values}/{mean,max,min}`,
  /// `critic/vf_explained_var`, group counts and `actor/reward_kl_penalty{,_coeff}`. Errors name
  /// the column, or what the estimator returned in the wrong number; `meter` counts bytes read.
  result<runtime::Batch> operator()(const runtime::Batch& batch,
                                    runtime::PullMeter* meter = nullptr);

  /// All of the step was seen: an adaptive coefficient moves by its mean KL.
  void end_step();
  /// What was seen of the step does not count.
  void abandon_step() { kl_seen_ = {}; }

  const AdvantageStepOptions& options() const { return options_; }
  const KlController& kl_controller() const { return options_.kl_controller; }
  void set_kl_controller(const KlController& controller) { options_.kl_controller = controller; }

 private:
  AdvantageStepOptions options_;
  WeightedSum kl_seen_;  ///< of the step's parts so far
};

}  // namespace troupe::actors

#pragma once

// The off-policy side of a loop's step on the controller: which log-probs are the behaviour
// policy's, where the proximal ones come from, and one weight per token for the loss.
//
//   begin → (old log-probs, reference, values, advantages) → weights → update → finish
//
// Weights are over all rows of the batch that is given: the whole step, or, where rows do not
// influence each other (`needs_whole_batch` false), the parts of a step that is trained as it
// arrives. Nothing is pulled unless weights can differ from 1.
// **Threads:** controller's thread.
// **Invariants:** behaviour policy = proximal policy gives weights of exactly 1; rows that `valid`
// marks as padding, and tokens outside `response_mask`, take part in nothing.

#include "actors/algorithm/processed_distribution.hpp"
#include "actors/algorithm/rollout_correction.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/column_ref.hpp"

#include <utility>

namespace troupe::actors {

struct CorrectionStepOptions {
  CorrectionOptions correction = {};
  /// What `rollout_log_probs` is during learning; with `kProcessed` it is taken from
  /// `rollout_processed_log_probs` where the batch has that.
  LogProbKind log_probs = LogProbKind::kFull;
  /// `correction` applies in the policy's loss (`corrected_loss`): no weights are computed here.
  bool in_loss = false;
};

class CorrectionStep {
 public:
  explicit CorrectionStep(CorrectionStepOptions options) : options_(std::move(options)) {}

  /// Before old log-probs are asked for. Sets `rollout_log_probs` to the kind that is wanted, and
  /// `old_log_probs` where the proximal policy's are not recomputed; then nobody need be asked.
  result<void> begin(runtime::Batch& batch) const;

  /// After the advantages. Columns in: responses (lengths), response_mask, old_log_probs,
  /// rollout_log_probs, and advantages where the options read them. Out: `rollout_weights` (f32,
  /// jagged), or no column where all are 1; metrics rollout_corr/{weight_mean, weight_squared,
  /// masked_fraction, masked_fraction/<reason>, weight_fraction_high, weight_fraction_low}.
  /// `meter` counts bytes read. Errors name the column.
  result<runtime::Batch> weights(const runtime::Batch& batch,
                                 runtime::PullMeter* meter = nullptr) const;

  /// The batch must be a whole step.
  bool needs_whole_batch() const { return options_.correction.needs_whole_batch(); }
  const CorrectionStepOptions& options() const { return options_; }

 private:
  bool computes_weights() const {
    return options_.correction.changes_weights() && !options_.in_loss;
  }

  CorrectionStepOptions options_;
};

/// Adds what no reduction gives, once, after the last merge of a step's metrics: shares and
/// percentiles of `finish_ratio_metrics`, and `sampling_logp_difference/{mean,max}`.
void finish_correction(runtime::Metrics& metrics);

}  // namespace troupe::actors

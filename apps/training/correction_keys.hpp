#pragma once

// Keys of off-policy correction, `algorithm.rollout_correction.*`: declaration, rules, reading.
//
// Names are verl's where the meaning is; `preset`, `proximal`, `opsm_delta`, `m2_threshold` and
// `log_probs` are ours. What each combination computes: docs/algorithms.md.
// **Threads:** pure functions.
// **Invariants:** a combination that would count a ratio twice, or have no effect, is a kConfig
// error that names its key and both values, before anything starts.

#include "actors/algorithm/policy_loss.hpp"
#include "actors/loops/correction_step.hpp"
#include "actors/roles/policy_worker.hpp"
#include "runtime/config/config.hpp"
#include "runtime/config/schema.hpp"

#include <string>
#include <vector>

namespace troupe::apps {

/// Losses that weigh by the ratio to the rollout policy themselves.
std::vector<std::string> rollout_ratio_losses();

/// Declares the keys and their rules.
void declare_correction(runtime::Schema& schema);

/// What the controller's side does in each step.
result<actors::CorrectionStepOptions> correction_step_options(const runtime::Config& config);

/// Adds to `settings`, whose loss and options are those of `actor.policy_loss`, what the keys say:
/// the preset's loss, importance weights, how log-probs are cut, and what applies in the loss.
result<void> apply_correction(const runtime::Config& config,
                              const actors::PolicyLossRegistry& losses,
                              actors::PolicyUpdateSettings& settings);

/// One line: what is corrected and how, for the start of a run.
result<std::string> describe_correction(const runtime::Config& config);

}  // namespace troupe::apps

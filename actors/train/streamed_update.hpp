#pragma once

// Which updates can be streamed: trained part by part while the rest of the step still generates.
//
// A streamed step adds up the gradients of its parts before its denominators are known, and divides
// once, at its end (TrainEngine::accumulate_policy, finish_step). So nothing that a part's gradient
// needs may depend on groups that are not there yet, and the weights may move once only.
// **Threads:** pure functions; plain values.
// **Invariants:** one error names everything that stands against it.

#include "actors/algorithm/policy_loss.hpp"
#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// What a run would do in one step.
struct StreamedUpdatePlan {
  std::int64_t step_rows = 0;       ///< samples of a step
  std::int64_t minibatch_rows = 0;  ///< samples per optimizer step, of policy and critic alike
  std::int64_t epochs = 1;          ///< the larger of both
  std::string advantage = {};       ///< the estimator's name
  /// For an estimator that a program added: does it read the sample's own group only. Known ones
  /// are judged by name.
  bool advantage_is_local = false;
  std::string loss = {};                  ///< the policy loss's name
  bool loss_selects = false;              ///< PolicyLoss::selects_tokens()
  bool adaptive_kl = false;               ///< a KL coefficient that follows the step's mean KL
  std::vector<std::string> batch_wide{};  ///< what else reads the whole step, by key or name
};

/// Whether this estimator of `default_advantages()` gives a sample an advantage that depends on its
/// own group alone: grpo, dr_grpo, grpo_passk, rloo, remax, opo. The others whiten or scale over
/// the batch.
bool advantage_is_group_local(std::string_view estimator);

/// kConfig naming every obstacle: several mini-batches or epochs in a step, advantages, losses or
/// coefficients that need the whole step.
result<void> check_streamed_update(const StreamedUpdatePlan& plan);

}  // namespace troupe::actors

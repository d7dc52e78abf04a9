#pragma once

// The whole loss of the policy, as one function: policy loss - c_H·entropy + c_KL·KL(π ‖ π_ref),
// with the gradients that the engine back-propagates.
//
// **Threads:** pure functions.
// **Invariants:** as for policy losses: any split of the mini-batch adds up to the whole.

#include "actors/algorithm/aggregation.hpp"
#include "actors/algorithm/kl.hpp"
#include "actors/algorithm/policy_loss.hpp"
#include "actors/algorithm/weighted_sums.hpp"
#include "runtime/base/result.hpp"

#include <span>
#include <vector>

namespace troupe::actors {

struct PolicyObjectiveOptions {
  PolicyLossOptions loss = {};
  double entropy_coefficient = 0;  ///< c_H
  double kl_coefficient = 0;       ///< c_KL; 0 leaves the KL out of the loss
  KlKind kl = {};                  ///< k3
};

struct PolicyObjectiveInput {
  PolicyLossInput loss;
  std::span<const float> entropy = {};              ///< [T] nats; required when c_H ≠ 0
  std::span<const float> reference_log_probs = {};  ///< [T]; required when c_KL ≠ 0
};

struct PolicyObjectiveOutput {
  double loss = 0;
  std::vector<float> log_prob_gradient;  ///< [T] d loss / d log_prob
  std::vector<float> entropy_gradient;   ///< [T] d loss / d entropy; empty when c_H = 0
  /// Those of the loss, and actor/loss, actor/entropy, actor/kl_loss where there is such input.
  WeightedSums metrics;
};

/// Entropy and KL are aggregated like the policy loss. Entropy and reference log-probs that are
/// given with a coefficient of 0 are reported and not differentiated.
result<PolicyObjectiveOutput> policy_objective(const PolicyLoss& loss,
                                               const PolicyObjectiveInput& input,
                                               const PolicyObjectiveOptions& options);

}  // namespace troupe::actors

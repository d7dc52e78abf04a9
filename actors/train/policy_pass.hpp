#pragma once

// The policy's loss over the micro-batches of a shard: what one update and a part of a streamed
// step have in common. Inside of TrainEngine.
//
// **Ownership:** borrows the shard and the update, which outlive the pass.
// **Threads:** as TrainEngine.

#include "actors/train/train_engine_impl.hpp"

namespace troupe::actors {

/// Sizes and numbers of an update. `own_proximal`: old log-probs may be missing.
result<void> check_policy_update(const PackedSequences& sequences, const PolicyUpdate& update,
                                 bool own_proximal = false);
result<void> check_value_update(const PackedSequences& sequences, const ValueUpdate& update);

/// The policy's per-token inputs of one micro-batch, packed like it.
struct PolicyPart {
  std::vector<float> old_log_probs;
  std::vector<float> advantages;
  std::vector<float> reference;
  std::vector<float> weights;
  std::vector<float> rollout;
  std::vector<float> alphas;
  std::vector<std::int64_t> sequence_ids;

  PolicyPart(const MicroBatch& batch, const PolicyUpdate& update);
  PolicyLossInput loss_input(const Shard& shard, std::size_t batch,
                             std::span<const float> log_probs,
                             const LossNormaliser& normaliser) const;
};

/// Gives each micro-batch its loss and gathers what there is to report.
class PolicyPass {
 public:
  PolicyPass(const Shard& shard, const PolicyUpdate& update,
             const PolicyObjectiveOptions& objective, const LossNormaliser& normaliser)
      : shard_(shard), update_(update), objective_(objective), normaliser_(normaliser) {}

  /// `selection`: of losses that select tokens; outlives the pass.
  void use(const TokenSelection& selection) { selection_ = &selection; }
  result<OutputGradient> loss(std::size_t batch, ModelValues values);

  WeightedSums sums;        ///< of the objective
  runtime::Metrics ratios;  ///< rollout_corr/…, where they are asked for

 private:
  const Shard& shard_;
  const PolicyUpdate& update_;
  const PolicyObjectiveOptions& objective_;
  LossNormaliser normaliser_;
  const TokenSelection* selection_ = nullptr;
};

/// The critic's loss of one micro-batch; adds to `sums`.
result<OutputGradient> value_batch_loss(const Shard& shard, const ValueUpdate& update,
                                        const LossNormaliser& normaliser, std::size_t batch,
                                        ModelValues values, WeightedSums& sums);

}  // namespace troupe::actors

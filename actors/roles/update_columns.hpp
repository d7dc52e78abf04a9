#pragma once

// From a batch's columns to what the train engine is given for a policy update.
//
// **Ownership:** `UpdateColumns` owns flat copies; the PolicyUpdate it gives points into them.
// **Threads:** pure functions.
// **Invariants:** per-token columns have, row by row, the length of `responses` (checked).

#include "actors/roles/batch_pack.hpp"
#include "actors/roles/policy_worker.hpp"
#include "actors/train/train_engine.hpp"
#include "runtime/batch/batch.hpp"

#include <cstdint>
#include <vector>

namespace troupe::actors {

struct UpdateColumns {
  PackedBatch packed;
  std::vector<std::uint8_t> mask;
  std::vector<float> old_log_probs;  ///< empty when the batch has none
  std::vector<float> advantages;
  std::vector<float> reference_log_probs;  ///< empty when the batch has none
  std::vector<float> rollout_weights;      ///< empty when the batch has none: all 1
  std::vector<float> rollout_log_probs;    ///< empty unless the settings read them
  std::vector<float> proximal_alphas;      ///< empty unless the settings interpolate
  std::vector<std::int64_t> sequence_ids;

  /// Of a resolved batch. Errors name the column, and the row where its length is wrong.
  static result<UpdateColumns> read(const runtime::Batch& local,
                                    const PolicyUpdateSettings& settings);
  /// Valid while this lives and does not move.
  PolicyUpdate update(PolicyLoss loss, const PolicyUpdateSettings& settings) const;
};

/// The loss of the settings, with the correction that applies inside it.
result<PolicyLoss> update_loss(const PolicyLossRegistry& losses,
                               const PolicyUpdateSettings& settings);

}  // namespace troupe::actors

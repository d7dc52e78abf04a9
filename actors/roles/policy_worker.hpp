#pragma once

// The trainer rank: a policy, or a frozen reference, over one train engine.
//
// **Ownership:** as TrainWorker; borrows the losses.
// **Threads:** the engine thread of its rank only.
// **Invariants:** every rank of the group gets the same calls; a rank may have no rows.

#include "actors/algorithm/objective.hpp"
#include "actors/roles/role_wire.hpp"
#include "actors/roles/train_worker.hpp"
#include "actors/roles/weight_handle.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

namespace troupe::actors {

/// How log-probs are asked for.
struct LogProbRequest {
  float temperature = 1.0F;
  std::string column;    ///< name of the resulting column
  bool compare = false;  ///< also report the distance to `rollout_log_probs`

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("temperature", &LogProbRequest::temperature),
                      field("column", &LogProbRequest::column),
                      field("compare", &LogProbRequest::compare)};
  }
};

/// What an update needs besides the columns; the same on all ranks.
struct PolicyUpdateSettings {
  std::string loss;                  ///< name in the registry that the rank was given
  PolicyObjectiveOptions objective;  ///< a KL coefficient ≠ 0 reads `ref_log_prob`
  float temperature = 1.0F;
  double loss_scale_factor = 0;

  static constexpr auto fields() {
    using runtime::field;
    using T = PolicyUpdateSettings;
    return std::tuple{field("loss", &T::loss), field("objective", &T::objective),
                      field("temperature", &T::temperature),
                      field("loss_scale_factor", &T::loss_scale_factor)};
  }
};

class PolicyWorker : public TrainWorker {
 public:
  static result<std::unique_ptr<PolicyWorker>> create(runtime::WorkerContext& context,
                                                      const TrainWorkerOptions& options);

  /// `prompts`, `responses` → the column named in the request, jagged f32; metrics
  /// `training/rollout_probs_diff_{mean,max}` and `training/rollout_log_probs_diff_max` when
  /// compared.
  result<runtime::Batch> log_probs(const runtime::Batch& batch, const LogProbRequest& request);

  /// One optimizer step on this rank's share of a mini-batch: `prompts`, `responses`,
  /// `response_mask`, `old_log_probs`, `advantages`, `sequence_id` (i64), and `ref_log_prob` where
  /// there is one. Metrics as in TrainEngine::update_policy.
  result<runtime::Metrics> update(const runtime::Batch& batch,
                                  const PolicyUpdateSettings& settings);

  /// One supervised step: token-mean cross-entropy of the responses.
  result<runtime::Metrics> update_sft(const runtime::Batch& batch);
  /// Mean cross-entropy over all ranks, without an update.
  result<runtime::Metrics> sft_loss(const runtime::Batch& batch);

  /// The tensors stay here; valid until the next update.
  result<WeightHandle> weights(WeightVersion version);

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&PolicyWorker::log_probs>("log_probs", args(scatter, broadcast), returns(concat))
            .phase("log_prob")
            .keep_columns(),
        method<&PolicyWorker::update>("update", args(scatter, broadcast), returns(reduce(kMerge)))
            .phase("train"),
        method<&PolicyWorker::update_sft>("update_sft", args(scatter), returns(reduce(kMerge)))
            .phase("train"),
        method<&PolicyWorker::sft_loss>("sft_loss", args(scatter), returns(first))
            .phase("log_prob"),
        method<&PolicyWorker::weights>("weights", args(broadcast), returns(all)),
        method<&PolicyWorker::weight_parts>("weight_parts", args(broadcast), returns(all)),
        method<&PolicyWorker::state>("state", args(broadcast), returns(all)),
        method<&PolicyWorker::load_state>("load_state", args(broadcast), returns(none))
            .phase("train")};
  }

 private:
  PolicyWorker(runtime::WorkerContext& context, std::shared_ptr<TrainEngine> engine,
               const PolicyLossRegistry* losses)
      : TrainWorker(context, std::move(engine)), losses_(losses) {}

  const PolicyLossRegistry* losses_;  // null: this rank updates nothing
};

}  // namespace troupe::actors

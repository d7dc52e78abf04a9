#pragma once

// The trainer rank: a policy, or a frozen reference, over one train engine.
//
// **Ownership:** owns its engine; borrows the collective of its group.
// **Threads:** the engine thread of its rank only.
// **Invariants:** every rank of the group gets the same calls; a rank may have no rows.

#include "actors/algorithm/objective.hpp"
#include "actors/algorithm/policy_loss.hpp"
#include "actors/model/model_config.hpp"
#include "actors/roles/engine_checkpoint.hpp"
#include "actors/roles/memory_entries.hpp"
#include "actors/roles/weight_handle.hpp"
#include "actors/train/train_engine.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/worker_context.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>

namespace troupe::actors {

struct TrainWorkerOptions {
  ModelConfig model;
  std::span<const NamedTensor> weights;  ///< initial weights; read during creation only
  TrainEngineOptions engine;
  runtime::DeviceMemory* memory = nullptr;  ///< ledger of the rank's device, if it has one
};

/// How log-probs are asked for.
struct LogProbRequest {
  float temperature = 1.0F;
  std::string column;    ///< name of the resulting column
  bool compare = false;  ///< also report the distance to `rollout_log_probs`
};

/// What an update needs besides the columns; the same on all ranks.
struct PolicyUpdateSettings {
  PolicyLoss loss;
  PolicyObjectiveOptions objective;  ///< a KL coefficient ≠ 0 reads `ref_log_prob`
  float temperature = 1.0F;
  double loss_scale_factor = 0;
};

class PolicyWorker {
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

  WeightHandle weights(WeightVersion version);
  /// Rank 0 writes (all ranks hold the same state); every rank reads.
  result<void> save(const CheckpointTarget& target) {
    return context_.rank() == RankId{0} ? save_engine(*engine_, target) : result<void>{};
  }
  result<void> load(const CheckpointSource& source) { return load_engine(*engine_, source); }

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
        method<&PolicyWorker::save>("save", args(broadcast), returns(none)),
        method<&PolicyWorker::load>("load", args(broadcast), returns(none)).phase("train")};
  }

 private:
  PolicyWorker(runtime::WorkerContext& context, std::unique_ptr<TrainEngine> engine)
      : context_(context), engine_(std::move(engine)) {}

  runtime::WorkerContext& context_;
  std::unique_ptr<TrainEngine> engine_;
  std::unique_ptr<MemoryEntries> entries_;  // after the engine that it points to
};

}  // namespace troupe::actors

#pragma once

// The rollout rank: one engine, driven by batches.
//
// **Ownership:** owns its engine; shares the tokenizer, which is immutable.
// **Threads:** the engine thread of its rank only.
// **Invariants:** row i of a result belongs to row i of the prompts; rows of one prompt that lie
// side by side share one prefill.

#include "actors/model/model_config.hpp"
#include "actors/roles/memory_entries.hpp"
#include "actors/roles/role_wire.hpp"
#include "actors/roles/weight_handle.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/worker_context.hpp"

#include <memory>
#include <tuple>
#include <utility>

namespace troupe::actors {

class RolloutWorker {
 public:
  struct Options {
    ModelConfig model;
    EngineOptions engine;
    runtime::MemoryBook* memory = nullptr;  ///< of the rank's device, if it has one
  };
  static result<std::unique_ptr<RolloutWorker>> create(runtime::WorkerContext& context,
                                                       const Options& options);

  /// Prompt columns (`prompts`, `prompt_ids`, `group`, `sample_index`) → `responses`,
  /// `response_mask`, `rollout_log_probs`, `weight_versions`, `stop_reason`, with metrics
  /// `rollout/*`. A sequence that fails (NaN logits) has mask 0, is counted
  /// and never trains; kAborted with the first cause when all of them fail.
  result<runtime::Batch> generate(const runtime::Batch& prompts, const SamplingOptions& sampling);

  /// Gets all tensors of a publication, then packs them: one that fails or comes too late never
  /// becomes active. The handle's rank must not update meanwhile.
  result<void> load_weights(const WeightHandle& weights);

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&RolloutWorker::generate>("generate", args(scatter, broadcast), returns(concat))
            .phase("rollout")
            .keep_columns(),
        method<&RolloutWorker::load_weights>("load_weights", args(per_rank), returns(none))
            .phase("publish")};
  }

 private:
  RolloutWorker(runtime::WorkerContext& context, std::unique_ptr<RolloutEngine> engine)
      : context_(context), engine_(std::move(engine)) {}

  runtime::WorkerContext& context_;
  std::unique_ptr<RolloutEngine> engine_;
  std::unique_ptr<MemoryEntries> entries_;  // after the engine that it points to
};

}  // namespace troupe::actors

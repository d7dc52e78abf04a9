#pragma once

// The rollout rank: one engine, driven by batches, or slice by slice.
//
// **Ownership:** owns its engine; shares the tokenizer, which is immutable.
// **Threads:** the engine thread of its rank only.
// **Invariants:** row i of a result belongs to row i of the prompts; rows of one prompt that lie
// side by side share one prefill. Between two slices everything else may happen, publications above
// all: samples under way go on afterwards.

#include "actors/model/model_config.hpp"
#include "actors/roles/axis_collective.hpp"
#include "actors/roles/engine_sink.hpp"
#include "actors/roles/memory_entries.hpp"
#include "actors/roles/publication_wire.hpp"
#include "actors/roles/role_wire.hpp"
#include "actors/roles/rollout_stream.hpp"
#include "actors/roles/simulated_delay.hpp"
#include "actors/roles/streaming_wire.hpp"
#include "actors/roles/weight_door.hpp"
#include "actors/roles/weight_handle.hpp"
#include "actors/rollout/rollout_engine.hpp"
#include "reshard/execution/publication_target.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/worker_context.hpp"

#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>

namespace troupe::actors {

/// What a rollout engine has room for.
struct RolloutCapacity {
  std::int64_t samples_max = 0;  ///< that run at once
  std::int64_t tokens_max = 0;   ///< of KV
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("samples_max", &RolloutCapacity::samples_max),
                      field("tokens_max", &RolloutCapacity::tokens_max)};
  }
};

class RolloutWorker {
 public:
  struct Options {
    ModelConfig model;
    EngineOptions engine;
    runtime::MemoryBook* memory = nullptr;  ///< of the rank's device, if it has one
    WeightSeat seat = {};
    SimulatedDelay delay = {};      ///< declared times of samples, in `advance` and `generate`
    WaitingClock* clock = nullptr;  ///< of slices and declared times; null: the machine's
  };
  static result<std::unique_ptr<RolloutWorker>> create(runtime::WorkerContext& context,
                                                       const Options& options);

  /// Prompt columns (`prompts`, `prompt_ids`, `group`, `sample_index`) → `responses`,
  /// `response_mask`, `rollout_log_probs`, `weight_versions`, `stop_reason`, with metrics
  /// `rollout/*`; under truncation also `rollout_processed_log_probs`. A sequence that fails (NaN
  /// logits) has mask 0, is counted and never trains; kAborted with the first cause when all of
  /// them fail.
  result<runtime::Batch> generate(const runtime::Batch& prompts, const SamplingOptions& sampling);

  /// One slice of samples that come and go; see actors/loops/streaming.hpp and RolloutStream. Every
  /// rank of an engine is asked and answers the same.
  result<AdvanceReply> advance(const AdvanceRequest& request);

  /// Gets whole tensors, then packs this rank's share of them: what fails or comes too late never
  /// becomes active. Whoever gave the handle must not change them meanwhile.
  result<void> load_weights(const WeightHandle& weights);

  /// What the engine has room for; the same on all its ranks.
  result<RolloutCapacity> capacity();
  /// Where this rank's weights lie.
  result<WeightLayout> weight_layout();
  /// Gets ready for publications of these rosters.
  result<void> open_publication(const PublicationSetup& setup);
  /// A step of a publication; receive takes as long as the bytes do. Errors are in the reply.
  result<reshard::Reply> publication(const reshard::Command& command);
  /// Greedy tokens, apart from everything else; see RolloutEngine::canary.
  result<CanaryAnswer> canary(const CanaryRequest& request);

  /// Gives the KV cache back, and the weights too; the next phase that needs them brings them back,
  /// weights without contents until they are published.
  result<void> sleep(SleepLevel level);
  /// The KV cache is back.
  result<void> wake();

  static constexpr auto methods() {
    using namespace runtime;
    return std::tuple{
        method<&RolloutWorker::generate>("generate", args(scatter, broadcast), returns(concat))
            .phase("rollout")
            .keep_columns(),
        method<&RolloutWorker::advance>("advance", args(broadcast), returns(first))
            .phase("rollout"),
        method<&RolloutWorker::load_weights>("load_weights", args(per_rank), returns(none))
            .phase("publish"),
        method<&RolloutWorker::capacity>("capacity", args(), returns(first)),
        method<&RolloutWorker::weight_layout>("weight_layout", args(), returns(all)),
        method<&RolloutWorker::open_publication>("open_publication", args(broadcast),
                                                 returns(none)),
        method<&RolloutWorker::publication>("publication", args(broadcast), returns(all))
            .phase("publish"),
        method<&RolloutWorker::canary>("canary", args(broadcast), returns(all)).phase("publish"),
        method<&RolloutWorker::sleep>("sleep", args(broadcast), returns(none)).phase("sleep"),
        method<&RolloutWorker::wake>("wake", args(), returns(none)).phase("rollout")};
  }

 private:
  RolloutWorker(runtime::WorkerContext& context, const Options& options);
  result<void> enter(runtime::MemoryBook* memory);
  result<void> wait_until(TimePoint end);

  runtime::WorkerContext& context_;
  std::unique_ptr<AxisCollective> tp_;  // null: the engine is whole
  std::unique_ptr<RolloutEngine> engine_;
  std::unique_ptr<MemoryEntries> entries_;  // after the engine that it points to
  WeightDoor door_;
  std::unique_ptr<EngineSink> sink_;
  const SimulatedDelay delay_;
  SteadyWaitingClock machine_clock_;
  WaitingClock& clock_;
  std::unique_ptr<RolloutStream> stream_;
  std::unique_ptr<reshard::PublicationTarget> target_;  // null before open_publication
};

}  // namespace troupe::actors

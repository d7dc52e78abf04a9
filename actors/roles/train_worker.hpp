#pragma once

// What policy and critic ranks share: a train engine, its entries in the device's ledger, and its
// state in checkpoints.
//
// A checkpoint is written and read by the controller: ranks give their state as tensors that stay
// where they are until the controller has them, and get it as tensors that the controller holds.
// So there need be no file system that ranks and controller share.
// **Ownership:** owns the engine; columns over its tensors keep it alive. Borrows the collective.
// **Threads:** the engine thread of its rank only.
// **Invariants:** with a whole engine every rank holds the same state, and rank 0 gives it; of a
// sharded one each rank gives its own pieces, which cover every tensor once.

#include "actors/algorithm/policy_loss.hpp"
#include "actors/model/model_config.hpp"
#include "actors/roles/memory_entries.hpp"
#include "actors/roles/tensor_batch.hpp"
#include "actors/train/train_engine.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/batch/column_ref.hpp"
#include "runtime/group/dispatch.hpp"
#include "runtime/group/worker_context.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>

namespace troupe::actors {

struct TrainWorkerOptions {
  ModelConfig model;
  std::span<const NamedTensor> weights;  ///< initial weights; read during creation only
  TrainEngineOptions engine;
  runtime::MemoryBook* memory = nullptr;       ///< of the rank's device, if it has one
  const PolicyLossRegistry* losses = nullptr;  ///< of a policy; outlives the worker
};

/// A part of what a rank gives of its engine's state: tensors `weights/…`, `adam_m/…`, `adam_v/…`,
/// and in part 0 of rank 0 the counters as JSON. `tensors` are whole (tensor_batch.hpp), or with
/// `sharded` pieces (sharded_batch.hpp).
struct EngineState {
  std::int64_t parts = 1;  ///< of what this rank gives
  bool sharded = false;
  std::string json;
  runtime::Batch tensors;

  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{field("parts", &EngineState::parts), field("sharded", &EngineState::sharded),
                      field("json", &EngineState::json), field("tensors", &EngineState::tensors)};
  }
};

/// Most tensor bytes of one part of all ranks, if it has more than one tensor a rank: what the
/// controller holds at a time while it saves.
inline constexpr std::int64_t kStatePartBytes = std::int64_t{256} << 20;

class TrainWorker {
 public:
  /// Part `part` of what this rank gives; nothing beyond its parts. Valid until the next update.
  result<EngineState> state(std::int64_t part);
  /// Part `part` of this rank's share of the weights alone, always as pieces; all shares together
  /// cover every tensor once.
  result<EngineState> weight_parts(std::int64_t part);
  /// The whole state, in one part, of an engine on any mesh; a rank of a sharded engine pulls what
  /// it needs. kConflict or kNotFound naming the tensor when it is of another model.
  result<void> load_state(const EngineState& state);

 protected:
  TrainWorker(runtime::WorkerContext& context, std::shared_ptr<TrainEngine> engine)
      : context_(context), engine_(std::move(engine)) {}
  ~TrainWorker() = default;

  static result<std::shared_ptr<TrainEngine>> make_engine(runtime::WorkerContext& context,
                                                          const TrainWorkerOptions& options);
  result<void> enter(runtime::MemoryBook* memory);
  result<EngineState> whole_state(std::int64_t part);
  result<EngineState> sharded_state(std::int64_t part);
  result<EngineState> part_of(std::span<const StatePiece> pieces, std::int64_t part);

  runtime::WorkerContext& context_;
  std::shared_ptr<TrainEngine> engine_;     // shared with the columns over its tensors
  std::unique_ptr<MemoryEntries> entries_;  // after the engine that it points to
};

}  // namespace troupe::actors

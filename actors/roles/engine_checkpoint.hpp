#pragma once

// A role's state in a checkpoint: the JSON state `<role>`, and tensors `<role>/weights/…`,
// `<role>/adam_m/…`, `<role>/adam_v/…`; of a sharded engine the pieces of these, with a manifest
// (sharded_manifest.hpp).
//
// **Threads:** the controller's. Blocks it while it reads, writes or pulls.
// **Invariants:** save then load continues with the same bits, on any number of ranks and any mesh;
// a whole engine writes whole tensors.

#include "actors/roles/sharded_manifest.hpp"
#include "actors/roles/train_worker.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/failure.hpp"
#include "runtime/task/task.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Writes one role's state, part after part.
class StateWriter {
 public:
  StateWriter(runtime::CheckpointWriter& writer, std::string role)
      : writer_(writer), role_(std::move(role)) {}

  /// Pulls what each rank gives as part `part` and writes it; the JSON goes with part 0.
  result<void> add(std::int64_t part, std::span<const EngineState> ranks);
  /// Writes the manifest of a sharded state. kNotFound or kCorrupt naming tensor and box unless the
  /// ranks gave every number once.
  result<void> finish();

 private:
  runtime::CheckpointWriter& writer_;
  std::string role_;
  bool sharded_ = false;
  ShardManifest manifest_;
};

/// The role's whole state, in memory of its own.
result<EngineState> read_state(const runtime::Checkpoint& checkpoint, const std::string& role);

/// A role's weights as whole tensors under their canonical names.
result<WeightSet> read_weights(const runtime::Checkpoint& checkpoint, std::string_view role,
                               std::span<const TensorShape> tensors);

/// Puts whole weights together on the controller from what ranks give.
class WeightGather {
 public:
  /// `tensors`: all of the model, by canonical name.
  explicit WeightGather(std::span<const TensorShape> tensors);
  /// Pulls and copies one part of each rank. kConflict or kNotFound naming the tensor.
  result<void> add(std::span<const EngineState> ranks);
  /// kNotFound or kCorrupt naming tensor and box unless every number came once.
  result<WeightSet> finish();

 private:
  WeightSet weights_;
  ShardManifest manifest_;
};

/// The weights of a policy on any mesh, part by part. Throws `Failure`.
template <class W>
runtime::task<WeightSet> gather_weights(runtime::WorkerGroup<W>& group,
                                        std::vector<TensorShape> tensors) {
  WeightGather gather(tensors);
  std::int64_t parts = 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::vector<EngineState> ranks = co_await group.template call<&W::weight_parts>(part);
    runtime::value_or_throw(gather.add(ranks));
    for (const EngineState& rank : ranks) parts = std::max(parts, rank.parts);
  }
  co_return runtime::value_or_throw(gather.finish());
}

/// W: PolicyWorker or CriticWorker. Throws `Failure`.
template <class W>
runtime::task<void> save_role(runtime::WorkerGroup<W>& group, std::string role,
                              runtime::CheckpointWriter& writer) {
  StateWriter state(writer, std::move(role));
  std::int64_t parts = 1;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::vector<EngineState> ranks = co_await group.template call<&W::state>(part);
    runtime::value_or_throw(state.add(part, ranks));
    for (const EngineState& rank : ranks) parts = std::max(parts, rank.parts);
  }
  runtime::value_or_throw(state.finish());
}

template <class W>
runtime::task<void> load_role(runtime::WorkerGroup<W>& group, std::string role,
                              const runtime::Checkpoint& checkpoint) {
  EngineState state = runtime::value_or_throw(read_state(checkpoint, role));
  co_await group.template call<&W::load_state>(std::move(state));
}

}  // namespace troupe::actors

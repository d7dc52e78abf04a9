#pragma once

// A train engine's state in a checkpoint: tensors `<role>/weights/…`, `<role>/adam_m/…`,
// `<role>/adam_v/…` and the JSON state `<role>`.
//
// **Threads:** the rank that holds the engine; the controller waits meanwhile.
// **Invariants:** save then load continues with the same bits, on any number of ranks.

#include "actors/train/train_engine.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <string>

namespace troupe::actors {

/// Where rank 0 of a group writes. The writer outlives the group: a call that met its deadline may
/// still be writing.
struct CheckpointTarget {
  runtime::CheckpointWriter* writer = nullptr;
  std::string role;
};

/// From where every rank of a group reads. Holds the index: a call ends with the first rank that
/// fails, when others may still be reading.
struct CheckpointSource {
  runtime::Checkpoint checkpoint;
  std::string role;
};

result<void> save_engine(const TrainEngine& engine, const CheckpointTarget& target);

/// kConflict or kNotFound naming the tensor when the checkpoint is of another model.
result<void> load_engine(TrainEngine& engine, const CheckpointSource& source);

}  // namespace troupe::actors

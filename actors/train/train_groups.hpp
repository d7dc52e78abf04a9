#pragma once

// The groups that a rank of a parallel train engine belongs to, cut out of one `Collective`.
//
// Rank = (pp·D + dp)·T + tp. The *dp* group has the ranks with the same shard of the weights, the
// *replica* group those that work on the same sequences (all tp and pp of one dp coordinate).
// With tp = pp = 1 nothing is cut: dp is the world itself.
// **Ownership:** borrows the world, owns the rest. **Threads:** as the engine.
// **Invariants:** groups are cut again when the world has started a new epoch, by all ranks in
// their next call; what fails in a part is told to the world, so that nobody waits in another part.

#include "actors/model/tensor_parallel_ops.hpp"
#include "actors/train/train_options.hpp"
#include "runtime/comm/collective.hpp"

#include <memory>

namespace troupe::actors {

/// Where a rank stands on the three axes.
struct MeshPlace {
  int pp = 0, dp = 0, tp = 0;
  int pp_size = 1, dp_size = 1, tp_size = 1;
  bool operator==(const MeshPlace&) const = default;
  bool cut() const { return pp_size * tp_size > 1; }  ///< does it hold a part of the model only
  /// Is this the rank that speaks for its dp coordinate.
  bool speaker() const { return pp == 0 && tp == 0; }
};
MeshPlace mesh_place(const ParallelOptions& parallel, int rank, int ranks);

class TrainGroups {
 public:
  /// Makes no collective yet. `world` may be null: one rank.
  TrainGroups(runtime::Collective* world, const ModelConfig& model, const ParallelOptions& parallel,
              Duration timeout);

  /// Cuts the groups where they are missing or of an old epoch; for the first line of every call.
  /// Collective then.
  result<void> refresh();

  const MeshPlace& place() const { return place_; }
  runtime::Collective* world() const { return world_; }
  runtime::Collective* dp() const;                       ///< null when there is one rank
  runtime::Collective* pp() const { return pp_.get(); }  ///< null unless pp > 1
  /// The same ranks once more. Gradients of a pipeline go over it, activations over `pp`: with a
  /// mailbox for each way, one way never waits for room that only the other can make.
  runtime::Collective* pp_back() const { return pp_back_.get(); }
  runtime::Collective* replica() const { return replica_.get(); }  ///< null unless cut
  runtime::Collective* ends() const { return ends_.get(); }  ///< first and last stage, or null
  /// For the decoder; null unless tp > 1. Its address is stable.
  const TensorGroup* tensor() const { return place_.tp_size > 1 ? &tensor_ : nullptr; }

  Deadline deadline() const { return Deadline::in(timeout_); }
  /// Tells every rank of the world that this one gave up, unless the world has failed already.
  void abort(const Error& cause) const;

 private:
  runtime::Collective* world_;
  MeshPlace place_;
  int kv_copies_;
  bool tied_ends_;
  Duration timeout_;
  std::int64_t epoch_ = -1;  // of the world when the groups were cut
  TensorGroup tensor_;
  std::unique_ptr<runtime::Collective> dp_, tp_, pp_, pp_back_, replica_, kv_, ends_;
};

}  // namespace troupe::actors

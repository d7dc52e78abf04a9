#pragma once

// The groups over which a sharded train engine cuts its buffers, inside the data-parallel group.
//
// Contiguous runs of `shard_ranks` data-parallel ranks share one copy of what is cut (the *shard*
// group); ranks that hold the same part in different copies are *replicas*. With one run there is
// one copy, and the shard group is the data-parallel group itself.
// **Ownership:** borrows the data-parallel group, owns what it splits off.
// **Threads:** as the engine.
// **Invariants:** groups are cut again after a new epoch, by all ranks in their next call.

#include "actors/model/flat_parameters.hpp"
#include "actors/train/train_options.hpp"
#include "runtime/comm/collective.hpp"

#include <memory>

namespace troupe::actors {

class ShardGroups {
 public:
  /// `dp_rank` of `dp_size` data-parallel ranks. Makes no collective yet.
  ShardGroups(const ParallelOptions& parallel, int dp_rank, int dp_size, Duration timeout);

  /// Cuts the groups where they are missing or of an old epoch; for the first line of every call.
  /// Collective over `dp` then.
  result<void> refresh(runtime::Collective* dp, std::int64_t epoch);

  /// For the decoder; null when nothing is cut. Its address is stable.
  const ParameterShards* shards() const { return shards_.ranks > 1 ? &shards_ : nullptr; }
  runtime::Collective* shard() const { return shards_.group; }  ///< null when nothing is cut
  /// What gradients are still to be summed over when the shard group has summed them: null when
  /// there is one copy. Without cuts, the data-parallel group.
  runtime::Collective* replicas() const { return replicas_; }
  /// Does this rank hold the first copy, the one that goes into checkpoints.
  bool first_copy() const { return copy_ == 0; }

 private:
  ParameterShards shards_;
  int copy_ = 0;
  int copies_ = 1;
  std::int64_t epoch_ = -1;
  runtime::Collective* replicas_ = nullptr;
  std::unique_ptr<runtime::Collective> owned_shard_, owned_replicas_;
};

}  // namespace troupe::actors

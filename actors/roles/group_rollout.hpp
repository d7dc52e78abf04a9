#pragma once

// The rollout role over worker groups: one of all ranks, or replicas that may die one by one.
//
// **Ownership:** borrows the replicas, which the world owns.
// **Threads:** controller's thread.
// **Invariants:** row i of a result belongs to row i of the argument, whoever generated it; rows
// of a replica that dies are generated again by the others, to the same bits.

#include "actors/roles/rollout_replicas.hpp"
#include "actors/rollout/sampling_options.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/task/task.hpp"

#include <optional>

namespace troupe::actors {

class GroupRollout {
 public:
  /// `level`: what `sleep` gives back; nothing: it does nothing.
  GroupRollout(RolloutReplicas& replicas, std::optional<SleepLevel> level)
      : replicas_(replicas), level_(level) {}
  /// `prompts` with the generated columns merged in.
  runtime::task<runtime::Batch> generate(runtime::Batch prompts, SamplingOptions sampling);
  /// Gives memory back until the next publication; weights only if one comes before the next
  /// generation.
  runtime::task<void> sleep(bool publication_follows);

 private:
  runtime::task<runtime::Batch> generate_anywhere(runtime::Batch needed, SamplingOptions sampling);

  RolloutReplicas& replicas_;
  std::optional<SleepLevel> level_;
};

}  // namespace troupe::actors

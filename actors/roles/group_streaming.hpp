#pragma once

// Rollout replicas as a stream: see actors/loops/streaming.hpp.
//
// **Ownership:** borrows the replicas, which the world owns.
// **Threads:** controller's thread.
// **Invariants:** satisfies `StreamingRole`. A replica that dies in a slice, or does not end it in
// time, is lost: it is not called again before it was made anew and a publication reached it.

#include "actors/loops/streaming.hpp"
#include "actors/roles/rollout_replicas.hpp"
#include "runtime/task/task.hpp"

#include <vector>

namespace troupe::actors {

class GroupStreamingRollout {
 public:
  /// `within`: for one slice, and what it has to wait for on its devices.
  GroupStreamingRollout(RolloutReplicas& replicas, Duration within)
      : replicas_(replicas), within_(within) {}

  std::vector<ReplicaInfo> replicas();
  runtime::task<AdvanceReply> advance(RankId replica, AdvanceRequest request);
  runtime::task<void> revive(RankId replica);

  std::int64_t losses() const { return replicas_.losses(); }
  std::int64_t revivals() const { return replicas_.revivals(); }

 private:
  RolloutReplicas& replicas_;
  const Duration within_;
};

}  // namespace troupe::actors

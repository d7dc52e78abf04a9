#pragma once

// The roles of a cast over worker groups of this process: what a loop awaits.
//
// A handle selects the columns that its workers need, shares rows out evenly, calls the group and
// puts the results back into the caller's row order. Payload stays with the ranks.
// **Ownership:** borrows the group, which the world owns.
// **Threads:** controller's thread.
// **Invariants:** row i of a result belongs to row i of the argument.

#include "actors/loops/world.hpp"
#include "actors/roles/critic_worker.hpp"
#include "actors/roles/group_reward.hpp"
#include "actors/roles/group_rollout.hpp"
#include "actors/roles/policy_worker.hpp"
#include "runtime/group/worker_group.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::actors {

/// Mini-batches of an update.
struct MinibatchPlan {
  std::int64_t rows = 0;  ///< samples per optimizer step over all ranks
  std::int64_t epochs = 1;
  bool shuffle = false;
  std::uint64_t seed = 0;
  bool balance = true;  ///< share rows out by tokens
};

class GroupReference {
 public:
  GroupReference(runtime::WorkerGroup<PolicyWorker>& group, LogProbRequest request, bool balance)
      : group_(group), request_(std::move(request)), balance_(balance) {}
  runtime::task<runtime::Batch> log_probs(runtime::Batch batch);

 private:
  runtime::WorkerGroup<PolicyWorker>& group_;
  LogProbRequest request_;
  bool balance_;
};

class GroupPolicy {
 public:
  GroupPolicy(runtime::WorkerGroup<PolicyWorker>& group, LogProbRequest request,
              PolicyUpdateSettings settings, MinibatchPlan plan)
      : group_(group),
        current_(group, std::move(request), plan.balance),
        settings_(std::move(settings)),
        plan_(plan) {}
  runtime::task<runtime::Batch> log_probs(runtime::Batch batch) {
    return current_.log_probs(std::move(batch));
  }
  /// All epochs over all mini-batches; the metrics of their steps are merged.
  runtime::task<runtime::Metrics> update(runtime::Batch batch);

  /// A streamed step: adds what complete groups teach, with the columns of `update`, but for
  /// `old_log_probs`, which may be missing. Weights stay until `finish_step`, which counts as one
  /// update; the metrics of all parts and of the end, merged, are those of `update`. The plan's
  /// mini-batches and epochs do not apply (check_streamed_update refuses them at the start).
  runtime::task<runtime::Metrics> accumulate(runtime::Batch part);
  runtime::task<runtime::Metrics> finish_step();
  /// After a failure: forgets the parts, so that the step can be done again.
  runtime::task<void> abandon_step();

  /// Updates so far; seeds the shuffle, so it is part of a checkpoint. It is also the version of
  /// the weights at the start of a step.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t count) { updates_ = count; }

 private:
  /// The columns that an update reads, with `sequence_id`.
  runtime::Batch update_columns(const runtime::Batch& batch, std::int64_t first_id = 0) const;
  /// `progress`: the share of the step's updates that is done.
  PolicyUpdateSettings update_settings(std::int64_t epoch, double progress) const;

  runtime::WorkerGroup<PolicyWorker>& group_;
  GroupReference current_;
  PolicyUpdateSettings settings_;
  MinibatchPlan plan_;
  std::int64_t updates_ = 0;
  std::int64_t rows_streamed_ = 0;  // of the open step; numbers its sequences
};

class GroupCritic {
 public:
  GroupCritic(runtime::WorkerGroup<CriticWorker>& group, ValueUpdateSettings settings,
              MinibatchPlan plan)
      : group_(group), settings_(settings), plan_(plan) {}
  runtime::task<runtime::Batch> values(runtime::Batch batch);
  runtime::task<runtime::Metrics> update(runtime::Batch batch);
  /// As GroupPolicy's.
  runtime::task<runtime::Metrics> accumulate(runtime::Batch part);
  runtime::task<runtime::Metrics> finish_step();
  runtime::task<void> abandon_step();
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t count) { updates_ = count; }

 private:
  runtime::WorkerGroup<CriticWorker>& group_;
  ValueUpdateSettings settings_;
  MinibatchPlan plan_;
  std::int64_t updates_ = 0;
};

}  // namespace troupe::actors

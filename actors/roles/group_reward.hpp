#pragma once

// The reward role over a worker group that is made anew when it dies.
//
// Scores are a function of the batch, so a call that was under way is made again on the new group.
// **Ownership:** owns the group.
// **Threads:** controller's thread; the group is made on a thread of its own.
// **Invariants:** row i of a result belongs to row i of the argument; the group is made anew at
// most `remakes_max` times in its life, whoever's rows are to blame.

#include "actors/roles/background_job.hpp"
#include "actors/roles/group_making.hpp"
#include "actors/roles/reward_worker.hpp"
#include "actors/roles/turnstile.hpp"
#include "runtime/batch/batch.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/task.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace troupe::actors {

struct GroupRewardOptions {
  int remakes_max = 3;
  Duration create_within = std::chrono::minutes(5);
  Duration remake_within = std::chrono::minutes(1);
  /// Scores come to the controller with the answer, so that they outlive the rank that made them.
  bool fetch = false;
};

class GroupReward {
 public:
  using Group = runtime::WorkerGroup<RewardWorker>;
  using Make = std::function<result<Group>(const GroupMaking&)>;

  static result<std::unique_ptr<GroupReward>> create(Make make, const GroupRewardOptions& options);
  GroupReward(const GroupReward&) = delete;
  GroupReward& operator=(const GroupReward&) = delete;

  /// Metric `reward/remakes` once the group was made anew. Throws `Failure`: of a rule, or
  /// kRankDead when the group died and may not be made anew.
  runtime::task<runtime::Batch> score(runtime::Batch batch);

  std::int64_t remakes() const { return remakes_; }
  /// Why nothing can be scored any more.
  std::optional<Error> dead_cause() const;
  /// For tests that end its ranks.
  Group& group() { return *group_; }

 private:
  GroupReward(Make make, const GroupRewardOptions& options)
      : make_(std::move(make)), options_(options) {}
  bool alive() const { return group_ != nullptr && !group_->dead_cause(); }
  runtime::task<void> ensure_alive();

  const Make make_;
  const GroupRewardOptions options_;
  std::unique_ptr<Group> group_;  // null while it is made
  int remakes_ = 0;
  std::optional<Error> cause_;  // of the last death
  Turnstile making_;
  BackgroundJob job_;
};

}  // namespace troupe::actors

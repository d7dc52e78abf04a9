#pragma once

// The world of real ranks: every role a worker group, in this process or across a cluster.
//
//   auto world = GroupWorld::create(make_local_place(system, options, tokenizer, rules), options);
//   auto world = GroupWorld::create(make_cluster_place(pool, options), options);
//
// Ranks that share a device take turns there; who keeps the device's ledger makes room when a phase
// begins. Rollout shares the trained roles' devices or has some of its own; when it streams, each
// of its engines is a group that may die and be made anew, and a reward group that dies is.
// **Ownership:** owns groups, place and role handles; borrows what the place borrows, and weights
// during creation.
// **Threads:** controller's thread.
// **Invariants:** satisfies `World`; destroying it ends all calls. The same options, seeds and
// number of devices give the same tokens, metrics and weights wherever the groups run.

#include "actors/loops/world.hpp"
#include "actors/roles/group_environment.hpp"
#include "actors/roles/group_evaluator.hpp"
#include "actors/roles/group_streaming.hpp"
#include "actors/roles/group_weights.hpp"
#include "actors/roles/role_handles.hpp"
#include "actors/roles/world_place.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace troupe::actors {

class GroupWorld {
 public:
  using Rollout = GroupRollout;
  using Reward = GroupReward;
  using Policy = GroupPolicy;
  using Reference = GroupReference;
  using Critic = GroupCritic;
  using Weights = GroupWeights;
  using Streaming = GroupStreamingRollout;
  using Evaluator = GroupEvaluator;
  using Environment = GroupEnvironment;

  /// Errors name group, rank and cause; kResourceExhausted with the ledger's table when the roles
  /// cannot live on the devices.
  static result<std::unique_ptr<GroupWorld>> create(std::unique_ptr<WorldPlace> place,
                                                    const WorldOptions& options);
  GroupWorld(const GroupWorld&) = delete;
  GroupWorld& operator=(const GroupWorld&) = delete;

  const Clock& clock() const { return clock_; }
  GroupRollout& rollout() { return *rollout_role_; }
  GroupReward& reward() { return *reward_role_; }
  GroupPolicy& policy() { return *policy_role_; }
  GroupReference* reference() { return reference_role_ ? &*reference_role_ : nullptr; }
  GroupCritic* critic() { return critic_role_ ? &*critic_role_ : nullptr; }
  GroupWeights& weights() { return *weights_role_; }
  /// Null unless the world streams.
  GroupStreamingRollout* streaming() { return streaming_role_ ? &*streaming_role_ : nullptr; }
  /// Null without devices for it.
  GroupEvaluator* evaluator() { return evaluator_ ? &*evaluator_ : nullptr; }

  /// Null when samples meet none.
  GroupEnvironment* environment() { return environment_role_.get(); }

  /// Engines, optimizer and counters of the trained roles, as `actor` and `critic`.
  runtime::task<void> save(runtime::CheckpointWriter& writer);
  runtime::task<void> load(const runtime::Checkpoint& checkpoint);
  /// A copy of the policy's weights, whole, whatever its mesh.
  runtime::task<WeightSet> policy_weights();

  /// Why the world cannot go on, once a rank has died that it cannot do without.
  std::optional<Error> dead_cause() const;
  /// The rollout groups, for who looks at them or ends them.
  RolloutReplicas& replicas() { return *replicas_; }

  /// Who holds what on device `index`, where that is kept in this process.
  std::optional<runtime::MemoryLedger> ledger(std::size_t index) const {
    return place_->ledger(index);
  }

 private:
  explicit GroupWorld(std::unique_ptr<WorldPlace> place) : place_(std::move(place)) {}
  result<void> create_groups(const WorldOptions& options);
  result<std::unique_ptr<RolloutReplicas>> create_replicas(const WorldOptions& options,
                                                           std::vector<RolloutSeat> seats,
                                                           bool survive);
  void create_roles(const WorldOptions& options);

  SteadyClock clock_;
  ModelConfig model_;  ///< of the policy
  std::unique_ptr<WorldPlace> place_;
  std::optional<runtime::WorkerGroup<PolicyWorker>> policy_;
  std::optional<runtime::WorkerGroup<PolicyWorker>> reference_;
  std::optional<runtime::WorkerGroup<CriticWorker>> critic_;
  std::unique_ptr<GroupReward> reward_role_;
  std::unique_ptr<GroupEnvironment> environment_role_;
  Turnstile publishing_;
  std::optional<WeightTransfer> transfer_;
  // After policy_: a publication that failed at one rank may still read the policy's tensors.
  std::unique_ptr<RolloutReplicas> replicas_;
  std::unique_ptr<RolloutReplicas> evaluation_;  // null without devices for it
  std::optional<GroupRollout> rollout_role_;
  std::optional<GroupStreamingRollout> streaming_role_;
  std::optional<GroupPolicy> policy_role_;
  std::optional<GroupReference> reference_role_;
  std::optional<GroupCritic> critic_role_;
  std::optional<GroupWeights> weights_role_;
  std::optional<GroupEvaluator> evaluator_;
};

}  // namespace troupe::actors

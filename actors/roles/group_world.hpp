#pragma once

// The world of real ranks: every role a worker group, in this process or across a cluster.
//
//   auto world = GroupWorld::create(make_local_place(system, options, tokenizer, rules), options);
//   auto world = GroupWorld::create(make_cluster_place(pool, options), options);
//
// Rank i of each group sits on device i and takes turns there; who keeps the device's ledger makes
// room when a phase begins.
// **Ownership:** owns groups, place and role handles; borrows what the place borrows, and weights
// during creation.
// **Threads:** controller's thread.
// **Invariants:** satisfies `World`; destroying it ends all calls. The same options, seeds and
// number of devices give the same tokens, metrics and weights wherever the groups run.

#include "actors/loops/world.hpp"
#include "actors/roles/group_weights.hpp"
#include "actors/roles/role_handles.hpp"
#include "actors/roles/world_place.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <memory>
#include <optional>

namespace troupe::actors {

class GroupWorld {
 public:
  using Rollout = GroupRollout;
  using Reward = GroupReward;
  using Policy = GroupPolicy;
  using Reference = GroupReference;
  using Critic = GroupCritic;
  using Weights = GroupWeights;

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

  /// Engines, optimizer and counters of the trained roles, as `actor` and `critic`.
  runtime::task<void> save(runtime::CheckpointWriter& writer);
  runtime::task<void> load(const runtime::Checkpoint& checkpoint);
  /// A copy of the policy's weights, whole, whatever its mesh.
  runtime::task<WeightSet> policy_weights();

  /// Why the world cannot go on, once a rank of any group has died.
  std::optional<Error> dead_cause() const;

  /// Who holds what on device `index`, where that is kept in this process.
  std::optional<runtime::MemoryLedger> ledger(std::size_t index) const {
    return place_->ledger(index);
  }

 private:
  explicit GroupWorld(std::unique_ptr<WorldPlace> place) : place_(std::move(place)) {}
  result<void> create_groups(const WorldOptions& options);
  void create_roles(const WorldOptions& options);

  SteadyClock clock_;
  ModelConfig model_;  ///< of the policy
  std::unique_ptr<WorldPlace> place_;
  std::optional<runtime::WorkerGroup<PolicyWorker>> policy_;
  std::optional<runtime::WorkerGroup<PolicyWorker>> reference_;
  std::optional<runtime::WorkerGroup<CriticWorker>> critic_;
  std::optional<runtime::WorkerGroup<RewardWorker>> reward_;
  // After policy_: a publication that failed at one rank may still read the policy's tensors.
  std::optional<runtime::WorkerGroup<RolloutWorker>> rollout_;
  std::optional<GroupRollout> rollout_role_;
  std::optional<GroupReward> reward_role_;
  std::optional<GroupPolicy> policy_role_;
  std::optional<GroupReference> reference_role_;
  std::optional<GroupCritic> critic_role_;
  std::optional<GroupWeights> weights_role_;
};

}  // namespace troupe::actors

#pragma once

// The world of one process: every role a worker group, ranks are threads, devices are shared.
//
// Rank i of each group sits on device i and takes turns in its lane; the device's ledger knows
// what each role keeps there and makes room when a phase begins.
// **Ownership:** owns groups, devices and role handles; borrows the actor system, weights (during
// creation), tokenizer and rules.
// **Threads:** controller's thread.
// **Invariants:** satisfies `World`; destroying it ends all calls.

#include "actors/loops/world.hpp"
#include "actors/roles/colocated_gate.hpp"
#include "actors/roles/role_handles.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/call_trace.hpp"

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

/// A trained role: its model, starting weights, engine, and how it goes through a batch.
struct TrainedRole {
  ModelConfig model;
  std::span<const NamedTensor> weights;
  TrainEngineOptions engine;
  MinibatchPlan plan;
};

struct LocalWorldOptions {
  int devices = 1;
  Bytes device_memory = gibibytes(16);
  int reward_workers = 1;
  std::string reward_rule;  ///< empty: by data source
  Duration call_deadline = std::chrono::minutes(30);
  float temperature = 1.0F;  ///< of sampling; log-probs are taken at the same
  TrainedRole policy;
  PolicyUpdateSettings policy_update;
  std::optional<TrainedRole> reference;  ///< a frozen policy
  std::optional<TrainedRole> critic;
  ValueUpdateSettings value_update;
  EngineOptions rollout;
  runtime::CallTrace* trace = nullptr;
};

class LocalWorld {
 public:
  using Rollout = LocalRollout;
  using Reward = LocalReward;
  using Policy = LocalPolicy;
  using Reference = LocalReference;
  using Critic = LocalCritic;
  using Weights = LocalWeights;

  /// Errors name group, rank and cause; kResourceExhausted with the ledger's table when the roles
  /// cannot live on the devices.
  static result<std::unique_ptr<LocalWorld>> create(runtime::ActorSystem& system,
                                                    const LocalWorldOptions& options,
                                                    const Tokenizer& tokenizer,
                                                    const RewardRegistry& rules);
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  const Clock& clock() const { return clock_; }
  LocalRollout& rollout() { return *rollout_role_; }
  LocalReward& reward() { return *reward_role_; }
  LocalPolicy& policy() { return *policy_role_; }
  LocalReference* reference() { return reference_role_ ? &*reference_role_ : nullptr; }
  LocalCritic* critic() { return critic_role_ ? &*critic_role_ : nullptr; }
  LocalWeights& weights() { return *weights_role_; }

  /// Engines, optimizer and counters of the trained roles, as `actor` and `critic`. The writer
  /// outlives the world: see CheckpointTarget.
  runtime::task<void> save(runtime::CheckpointWriter& writer);
  runtime::task<void> load(const runtime::Checkpoint& checkpoint);
  /// The policy's weights of rank 0, valid until its next update.
  runtime::task<WeightHandle> policy_weights();

  /// Who holds what on device `index`.
  runtime::MemoryLedger ledger(std::size_t index) const {
    return devices_[index]->memory().snapshot();
  }

 private:
  explicit LocalWorld(const LocalWorldOptions& options);
  /// What a role's phases need on a device.
  struct PhaseNeed {
    std::vector<std::string> resident;
    Bytes scratch;
  };
  using PhaseNeeds = std::map<std::string, PhaseNeed>;

  result<void> create_trained(runtime::ActorSystem& system, const LocalWorldOptions& options);
  result<void> create_serving(runtime::ActorSystem& system, const LocalWorldOptions& options,
                              const Tokenizer& tokenizer, const RewardRegistry& rules);
  void create_roles(const LocalWorldOptions& options);
  runtime::GroupOptions group_options(const LocalWorldOptions& options, const std::string& role,
                                      PhaseNeeds needs);
  std::vector<runtime::LaneGate*> gates(const std::string& role, PhaseNeeds needs);

  SteadyClock clock_;
  std::vector<std::unique_ptr<DeviceGate>> devices_;
  std::vector<std::unique_ptr<RoleGate>> role_gates_;
  std::optional<runtime::WorkerGroup<PolicyWorker>> policy_;
  std::optional<runtime::WorkerGroup<PolicyWorker>> reference_;
  std::optional<runtime::WorkerGroup<CriticWorker>> critic_;
  std::optional<runtime::WorkerGroup<RewardWorker>> reward_;
  // After policy_: a publication that failed at one rank may still read the policy's tensors.
  std::optional<runtime::WorkerGroup<RolloutWorker>> rollout_;
  std::optional<LocalRollout> rollout_role_;
  std::optional<LocalReward> reward_role_;
  std::optional<LocalPolicy> policy_role_;
  std::optional<LocalReference> reference_role_;
  std::optional<LocalCritic> critic_role_;
  std::optional<LocalWeights> weights_role_;
};

}  // namespace troupe::actors

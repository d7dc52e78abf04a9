#pragma once

// Where the groups of a world run: threads here, or rank processes of a cluster.
//
// A place knows how to make a worker group of each role; all else about a world is the same
// everywhere. Rank i of each group sits on device i and takes turns there with the other roles.
// **Ownership:** a place outlives the groups that it makes. Options are borrowed, and what they
// borrow.
// **Threads:** controller's thread.

#include "actors/roles/colocated_gate.hpp"
#include "actors/roles/critic_worker.hpp"
#include "actors/roles/group_weights.hpp"
#include "actors/roles/policy_worker.hpp"
#include "actors/roles/reward_worker.hpp"
#include "actors/roles/role_handles.hpp"
#include "actors/roles/role_specs.hpp"
#include "actors/roles/rollout_worker.hpp"
#include "runtime/group/actor_system.hpp"
#include "runtime/group/call_trace.hpp"
#include "runtime/group/worker_group.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {
class ClusterJob;
}

namespace troupe::actors {

/// A trained role: its model, starting weights, engine, and how it goes through a batch.
struct TrainedRole {
  ModelConfig model;
  std::span<const NamedTensor> weights;  ///< for ranks in this process
  ModelSource source = {};               ///< for ranks elsewhere
  TrainEngineOptions engine;
  MinibatchPlan plan;
};

struct WorldOptions {
  int devices = 1;  ///< ranks of each role on devices; in a cluster the bundles of its pool
  Bytes device_memory = gibibytes(16);
  int reward_workers = 1;
  std::string reward_rule;  ///< empty: by data source
  Duration call_deadline = std::chrono::minutes(30);
  Duration create_deadline = std::chrono::minutes(5);
  float temperature = 1.0F;  ///< of sampling; log-probs are taken at the same
  TrainedRole policy;
  PolicyUpdateSettings policy_update;
  PolicyLossRegistry losses = default_policy_losses();
  std::optional<TrainedRole> reference;  ///< a frozen policy
  std::optional<TrainedRole> critic;
  ValueUpdateSettings value_update;
  EngineOptions rollout;
  int rollout_tp = 1;  ///< ranks of one rollout engine
  PublicationOptions publication = {};
  runtime::CallTrace* trace = nullptr;
};

class WorldPlace {
 public:
  virtual ~WorldPlace() = default;
  virtual result<runtime::WorkerGroup<PolicyWorker>> make_policy(const std::string& name,
                                                                 const TrainedRole& role) = 0;
  virtual result<runtime::WorkerGroup<CriticWorker>> make_critic(const TrainedRole& role) = 0;
  virtual result<runtime::WorkerGroup<RolloutWorker>> make_rollout() = 0;
  virtual result<runtime::WorkerGroup<RewardWorker>> make_reward() = 0;
  /// Who holds what on device `index`, where that is kept here.
  virtual std::optional<runtime::MemoryLedger> ledger(std::size_t index) const = 0;
};

/// Ranks are threads of this process; devices are shared by means of `DeviceGate`.
std::unique_ptr<WorldPlace> make_local_place(runtime::ActorSystem& system,
                                             const WorldOptions& options,
                                             const Tokenizer& tokenizer,
                                             const RewardRegistry& rules);

/// What a cluster gives to one world: bundle i is where rank i of every role goes.
struct ClusterPool {
  runtime::ClusterJob* job = nullptr;
  std::string reservation;                ///< placement group; empty: the launcher chooses
  std::vector<int> bundles;               ///< [devices]; empty: 0, 1, …
  std::vector<runtime::LaneGate*> lanes;  ///< [devices], tickets of the agents' lanes; or empty
};

/// Ranks are processes that run the programs of role_programs.hpp.
std::unique_ptr<WorldPlace> make_cluster_place(ClusterPool pool, const WorldOptions& options);

}  // namespace troupe::actors

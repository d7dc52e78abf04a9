#pragma once

// Where the groups of a world run: threads here, or rank processes of a cluster.
//
// A place knows how to make a worker group of each role; all else about a world is the same
// everywhere. Rank i of a trained role sits on device i; rollout ranks sit where their seat says,
// on the same devices, taking turns there with the other roles, or on devices of their own behind
// them.
// **Ownership:** a place outlives the groups that it makes. Options are borrowed, and what they
// borrow.
// **Threads:** roles that are made anew are made on other threads: rollout, reward and environment
// from any, at the same time; the rest on the controller's.

#include "actors/environment/environment.hpp"
#include "actors/roles/colocated_gate.hpp"
#include "actors/roles/critic_worker.hpp"
#include "actors/roles/environment_worker.hpp"
#include "actors/roles/group_making.hpp"
#include "actors/roles/group_weights.hpp"
#include "actors/roles/judge_specs.hpp"
#include "actors/roles/policy_worker.hpp"
#include "actors/roles/reward_worker.hpp"
#include "actors/roles/role_handles.hpp"
#include "actors/roles/role_meshes.hpp"
#include "actors/roles/role_specs.hpp"
#include "actors/roles/rollout_worker.hpp"
#include "actors/roles/simulated_delay.hpp"
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
  int devices = 1;  ///< ranks of each trained role
  /// Devices of rollout ranks alone, behind those of the trained roles; 0: they share these.
  int rollout_devices_own = 0;
  /// One worker group for each rollout engine, so that a death takes only one, and engines advance
  /// by slices; see streaming.hpp.
  bool streaming = false;
  /// Streaming with a pool of its own: more replicas, on the trainer's devices, lent while it
  /// waits.
  bool lend_trainer_devices = false;
  /// Devices of ranks that only evaluate, behind all others; 0: the rollout role evaluates.
  int evaluation_devices = 0;
  int revives_max = 8;                               ///< how often one rollout replica is made anew
  int reward_remakes_max = 3;                        ///< how often the reward role is
  Duration revive_within = std::chrono::minutes(1);  ///< for a group that is made anew
  /// One slice of a replica on devices of its own, its step included; longer: it is given up.
  Duration advance_within = std::chrono::minutes(2);
  Bytes device_memory = gibibytes(16);
  int reward_workers = 1;
  std::string reward_rule;  ///< empty: by data source
  /// Rules that are commands: for rank processes; in this one the registry has them already.
  std::vector<CommandRewardSpec> reward_commands = {};
  bool reward_report_failed =
      false;  ///< answers that a rule gave up leave by name; see RewardWorker
  std::optional<EnvironmentOptions> environment = {};  ///< empty: no environment role
  int environment_workers = 2;
  std::vector<CommandEnvironmentSpec> environment_commands = {};  ///< as reward_commands
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
  SimulatedDelay rollout_delay = {};
  PublicationOptions publication = {};
  runtime::CallTrace* trace = nullptr;
};

/// All devices of a world: the trained roles', then the rollout pool's, then those that evaluate.
inline int world_devices(const WorldOptions& options) {
  return options.devices + options.rollout_devices_own + options.evaluation_devices;
}
/// Where the rollout groups of a world sit; see role_meshes.hpp.
RolloutPool rollout_pool(const WorldOptions& options);

/// A group of a world, without lanes.
runtime::GroupOptions role_group(const WorldOptions& options, const std::string& name,
                                 runtime::Mesh mesh);
/// One that may take the place of a dead one.
runtime::GroupOptions role_group(const WorldOptions& options, const std::string& name,
                                 runtime::Mesh mesh, const GroupMaking& making);
/// One of `ranks` that judge, each by itself.
runtime::GroupOptions judge_group(const WorldOptions& options, const std::string& name, int ranks,
                                  const GroupMaking& making);

class WorldPlace {
 public:
  virtual ~WorldPlace() = default;
  virtual result<runtime::WorkerGroup<PolicyWorker>> make_policy(const std::string& name,
                                                                 const TrainedRole& role) = 0;
  virtual result<runtime::WorkerGroup<CriticWorker>> make_critic(const TrainedRole& role) = 0;
  virtual result<runtime::WorkerGroup<RolloutWorker>> make_rollout(const GroupMaking& making,
                                                                   const RolloutSeat& seat) = 0;
  virtual result<runtime::WorkerGroup<RewardWorker>> make_reward(const GroupMaking& making) = 0;
  /// One rank; only where the world has an environment.
  virtual result<runtime::WorkerGroup<EnvironmentWorker>> make_environment(
      int seat, const GroupMaking& making) = 0;
  /// Who holds what on device `index`, where that is kept here.
  virtual std::optional<runtime::MemoryLedger> ledger(std::size_t index) const = 0;
};

/// Ranks are threads of this process; devices are shared by means of `DeviceGate`.
std::unique_ptr<WorldPlace> make_local_place(
    runtime::ActorSystem& system, const WorldOptions& options, const Tokenizer& tokenizer,
    const RewardRegistry& rules, EnvironmentRegistry environments = default_environments());

/// What a cluster gives to one world: bundle i is device i.
struct ClusterPool {
  runtime::ClusterJob* job = nullptr;
  std::string reservation;                ///< placement group; empty: the launcher chooses
  std::vector<int> bundles;               ///< [world_devices]; empty: 0, 1, …
  std::vector<runtime::LaneGate*> lanes;  ///< [world_devices], of the agents' lanes; or empty
};

/// Ranks are processes that run the programs of role_programs.hpp.
std::unique_ptr<WorldPlace> make_cluster_place(ClusterPool pool, const WorldOptions& options);

}  // namespace troupe::actors

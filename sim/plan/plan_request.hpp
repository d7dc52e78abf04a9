#pragma once

// What a placement is wanted for, and what one looks like.
//
// Roles that sit on the same devices are a set; a placement is a partition of the roles into sets,
// devices of one kind for each, a layout for every role, and the loop that runs over them.
// **Threads:** value types and pure functions.
// **Invariants:** roles have a fixed order, which decides between equally good placements.

#include "placement/strategy.hpp"
#include "sim/world/sim_job.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

enum class PlanRole : std::uint8_t { kPolicy, kRollout, kReference, kCritic, kRewardModel };
inline constexpr std::size_t kPlanRoles = 5;
/// `policy`, `rollout`, `reference`, `critic`, `reward_model`.
std::string_view plan_role_name(PlanRole role);

/// Equal nodes that are on offer.
struct DeviceOffer {
  std::string name{};
  DeviceSpec device{};
  int devices = 0;  ///< most that may be taken
  int nodes = 0;    ///< over which they may be spread; 0: as few as hold them
};

enum class PlanObjective : std::uint8_t {
  kTime,  ///< seconds a step
  kCost,  ///< price of a step, as the data sheets' prices have it
};

struct PlanRequest {
  /// Models, work, constants and engine options; where roles sit and their layouts are searched.
  SimJob base{};
  std::vector<DeviceOffer> offers{};
  std::vector<SimMode> modes = {SimMode::kSynchronous, SimMode::kOneStepOff, SimMode::kAsynchronous,
                                SimMode::kPipelined};
  std::int64_t staleness_max = 1;  ///< of loops that let rollout run ahead
  PlanObjective objective = PlanObjective::kTime;
  /// Numbers of devices that a set may have: multiples of this. 0: whole nodes, and powers of two
  /// below one.
  int granularity = 0;
  /// Micro-batches that are tried: this many times the longest sample.
  std::vector<int> micro_batches = {1, 2, 4};
  bool split_trained = true;  ///< false: trained roles share one set, as real runs have it
  int experts_cut = 1;        ///< ranks that share out the experts of every role that has them
  /// Of those, what `make_plan` tries.
  std::vector<int> experts_cut_tried = {1, 4, 8, 16, 32};
  std::size_t simulate_best = 8;     ///< candidates that are run in the simulator
  std::int64_t simulated_steps = 3;  ///< of each, in loops that run ahead; others: 1

  /// kInvalidArgument naming the field: no devices, no modes, numbers below 1.
  result<void> check() const;
  std::vector<PlanRole> roles() const;
  const ModelSpec& model_of(PlanRole role) const;
  bool is_trained(PlanRole role) const;  ///< has gradients
  bool is_frozen(PlanRole role) const;   ///< only forward passes
};

/// Roles that share devices.
struct PlannedSet {
  std::vector<PlanRole> roles{};
  std::size_t offer = 0;
  int devices = 0;
  bool operator==(const PlannedSet&) const = default;
};

struct Candidate {
  SimMode mode = SimMode::kSynchronous;
  std::int64_t staleness = 0;
  placement::Strategy strategy = placement::Strategy::kPack;
  std::vector<PlannedSet> sets{};                 ///< in the order of their first role
  std::array<TrainLayout, kPlanRoles> layouts{};  ///< of every role but rollout
  EngineLayout engine{};
  int replicas = 1;
  std::int64_t kv_tokens = 0;  ///< of one engine

  const PlannedSet& set_of(PlanRole role) const;
  int devices() const;
  /// `policy+rollout+reference on 32 h100 | critic on 32 h100, sync`.
  std::string describe(const PlanRequest& request) const;
  /// Whether `troupe train` of this build can place it: trained roles share one set and have no
  /// cut experts; rollout shares it when synchronous, and has its own otherwise.
  bool is_runnable() const;
};

/// Whether spreading devices over the nodes on offer differs from packing them.
bool can_spread(const PlanRequest& request);

/// The job that simulates a candidate.
SimJob job_of(const PlanRequest& request, const Candidate& candidate);

/// How an offer's nodes look to a run that may take all its devices: as many to a node as the
/// placement core puts there. The other devices of a node are another's, and its adapter is not.
result<DeviceSpec> device_as_placed(const DeviceOffer& offer, placement::Strategy strategy);

}  // namespace troupe::sim

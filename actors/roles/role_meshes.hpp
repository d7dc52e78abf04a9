#pragma once

// The meshes over which roles are laid out.
//
// Each group cuts its devices in its own way: trained roles into {pp, dp, tp}, rollout groups into
// {dp, tp}. Rows of a call are split over dp; tensor and pipeline peers get the same rows. Rank i
// of a trained role sits on device i. Rollout ranks share these devices, and are then put where
// most of what they hold is trained (see `rollout_devices`), or have devices of their own.
// **Threads:** pure functions.
// **Invariants:** rank numbers are those of `ParallelOptions` and of reshard/rosters.hpp.

#include "actors/train/train_options.hpp"
#include "runtime/group/mesh.hpp"

#include <string>
#include <vector>

namespace troupe::actors {

/// {pp, dp, tp} over `devices`; kConfig naming both numbers when tp·pp does not divide them.
result<runtime::Mesh> train_mesh(const ParallelOptions& parallel, int devices);
/// {dp, tp} over `devices`; kConfig naming both numbers when tp does not divide them.
result<runtime::Mesh> rollout_mesh(int tp, int devices);
/// [count] Devices from `begin` on.
std::vector<int> devices_from(int begin, int count);
/// [devices] The device of each rollout rank: the nested groups of reshard/nested_groups.hpp where
/// rollout tp divides the policy's tp, so that what a device trains is a part of what it serves;
/// else rank i on device i. Both meshes must have been made.
std::vector<int> rollout_devices(const ParallelOptions& policy, int tp, int devices);

/// One rollout group: its name and the device of each of its ranks.
struct RolloutSeat {
  std::string name;
  std::vector<int> devices;
  bool lent = false;  ///< on the trainer's devices beside a pool of its own
  bool operator==(const RolloutSeat&) const = default;
};

/// What rollout groups are seated by.
struct RolloutPool {
  ParallelOptions policy;  ///< its mesh
  int tp = 1;              ///< ranks of one rollout engine
  int devices = 1;         ///< of the trained roles
  int own = 0;             ///< of rollout alone; 0: the trained roles'
  int evaluation = 0;
  bool streaming = false;  ///< a group for each engine
  bool lend = false;       ///< besides the own pool, engines on the trained roles' devices
};

/// The rollout groups: one named `rollout`, or `rollout-0`, `rollout-1`, … when streaming. kConfig
/// naming both numbers when devices cannot be cut into engines.
result<std::vector<RolloutSeat>> rollout_seats(const RolloutPool& pool);
/// `evaluation`: one group on the devices behind all others.
result<RolloutSeat> evaluation_seat(const RolloutPool& pool);

}  // namespace troupe::actors

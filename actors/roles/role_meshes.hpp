#pragma once

// The meshes over which roles are laid out.
//
// All groups of a world use the same devices, and each cuts them in its own way: trained roles into
// {pp, dp, tp}, the rollout role into {dp, tp}. Rows of a call are split over dp; tensor and
// pipeline peers get the same rows. Rank i sits on device i, but for rollout ranks, which are put
// where most of what they hold is trained (see `rollout_devices`).
// **Threads:** pure functions.
// **Invariants:** rank numbers are those of `ParallelOptions` and of reshard/rosters.hpp.

#include "actors/train/train_options.hpp"
#include "runtime/group/mesh.hpp"

#include <vector>

namespace troupe::actors {

/// {pp, dp, tp} over `devices`; kConfig naming both numbers when tp·pp does not divide them.
result<runtime::Mesh> train_mesh(const ParallelOptions& parallel, int devices);
/// {dp, tp} over `devices`; kConfig naming both numbers when tp does not divide them.
result<runtime::Mesh> rollout_mesh(int tp, int devices);
/// [devices] The device of each rollout rank: the nested groups of reshard/nested_groups.hpp where
/// rollout tp divides the policy's tp, so that what a device trains is a part of what it serves;
/// else rank i on device i. Both meshes must have been made.
std::vector<int> rollout_devices(const ParallelOptions& policy, int tp, int devices);

}  // namespace troupe::actors

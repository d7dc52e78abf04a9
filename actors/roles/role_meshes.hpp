#pragma once

// The meshes over which roles are laid out.
//
// All groups of a world use the same devices, rank i on device i, and each cuts them in its own
// way: trained roles into {pp, dp, tp}, the rollout role into {dp, tp}. Rows of a call are split
// over dp; tensor and pipeline peers get the same rows.
// **Threads:** pure functions.
// **Invariants:** rank numbers are those of `ParallelOptions` and of reshard/rosters.hpp.

#include "actors/train/train_options.hpp"
#include "runtime/group/mesh.hpp"

namespace troupe::actors {

/// {pp, dp, tp} over `devices`; kConfig naming both numbers when tp·pp does not divide them.
result<runtime::Mesh> train_mesh(const ParallelOptions& parallel, int devices);
/// {dp, tp} over `devices`; kConfig naming both numbers when tp does not divide them.
result<runtime::Mesh> rollout_mesh(int tp, int devices);

}  // namespace troupe::actors

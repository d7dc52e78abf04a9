#pragma once

// Moves of running bundles that would let a waiting group run. A suggestion: nothing is moved.
//
// **Threads:** pure functions on values.
// **Invariants:** carried out in order on the cluster it was made for, every move is legal (the
// moved group keeps its strategy) and the waiting group then has the place named.
// **Cost:** `tries_max` × `moves_max` searches at most, each on a copy of the cluster: not for the
// hot path.

#include "placement/scheduler.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::placement {

struct Move {
  std::string group;
  BundlePlacement from;
  BundlePlacement to;
};

struct Defragmentation {
  std::vector<Move> moves;
  std::vector<BundlePlacement> bundles;  ///< where the waiting group would go
};

struct DefragmentOptions {
  SearchOptions search = {};
  std::size_t moves_max = 64;
  std::size_t tries_max = 32;  ///< places for the waiting group that are looked at
};

/// kNotFound when no suggestion was found within the options (there may be one), and when the group
/// needs none because it fits.
result<Defragmentation> suggest_moves(const Cluster& cluster, const GroupRequest& request,
                                      const DefragmentOptions& options = {});

}  // namespace troupe::placement

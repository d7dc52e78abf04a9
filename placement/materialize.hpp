#pragma once

// From a plan (nodes and devices) to placements a user can act on: bundle numbers in order of
// place, cores near the devices, the nearest network card.
//
// **Threads:** pure functions. For the .cpp files of this folder.
// **Invariants:** among bundles of one shape, a smaller number has a smaller (node, device).

#include "placement/backtrack.hpp"
#include "placement/problem.hpp"

#include <vector>

namespace troupe::placement {

/// `plan` has one entry per missing bundle, in the order of shapes. Sorted by bundle.
std::vector<BundlePlacement> materialize(const Problem& problem, Plan plan);

/// The same for the only bundle of a group.
BundlePlacement materialize_one(const Cluster& cluster, const GroupRequest& request,
                                const Demand& demand, const Given& given, View view);

/// Takes `units` of core time from `free` (units per core): whole cores that are free, adjacent
/// where possible, the rest of one core that is shared already, and split over what is left when
/// nothing else is. Sockets in the order given, `quota` from each first.
std::vector<CoreShare> choose_cores(
    const NodeSpec& node, std::vector<std::int32_t>& free, std::int64_t units,
    const std::vector<std::pair<std::int32_t, std::int64_t>>& quota);

}  // namespace troupe::placement

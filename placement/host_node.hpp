#pragma once

// A host as its agent found it, described as a node for placement; and back: where a rank of a
// bundle runs on that host.
//
// **Threads:** pure functions.
// **Invariants:** core i of the node is the i-th core of the host in order of socket and number;
// a host that claims more CPUs than it has cores (`--cpus`) has cores that are nobody's, and a
// bundle with one of them is not pinned.

#include "placement/bundle.hpp"
#include "placement/topology.hpp"
#include "runtime/base/result.hpp"
#include "runtime/cluster/agent_core.hpp"
#include "runtime/cluster/host_inventory.hpp"

#include <string>

namespace troupe::placement {

/// kInvalidArgument when it does not make a node, e.g. for a bad name.
result<NodeSpec> node_of_host(const runtime::HostInventory& host, const std::string& name);

/// Cores, devices and memory of a bundle on its host.
runtime::RankPlace rank_place_on(const runtime::HostInventory& host,
                                 const BundlePlacement& placement);

}  // namespace troupe::placement

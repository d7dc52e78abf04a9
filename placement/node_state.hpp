#pragma once

// What a node has and what is free on it, in integers that a search can copy and undo.
//
// **Threads:** value types.
// **Invariants:** free ≤ capacity in every component; `offered` is what new bundles may take: free
// without failed devices and without what is held for a waiting group.

#include "placement/topology.hpp"
#include "runtime/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::placement {

/// Which resources a search may use.
enum class View : std::uint8_t {
  kFree,      ///< what is free and not held
  kCapacity,  ///< what might be free if other groups ended, without what is held
  kEmpty,     ///< the nodes as if nobody held anything
};

/// Amounts in units of 1/10,000; memory in bytes.
struct NodeFree {
  std::vector<std::int32_t> devices;  ///< per device, at most one whole
  std::vector<std::int64_t> cpu;      ///< per socket
  std::int64_t memory = 0;
  std::vector<std::int64_t> named;  ///< by the cluster's index of names; missing at the end: none

  bool operator==(const NodeFree&) const = default;
};

/// The few numbers of a node that most questions need, packed for a scan over all nodes.
struct NodeSummary {
  std::int64_t cpu = 0;  ///< all sockets
  std::int64_t memory = 0;
  std::int32_t whole_devices = 0;  ///< wholly free
  std::int32_t largest_share = 0;  ///< units free on the device with most
  std::int32_t gpu_units = 0;      ///< units free on all devices
  bool accepts = false;            ///< not draining
  bool has_devices = false;

  bool operator==(const NodeSummary&) const = default;
};

NodeSummary summary_of(const NodeFree& free, bool accepts);

struct NodeState {
  NodeSpec spec;
  NodeId id = {};
  std::int32_t rack = 0;                        ///< index in TopologyTree::racks
  std::int32_t domain = 0;                      ///< index in TopologyTree::domains
  NodeFree capacity = {};                       ///< without failed devices
  NodeFree free = {};                           ///< truly free, failed devices included
  std::vector<std::int32_t> cores = {};         ///< units free per core
  std::vector<std::uint8_t> core_sockets = {};  ///< socket of each core

  bool operator==(const NodeState&) const = default;
};

/// Racks and domains as runs of the natural order of nodes.
struct TopologyTree {
  struct Domain {
    std::string name;  ///< of the node when the node is its own domain
    std::int32_t rack = 0;
    std::size_t begin = 0;  ///< positions of nodes
    std::size_t end = 0;
    bool operator==(const Domain&) const = default;
  };
  struct Rack {
    std::string name;
    std::size_t begin = 0;  ///< positions of nodes
    std::size_t end = 0;
    std::size_t domain_begin = 0;
    std::size_t domain_end = 0;
    bool operator==(const Rack&) const = default;
  };
  std::vector<Rack> racks;
  std::vector<Domain> domains;
};

}  // namespace troupe::placement

#pragma once

// The state of a cluster: nodes, what is free on each, and the groups that hold something.
//
// A value: a copy is a snapshot, `version` tells whether it is stale. The scheduler allocates in
// it; a service that reserves over the network allocates first and releases when a node refuses.
// **Threads:** belongs to one owner.
// **Invariants:** no device, core, byte or named thing is given twice; a refused call changes
// nothing; every order is by name, never by the order nodes or groups came in.
// **Cost:** allocate and release: what changes, plus a logarithm of the number of groups.
// A node that joins, leaves or changes: linear in the number of nodes.

#include "placement/bundle.hpp"
#include "placement/node_state.hpp"
#include "placement/topology.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::placement {

/// A group that holds bundles; some may be missing while it is repaired.
struct ActiveGroup {
  GroupRequest request;
  std::map<std::int32_t, BundlePlacement> bundles;

  bool is_complete() const { return bundles.size() == request.bundles.size(); }
};

using ActiveGroups = std::map<std::string, ActiveGroup, std::less<>>;

/// A bundle that went with its node.
struct LostBundle {
  std::string group;
  std::int32_t bundle = 0;

  auto operator<=>(const LostBundle&) const = default;
};

class Cluster {
 public:
  /// A cluster of these nodes; ids follow the list. Errors as add_node.
  static result<Cluster> create(std::vector<NodeSpec> nodes);

  /// kAlreadyExists for a taken name, kInvalidArgument for a bad spec, kResourceExhausted at
  /// kNodesMax. Ids are never used twice.
  result<NodeId> add_node(NodeSpec spec);
  /// As add_node with an id from elsewhere, e.g. a ledger; kAlreadyExists when the id was used.
  result<void> add_node(NodeSpec spec, NodeId id);
  /// Its bundles are taken from their groups and returned, by group and bundle; a group that held
  /// nothing else stays, empty, until it is released.
  result<std::vector<LostBundle>> remove_node(NodeId id);
  result<void> set_draining(NodeId id, bool draining);
  result<void> set_device_failed(NodeId id, std::int32_t device, bool failed);

  /// Counts every change; equal versions of one history are equal states.
  std::uint64_t version() const { return version_; }
  /// Counts changes of nodes only: what could never fit may fit when it grows.
  std::uint64_t topology_version() const { return topology_version_; }

  std::size_t node_count() const { return nodes_.size(); }
  std::optional<NodeId> find_node(std::string_view name) const;
  /// Null when there is no such node. Valid until nodes are added or removed.
  const NodeState* node(NodeId id) const;
  /// Nodes in natural order of (rack, domain, name).
  std::span<const NodeState> nodes() const { return nodes_; }
  const TopologyTree& tree() const { return tree_; }

  /// Gives all of `bundles` to the group, which is made when it is new; `request` replaces the
  /// group's request. kConflict names node, resource, wanted and free; kAlreadyExists: the group
  /// holds that bundle.
  result<void> allocate(const GroupRequest& request, std::span<const BundlePlacement> bundles);
  /// Takes the group with all its bundles out; kNotFound for an unknown name.
  result<void> release(std::string_view group);
  /// Takes some bundles; the group stays. kNotFound names group and bundle.
  result<void> release_bundles(std::string_view group, std::span<const std::int32_t> bundles);

  /// Gives one bundle up and takes another place for it; nothing changes on error.
  result<void> allocate_moved(const GroupRequest& request, const BundlePlacement& from,
                              const BundlePlacement& to);

  const ActiveGroups& groups() const { return groups_; }
  const ActiveGroup* group(std::string_view name) const;

  /// CHECKs every sum against what groups hold; for tests and simulation.
  void check_invariants() const;

  // For the scheduler and the search.

  /// By position; `nodes()[i]` is the node at position i.
  std::span<const NodeSummary> summaries(View view) const;
  /// What a node offers in this view, when that needs no computing; else null.
  const NodeFree* plain_free(std::size_t position, View view) const;
  NodeFree free_at(std::size_t position, View view) const;
  /// Keeps the place of a waiting group from others until `clear_holds`. Does not touch versions.
  void hold(std::span<const BundlePlacement> bundles);
  void clear_holds();
  /// Index of a named resource in NodeFree::named; empty when no node has it.
  std::optional<std::size_t> named_index(std::string_view name) const;
  std::size_t position_of(NodeId id) const;  ///< CHECKs that the node exists
  /// Names of active groups that want to be strictly apart from `group`.
  const std::set<std::string>* kept_apart_from(std::string_view group) const;

 private:
  static constexpr std::int32_t kUnusedId = -2;
  static constexpr std::int32_t kGoneId = -1;
  result<void> insert(NodeSpec spec, NodeId id);
  void rebuild();
  void refresh(std::size_t position);
  void refresh_capacity(std::size_t position);
  void subtract_hold(std::size_t position, NodeFree& free) const;
  NodeState& state_of(NodeId id) { return nodes_[position_of(id)]; }
  result<void> take(const BundlePlacement& bundle, std::string_view group);
  void give_back(const BundlePlacement& bundle);
  void forget_affinities(const GroupRequest& request);
  void learn_affinities(const GroupRequest& request);

  std::vector<NodeState> nodes_;  ///< natural order
  std::vector<NodeSummary> offered_;
  std::vector<NodeSummary> offered_capacity_;
  std::vector<NodeSummary> capacity_;
  std::vector<std::uint8_t> plain_;      ///< neither failed devices nor a hold
  std::vector<std::int32_t> positions_;  ///< by NodeId, or one of the two above
  std::map<std::string, NodeId, std::less<>> ids_;
  std::map<std::string, std::size_t, std::less<>> named_;
  std::map<std::size_t, NodeFree> holds_;  ///< by position
  TopologyTree tree_;
  ActiveGroups groups_;
  std::map<std::string, std::set<std::string>, std::less<>> kept_apart_;
  std::uint64_t version_ = 0;
  std::uint64_t topology_version_ = 0;
};

}  // namespace troupe::placement

#pragma once

// The conditions of a group apart from free resources: which nodes a bundle may use, and how many
// bundles may share a domain. The search, `check_placement` and `explain` all ask here.
//
// **Ownership:** keeps references to cluster and request; keep those alive and unchanged.
// **Threads:** const functions; belongs to one owner. For the .cpp files of this folder.

#include "placement/bundle.hpp"
#include "placement/cluster.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace troupe::placement {

/// Numbers the domains of one level densely, in natural order.
class DomainIndex {
 public:
  DomainIndex(const Cluster& cluster, Level level);

  /// Socket and device matter only at their level.
  std::int32_t of(std::size_t position, std::int32_t socket, std::int32_t device) const {
    const NodeState& node = cluster_->nodes()[position];
    if (level_ == Level::kRack) return node.rack;
    if (level_ == Level::kDomain) return node.domain;
    if (level_ == Level::kNode) return static_cast<std::int32_t>(position);
    return first_[position] + (level_ == Level::kSocket ? socket : device);
  }
  std::size_t count() const { return count_; }
  Level level() const { return level_; }
  /// `node gpu-1`, `socket 1 of gpu-1`.
  std::string name(std::int32_t domain) const;

 private:
  const Cluster* cluster_;
  Level level_;
  std::size_t count_ = 0;
  std::vector<std::int32_t> first_;  ///< per node, at socket and device level
};

/// How many bundles of the group may share a domain of the level.
struct DomainRules {
  std::int32_t most = std::numeric_limits<std::int32_t>::max();
  std::int32_t exact = 0;  ///< 0: any number
  bool single = false;     ///< all in one domain

  /// Whether one more bundle may join a domain that holds `here`, `elsewhere` lying in others.
  bool may_join(std::int32_t here, std::int32_t elsewhere) const {
    return here < most && (!single || elsewhere == 0);
  }
  /// Whether a domain may stay as it is when all bundles are placed.
  bool may_stay(std::int32_t here) const { return exact == 0 || here == 0 || here == exact; }
};
DomainRules rules_of(const GroupRequest& request);

/// Which nodes the bundles of a group may use.
class NodeRules {
 public:
  struct Verdict {
    enum class Kind : std::uint8_t { kAllowed, kDraining, kSelector, kAffinity };
    Kind kind = Kind::kAllowed;
    const LabelSelector* selector = nullptr;  ///< kSelector
    std::string group = {};                   ///< kAffinity: the other group
    bool apart = false;                       ///< kAffinity
  };

  /// Without affinities when `look_at_groups` is false.
  NodeRules(const Cluster& cluster, const GroupRequest& request, bool look_at_groups);

  bool has_affinities() const { return !strict_.empty(); }
  bool has_wishes() const { return !wishes_.empty(); }
  /// Strict affinities only.
  bool near_enough(std::size_t position) const { return all_hold(strict_, position); }
  /// Soft affinities only.
  bool wish_holds(std::size_t position) const { return all_hold(wishes_, position); }
  Verdict verdict(const Bundle& bundle, std::size_t position) const;

 private:
  struct Rule {
    std::string group;
    Level level;
    bool apart;
    std::vector<std::uint8_t> occupied;  ///< by domain of `level`
  };
  bool holds(const Rule& rule, std::size_t position) const;
  bool all_hold(const std::vector<Rule>& rules, std::size_t position) const;
  Rule rule_about(const std::string& group, Level level, bool apart) const;

  const Cluster* cluster_;
  std::vector<Rule> strict_;
  std::vector<Rule> wishes_;
};

}  // namespace troupe::placement

#pragma once

// One group as the search sees it: bundles of the same shape together, resources as integers, and
// what bundles that have a place already mean for the rest.
//
// **Ownership:** keeps references to cluster, request and kept bundles.
// **Threads:** value type. For the .cpp files of this folder.

#include "placement/bundle.hpp"
#include "placement/cluster.hpp"
#include "placement/constraints.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace troupe::placement {

using Kept = std::map<std::int32_t, BundlePlacement>;

inline constexpr std::int32_t kOneDevice = static_cast<std::int32_t>(Amount::kUnitsPerOne);

/// What one bundle takes: whole devices or a fraction of one, never both.
struct Demand {
  std::int32_t whole = 0;
  std::int32_t fraction = 0;  ///< units
  std::int64_t cpu = 0;       ///< units
  std::int64_t memory = 0;
  std::vector<std::pair<std::size_t, std::int64_t>> named = {};  ///< index in NodeFree::named
  bool unknown_named = false;  ///< no node of the cluster has such a resource

  std::int64_t gpu_units() const {
    return static_cast<std::int64_t>(whole) * kOneDevice + fraction;
  }
  bool operator==(const Demand&) const = default;
};
Demand demand_of(const Cluster& cluster, const Resources& needs);

/// Bundles that ask for the same.
struct Shape {
  Demand demand;
  std::vector<std::int32_t> bundles;        ///< that have no place yet, ascending
  std::int32_t sample = 0;                  ///< one of them
  std::vector<std::uint8_t> eligible = {};  ///< by position; set for each wish
};

struct Problem {
  const Cluster* cluster = nullptr;
  const GroupRequest* request = nullptr;
  const Kept* kept = nullptr;
  View view = View::kFree;
  DomainIndex domains;
  DomainRules rules;
  std::vector<Shape> shapes;       ///< hardest first
  std::vector<std::int32_t> base;  ///< kept bundles per domain of the level
  std::int32_t kept_count = 0;
  std::int32_t missing = 0;
  bool wants_gpu = false;  ///< any bundle, kept ones included

  Problem(const Cluster& cluster_in, const GroupRequest& request_in, const Kept& kept_in,
          View view_in);
  Level level() const { return domains.level(); }
  bool packs() const { return is_pack(request->strategy); }
};

/// Where a bundle may go: a node, or a socket or device of it at those levels.
struct Site {
  std::int32_t position = 0;
  std::int32_t socket = -1;
  std::int32_t device = -1;
  std::int32_t domain = 0;  ///< of the level
};

/// The sites of all nodes in natural order, with the run of each node. Down to node level a site is
/// a node, and nothing is stored.
class SiteList {
 public:
  explicit SiteList(const Problem& problem);

  std::size_t size() const { return by_node_ ? nodes_ : sites_.size(); }
  Site operator[](std::size_t i) const {
    if (!by_node_) return sites_[i];
    return {.position = static_cast<std::int32_t>(i), .domain = domains_->of(i, 0, 0)};
  }
  /// First site of the node at a position; one past the last node: the end.
  std::size_t begin_of(std::size_t position) const {
    return by_node_ ? position : begin_[position];
  }

 private:
  const DomainIndex* domains_;
  std::size_t nodes_;
  bool by_node_;
  std::vector<Site> sites_;
  std::vector<std::size_t> begin_;
};

}  // namespace troupe::placement

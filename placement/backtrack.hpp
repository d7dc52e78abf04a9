#pragma once

// Depth-first search over (bundle, site, device of a fraction): complete, with a budget.
//
// Bundles go in the order of shapes, hardest first. What symmetry makes equal is tried once:
// bundles of one shape take sites in ascending order, of nodes that are alike and untouched only
// the first is tried, of devices with the same room only the lowest. Branches that cannot beat the
// best place known are cut.
// **Ownership:** keeps references to problem, sites and state.
// **Threads:** belongs to one owner. For the .cpp files of this folder.
// **Invariants:** the state is as before when `run` returns.

#include "placement/count_fill.hpp"
#include "placement/place.hpp"
#include "placement/problem.hpp"
#include "placement/search_state.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::placement {

/// Groups with more bundles are not searched: the search is a recursion over bundles.
inline constexpr std::size_t kBacktrackBundlesMax = 1024;

/// What the missing bundles got, in the order of shapes and of bundles in each.
using Plan = std::vector<Given>;

/// Cost without the wishes, over kept and new bundles: (level domains, most in one, racks,
/// domains, nodes), as in PlacementCost.
using CountCost = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::int32_t>;

/// Keeps the counts that the cost is made of while bundles come and go.
class CostCounter {
 public:
  explicit CostCounter(const Problem& problem);
  void add(const Site& site) { change(site, 1); }
  void remove(const Site& site) { change(site, -1); }
  std::int32_t here(const Site& site) const {
    return level_[static_cast<std::size_t>(site.domain)];
  }
  std::int32_t total() const { return total_; }
  bool is_node_used(std::size_t position) const { return nodes_[position] > 0; }
  /// Bundles that domains in use still need to reach `exact`.
  std::int32_t deficit(std::int32_t exact) const { return level_used_ * exact - total_; }
  /// No place that completes this one, `left` bundles later, costs less.
  CountCost bound(std::int32_t left) const;

 private:
  void change(const Site& site, std::int32_t by);

  const Problem& problem_;
  std::vector<std::int32_t> level_, racks_, domains_, nodes_;
  std::vector<std::int32_t> heights_;  ///< domains by number of bundles
  std::int32_t level_used_ = 0, racks_used_ = 0, domains_used_ = 0, nodes_used_ = 0;
  std::int32_t most_ = 0;
  std::int32_t total_ = 0;
};

class Backtrack {
 public:
  Backtrack(const Problem& problem, const SiteList& sites, SearchState& state);

  /// kFound: `plan` is the best place met (with `below`: it costs less than that). kNone: there is
  /// none. kBudget: unknown. After the first place, `improve_steps_max` more steps look for better.
  PlaceOutcome run(std::size_t steps_max, std::size_t improve_steps_max,
                   const std::optional<CountCost>& below);

  const Plan& plan() const { return best_; }
  CountCost cost() const { return *limit_; }
  std::size_t steps() const { return steps_; }

 private:
  void find_alike();
  bool is_repeated(std::size_t site) const;
  bool may_complete(std::size_t next) const;
  void search(std::size_t next, std::size_t first_site);
  void try_site(std::size_t next, std::size_t candidate, const Demand& demand);
  void descend(std::size_t next, std::size_t candidate, const Demand& demand, std::int32_t device);

  const Problem& problem_;
  const SiteList& sites_;
  SearchState& state_;
  CostCounter counter_;
  std::vector<const Shape*> order_;      ///< per missing bundle
  std::vector<std::size_t> candidates_;  ///< sites, natural order
  std::vector<std::int32_t> alike_;      ///< per position: the node before it that is alike, or -1
  std::vector<std::int32_t> touched_;    ///< per position: bundles of this search
  Plan path_;
  Plan best_;
  bool found_ = false;
  std::optional<CountCost> limit_;
  std::size_t steps_ = 0;
  std::size_t steps_max_ = 0;
  std::size_t improve_steps_max_ = 0;
  bool out_of_budget_ = false;
};

}  // namespace troupe::placement

#pragma once

// Finding a place for one group: the search behind the scheduler.
//
// Wishes are dropped one after the other until a place is found: soft affinities, then keeping a
// group without GPUs off nodes with GPUs. Within that, domains of the request's level count first
// (fewest for PACK, most for SPREAD), then racks, domains and nodes (fewest), then best fit.
//  1. Counting: for bundles of one shape it is complete at any size, because the tree is laminar.
//     Shapes after each other give a place for mixed groups, mostly a good one.
//  2. Backtracking, bounded by `steps_max`: finds what counting missed, proves that there is none,
//     and in small clusters improves the cost to the optimum.
// **Ownership:** a `Placer` keeps scratch memory and caches between calls.
// **Threads:** belongs to one owner.
// **Invariants:** the outcome depends on cluster, request and options only; kNone is a proof.
// **Cost:** about 10 ns per node and shape when counting; backtracking up to `steps_max` steps.

#include "placement/bundle.hpp"
#include "placement/cluster.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::placement {

struct SearchOptions {
  std::size_t steps_max = 20'000;         ///< of backtracking, each wish anew
  std::size_t improve_steps_max = 4'000;  ///< to improve a place that was found
  std::size_t improve_sites_max = 32;     ///< no improvement with more nodes (sockets, devices)
  std::size_t improve_bundles_max = 16;   ///< nor with more missing bundles
};

/// Lower is better, compared from the top. Of the whole group, kept bundles included.
struct PlacementCost {
  bool breaks_wish = false;        ///< a soft affinity is broken
  bool uses_gpu_nodes = false;     ///< by a group that needs none
  std::int32_t level_domains = 0;  ///< PACK: domains used; SPREAD: minus those
  std::int32_t level_most = 0;     ///< SPREAD: most bundles in one domain
  std::int32_t racks = 0;
  std::int32_t domains = 0;
  std::int32_t nodes = 0;

  auto operator<=>(const PlacementCost&) const = default;
};

/// Of bundles that all have a place.
PlacementCost cost_of(const Cluster& cluster, const GroupRequest& request,
                      std::span<const BundlePlacement> bundles);

enum class PlaceOutcome : std::uint8_t {
  kFound,
  kNone,    ///< proof: there is no place
  kBudget,  ///< the budget ended before a place or a proof
};

struct PlaceResult {
  PlaceOutcome outcome = PlaceOutcome::kNone;
  std::vector<BundlePlacement> bundles = {};  ///< the missing ones, by bundle
  PlacementCost cost = {};
  std::size_t steps = 0;
};

class Placer {
 public:
  explicit Placer(SearchOptions options = {});
  ~Placer();
  Placer(const Placer&) = delete;
  Placer& operator=(const Placer&) = delete;

  /// Places the bundles that `kept` does not hold. The request has passed `validate`; CHECKs that
  /// each kept node exists. A strict affinity to a group that is not active: kNone, but
  /// View::kEmpty does not look at affinities. View::kCapacity prefers what is free now.
  PlaceResult place(const Cluster& cluster, const GroupRequest& request,
                    const std::map<std::int32_t, BundlePlacement>& kept, View view);

 private:
  struct Scratch;
  PlaceResult place_single(const Cluster& cluster, const GroupRequest& request, View view);

  SearchOptions options_;
  std::unique_ptr<Scratch> scratch_;
};

/// The one check of all strategies, levels, selectors and affinities, over a whole placement.
/// kConflict names bundle, place and condition. Does not look at free resources.
result<void> check_placement(const Cluster& cluster, const GroupRequest& request,
                             std::span<const BundlePlacement> bundles);

}  // namespace troupe::placement

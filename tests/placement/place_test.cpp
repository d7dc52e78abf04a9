// Proves that the search finds a place exactly when there is one, and the cheapest, by comparing it
// with a brute-force placer on thousands of random small cases: unequal nodes, fractions, labels,
// all strategies and levels, numbers per domain, affinities, bundles that are kept, failed devices.
// Every place is also checked by the constraint evaluator and by giving it to the cluster.

#include "placement/place.hpp"

#include "placement/scheduler.hpp"
#include "tests/placement/brute_force.hpp"
#include "tests/placement/random_case.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace troupe::placement {
namespace {

using testing::BruteForce;
using testing::RandomCase;

using Kept = std::map<std::int32_t, BundlePlacement>;

/// TROUPE_PLACEMENT_SEED moves the range, TROUPE_PLACEMENT_CASES sets its length.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

std::string describe(const PlacementCost& cost) {
  return "wish " + std::to_string(cost.breaks_wish) + " gpu nodes " +
         std::to_string(cost.uses_gpu_nodes) + " level " + std::to_string(cost.level_domains) +
         " most " + std::to_string(cost.level_most) + " racks " + std::to_string(cost.racks) +
         " domains " + std::to_string(cost.domains) + " nodes " + std::to_string(cost.nodes);
}

std::string describe(const Cluster& cluster, const GroupRequest& request) {
  std::string text = std::string(strategy_name(request.strategy)) + " " +
                     std::string(level_name(request.level)) + " max " +
                     std::to_string(request.per_domain_max) + " exact " +
                     std::to_string(request.per_domain_exact) + "\n";
  for (const Bundle& bundle : request.bundles) {
    text += "  " + to_string(bundle.resources);
    for (const LabelSelector& selector : bundle.selectors) text += " [" + to_string(selector) + "]";
    text += "\n";
  }
  for (std::size_t i = 0; i < cluster.node_count(); ++i) {
    const NodeState& node = cluster.nodes()[i];
    const NodeFree free = cluster.free_at(i, View::kFree);
    text += "  " + node.spec.name + " rack " + node.spec.rack + " domain " + node.spec.domain +
            (node.spec.draining ? " draining" : "") + " devices";
    for (std::size_t d = 0; d < free.devices.size(); ++d)
      text +=
          " " + std::to_string(free.devices[d]) + "@" + std::to_string(node.spec.devices[d].socket);
    text += " cpu";
    for (const std::int64_t cpu : free.cpu) text += " " + std::to_string(cpu);
    text += " memory " + std::to_string(free.memory) + "\n";
  }
  return text;
}

/// A cluster with a few groups on it, as random placements left it.
Cluster busy_cluster(RandomCase& random, std::vector<std::string>& groups) {
  Cluster cluster = Cluster::create(random.nodes(1 + random.below(6))).value();
  Scheduler scheduler;
  for (std::int32_t i = random.below(5); i > 0; --i) {
    GroupRequest request = random.request("old" + std::to_string(i), 1 + random.below(3), groups);
    if (!validate(request)) continue;
    const Decision decision = scheduler.place_one(cluster, request);
    if (decision.kind == DecisionKind::kPlaced) groups.push_back(request.name);
  }
  return cluster;
}

/// Fewer bundles where every device is a choice, so that the oracle stays in bounds.
std::int32_t bundles_max(const Cluster& cluster) {
  std::size_t sites = 0;
  for (const NodeState& node : cluster.nodes())
    sites += std::max<std::size_t>(node.spec.devices.size(), 1);
  return sites <= 8 ? 6 : (sites <= 14 ? 5 : 4);
}

void expect_order(const GroupRequest& request, const std::vector<BundlePlacement>& bundles,
                  const Cluster& cluster) {
  for (std::size_t i = 0; i < bundles.size(); ++i) {
    for (std::size_t j = i + 1; j < bundles.size(); ++j) {
      const auto of = [&](const BundlePlacement& b) {
        return request.bundles[static_cast<std::size_t>(b.bundle)];
      };
      if (of(bundles[i]) != of(bundles[j])) continue;
      const auto key = [&](const BundlePlacement& b) {
        return std::pair(cluster.position_of(b.node),
                         b.devices.empty() ? -1 : b.devices.front().device);
      };
      EXPECT_LE(key(bundles[i]), key(bundles[j]))
          << "bundles " << bundles[i].bundle << ", " << bundles[j].bundle;
    }
  }
}

struct Tally {
  int found = 0;
  int none = 0;
  int mixed = 0;
};

void compare(Cluster& cluster, const GroupRequest& request, const Kept& kept, Tally& tally) {
  Placer placer;
  const PlaceResult place = placer.place(cluster, request, kept, View::kFree);
  const BruteForce oracle(cluster, request, kept, false);
  ASSERT_NE(place.outcome, PlaceOutcome::kBudget) << describe(cluster, request);
  ASSERT_EQ(place.outcome == PlaceOutcome::kFound, oracle.best().has_value())
      << describe(cluster, request);
  const PlaceResult ever = placer.place(cluster, request, kept, View::kEmpty);
  const BruteForce empty_oracle(cluster, request, kept, true);
  ASSERT_EQ(ever.outcome == PlaceOutcome::kFound, empty_oracle.best().has_value())
      << describe(cluster, request);
  (place.outcome == PlaceOutcome::kFound ? tally.found : tally.none) += 1;
  if (place.outcome != PlaceOutcome::kFound) return;
  ASSERT_EQ(place.cost, *oracle.best())
      << "found " << describe(place.cost) << "\nbest  " << describe(*oracle.best()) << "\n"
      << describe(cluster, request);
  std::vector<BundlePlacement> whole = place.bundles;
  for (const auto& [index, bundle] : kept) whole.push_back(bundle);
  ASSERT_EQ(whole.size(), request.bundles.size());
  const auto checked = check_placement(cluster, request, whole);
  ASSERT_TRUE(checked) << checked.error().message;
  expect_order(request, place.bundles, cluster);
  const auto taken = cluster.allocate(request, place.bundles);
  ASSERT_TRUE(taken) << taken.error().message;
  cluster.check_invariants();
}

TEST(Place, AgreesWithBruteForceOnRandomCases) {
  const std::uint64_t first = from_environment("TROUPE_PLACEMENT_SEED", 1);
  const std::uint64_t cases = from_environment("TROUPE_PLACEMENT_CASES", 3000);
  Tally tally;
  for (std::uint64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCase random(seed);
    std::vector<std::string> groups;
    Cluster cluster = busy_cluster(random, groups);
    const GroupRequest request =
        random.request("new", 1 + random.below(bundles_max(cluster)), groups);
    if (!validate(request)) continue;
    compare(cluster, request, {}, tally);
    if (HasFatalFailure() || HasFailure()) return;
  }
  EXPECT_GT(tally.found, static_cast<int>(cases) / 5);
  EXPECT_GT(tally.none, static_cast<int>(cases) / 20);
}

TEST(Place, AgreesWithBruteForceWhenSomeBundlesAreKept) {
  const std::uint64_t first = from_environment("TROUPE_PLACEMENT_SEED", 1) + 1'000'000;
  const std::uint64_t cases = from_environment("TROUPE_PLACEMENT_CASES", 3000) / 2;
  Tally tally;
  for (std::uint64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCase random(seed);
    std::vector<std::string> groups;
    Cluster cluster = busy_cluster(random, groups);
    const GroupRequest request =
        random.request("new", 2 + random.below(bundles_max(cluster) - 1), groups);
    if (!validate(request)) continue;
    Placer placer;
    const PlaceResult place = placer.place(cluster, request, {}, View::kFree);
    if (place.outcome != PlaceOutcome::kFound) continue;
    ASSERT_TRUE(cluster.allocate(request, place.bundles));
    std::vector<std::int32_t> lost;
    for (const BundlePlacement& bundle : place.bundles) {
      if (random.chance(0.5)) lost.push_back(bundle.bundle);
    }
    ASSERT_TRUE(cluster.release_bundles("new", lost));
    if (random.chance(0.5)) {  // something else comes in between
      const GroupRequest other = random.request("between", 1, {});
      if (validate(other)) Scheduler().place_one(cluster, other);
    }
    compare(cluster, request, Kept(cluster.group("new")->bundles), tally);
    if (HasFatalFailure() || HasFailure()) return;
  }
  EXPECT_GT(tally.found, static_cast<int>(cases) / 10);
}

/// Large clusters are only counted, not searched; this is what that gives away on small ones.
TEST(Place, CountingAloneStaysNearTheOptimum) {
  const std::uint64_t first = from_environment("TROUPE_PLACEMENT_SEED", 1) + 2'000'000;
  const std::uint64_t cases = from_environment("TROUPE_PLACEMENT_CASES", 3000) / 2;
  SearchOptions options;
  options.improve_sites_max = 0;
  options.improve_steps_max = 0;
  int found = 0;
  int optimal = 0;
  int same_level = 0;
  int worst = 0;
  for (std::uint64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCase random(seed);
    std::vector<std::string> groups;
    Cluster cluster = busy_cluster(random, groups);
    const GroupRequest request =
        random.request("new", 1 + random.below(bundles_max(cluster)), groups);
    if (!validate(request)) continue;
    Placer placer(options);
    const PlaceResult place = placer.place(cluster, request, {}, View::kFree);
    const BruteForce oracle(cluster, request, {}, false);
    ASSERT_EQ(place.outcome == PlaceOutcome::kFound, oracle.best().has_value());
    if (place.outcome != PlaceOutcome::kFound) continue;
    ++found;
    ASSERT_EQ(place.cost.breaks_wish, oracle.best()->breaks_wish);
    ASSERT_EQ(place.cost.uses_gpu_nodes, oracle.best()->uses_gpu_nodes);
    const int over = place.cost.level_domains - oracle.best()->level_domains;
    optimal += place.cost == *oracle.best() ? 1 : 0;
    same_level += over == 0 ? 1 : 0;
    worst = std::max(worst, over);
  }
  EXPECT_GT(found, static_cast<int>(cases) / 10);
  EXPECT_LE(worst, 1) << "domains of the level above the fewest";
  EXPECT_GE(same_level * 100, found * 99) << same_level << " of " << found;
  EXPECT_GE(optimal * 100, found * 97) << optimal << " of " << found;
}

}  // namespace
}  // namespace troupe::placement

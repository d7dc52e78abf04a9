// Proves by small examples what the strategies promise: which nodes are filled, in which order
// bundles lie, which devices, cores and network cards they get; and that nothing depends on the
// order in which nodes joined.

#include "placement/place.hpp"
#include "placement/scheduler.hpp"
#include "tests/placement/random_case.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::placement {
namespace {

using ::testing::ElementsAre;

/// `racks` × `domains` × `nodes` nodes of eight devices in two sockets.
std::vector<NodeSpec> grid(int racks, int domains, int nodes) {
  std::vector<NodeSpec> specs;
  for (int i = 0; i < racks * domains * nodes; ++i) {
    NodeSpec spec{.name = fmt::format("node{}", i),
                  .rack = fmt::format("rack{}", i / nodes / domains),
                  .domain = fmt::format("nv{}", i / nodes),
                  .sockets = 2,
                  .cores = 64,
                  .memory = gibibytes(512)};
    for (int d = 0; d < 8; ++d)
      spec.devices.push_back({.socket = d / 4, .nic = fmt::format("mlx5_{}", d)});
    specs.push_back(std::move(spec));
  }
  return specs;
}

Bundle gpus(std::int32_t count, std::int32_t cores = 0) {
  return {.resources = {.gpu = Amount::whole(count), .cpu = Amount::whole(cores)}};
}

GroupRequest group_of(std::size_t count, const Bundle& bundle, Strategy strategy = Strategy::kPack,
                      Level level = Level::kNode, std::string name = "g") {
  return {.name = std::move(name),
          .bundles = std::vector(count, bundle),
          .strategy = strategy,
          .level = level};
}

std::vector<BundlePlacement> place(Cluster& cluster, const GroupRequest& request) {
  Decision decision = Scheduler().place_one(cluster, request);
  EXPECT_EQ(decision.kind, DecisionKind::kPlaced)
      << (decision.error ? decision.error->message : "waits");
  cluster.check_invariants();
  return decision.bundles;
}

std::vector<std::string> nodes_of(const std::vector<BundlePlacement>& bundles) {
  std::vector<std::string> names;
  for (const BundlePlacement& bundle : bundles) names.push_back(bundle.node_name);
  return names;
}

std::map<std::string, int> counts_of(const std::vector<BundlePlacement>& bundles) {
  std::map<std::string, int> counts;
  for (const BundlePlacement& bundle : bundles) ++counts[bundle.node_name];
  return counts;
}

TEST(Strategy, PackFillsWholeNodesInRankOrder) {
  Cluster cluster = Cluster::create(grid(2, 2, 2)).value();
  const auto bundles = place(cluster, group_of(16, gpus(1, 4)));
  for (int i = 0; i < 16; ++i) {
    const BundlePlacement& bundle = bundles[static_cast<std::size_t>(i)];
    EXPECT_EQ(bundle.bundle, i);
    EXPECT_EQ(bundle.node_name, i < 8 ? "node0" : "node1");
    EXPECT_THAT(bundle.devices, ElementsAre(DeviceShare{i % 8, Amount::whole(1)}));
    EXPECT_EQ(bundle.socket, i % 8 / 4);
    EXPECT_EQ(bundle.nic, fmt::format("mlx5_{}", i % 8));
    ASSERT_EQ(bundle.cores.size(), 4U);
    for (const CoreShare& share : bundle.cores)
      EXPECT_EQ(share.core / 32, bundle.socket) << "cores lie beside the device";
  }
}

TEST(Strategy, NamesWithNumbersKeepRankOrder) {
  std::vector<NodeSpec> specs;
  for (const char* name : {"10.0.0.66", "10.0.0.7", "10.0.0.100"})
    specs.push_back({.name = name, .devices = std::vector(2, DeviceSpec{})});
  Cluster cluster = Cluster::create(specs).value();
  EXPECT_THAT(
      nodes_of(place(cluster, group_of(6, gpus(1)))),
      ElementsAre("10.0.0.7", "10.0.0.7", "10.0.0.66", "10.0.0.66", "10.0.0.100", "10.0.0.100"));
}

TEST(Strategy, SmallGroupsFillSmallHolesAndLeaveLargeOnes) {
  Cluster cluster = Cluster::create(grid(1, 1, 4)).value();
  place(cluster, group_of(1, gpus(6), Strategy::kPack, Level::kNode, "a"));
  place(cluster, group_of(1, gpus(5), Strategy::kPack, Level::kNode, "b"));
  EXPECT_THAT(nodes_of(place(cluster, group_of(2, gpus(1), Strategy::kPack, Level::kNode, "c"))),
              ElementsAre("node0", "node0"));
  EXPECT_THAT(nodes_of(place(cluster, group_of(3, gpus(1), Strategy::kPack, Level::kNode, "d"))),
              ElementsAre("node1", "node1", "node1"));
  EXPECT_THAT(nodes_of(place(cluster, group_of(2, gpus(8), Strategy::kPack, Level::kNode, "e"))),
              ElementsAre("node2", "node3"))
      << "two nodes were left whole";
}

TEST(Strategy, PackCrossesNoDomainItNeedNot) {
  Cluster cluster = Cluster::create(grid(2, 2, 2)).value();
  place(cluster, group_of(1, gpus(8), Strategy::kPack, Level::kNode, "a"));  // node0
  const auto bundles = place(cluster, group_of(2, gpus(8), Strategy::kPack, Level::kDomain, "b"));
  EXPECT_THAT(nodes_of(bundles), ElementsAre("node2", "node3"))
      << "not node1 with half a domain beside it";
}

TEST(Strategy, SpreadIsEvenAndUsesEveryNode) {
  Cluster cluster = Cluster::create(grid(1, 2, 2)).value();
  const auto counts = counts_of(place(cluster, group_of(10, gpus(1), Strategy::kSpread)));
  ASSERT_EQ(counts.size(), 4U);
  for (const auto& [name, count] : counts)
    EXPECT_TRUE(count == 2 || count == 3) << name << " " << count;
}

TEST(Strategy, SpreadOverDomainsTakesSeveralPerDomain) {
  Cluster cluster = Cluster::create(grid(1, 4, 2)).value();
  GroupRequest request = group_of(16, gpus(1), Strategy::kStrictSpread, Level::kDomain);
  request.per_domain_max = 4;
  std::map<std::int32_t, int> per_domain;
  for (const BundlePlacement& bundle : place(cluster, request))
    ++per_domain[cluster.node(bundle.node)->domain];
  EXPECT_THAT(per_domain,
              ElementsAre(std::pair(0, 4), std::pair(1, 4), std::pair(2, 4), std::pair(3, 4)));
}

TEST(Strategy, ExactNumbersKeepTensorParallelGroupsInsideADomain) {
  std::vector<NodeSpec> specs = grid(1, 3, 2);
  specs[0].devices.resize(3);  // the first domain holds eleven, not sixteen
  Cluster cluster = Cluster::create(specs).value();
  GroupRequest request = group_of(32, gpus(1), Strategy::kPack, Level::kDomain);
  request.per_domain_exact = 16;
  const auto bundles = place(cluster, request);
  for (std::size_t i = 0; i < bundles.size(); ++i)
    EXPECT_EQ(cluster.node(bundles[i].node)->domain, i < 16 ? 1 : 2) << i;
}

TEST(Strategy, StrictPackInOneSocketTakesItsDevicesAndCores) {
  Cluster cluster = Cluster::create(grid(1, 1, 1)).value();
  place(cluster, group_of(1, gpus(1), Strategy::kPack, Level::kNode, "a"));
  const auto bundles =
      place(cluster, group_of(4, gpus(1, 8), Strategy::kStrictPack, Level::kSocket, "b"));
  for (const BundlePlacement& bundle : bundles) {
    EXPECT_EQ(bundle.socket, 1);
    EXPECT_GE(bundle.devices[0].device, 4);
    EXPECT_GE(bundle.cores.front().core, 32);
  }
}

TEST(Strategy, FractionsShareOneDevice) {
  Cluster cluster = Cluster::create(grid(1, 1, 1)).value();
  const Bundle half{.resources = {.gpu = Amount{5'000}}};
  const Bundle third{.resources = {.gpu = Amount{3'000}}};
  place(cluster, group_of(1, half, Strategy::kPack, Level::kNode, "a"));
  EXPECT_EQ(
      place(cluster, group_of(1, third, Strategy::kPack, Level::kNode, "b"))[0].devices[0].device,
      0);
  EXPECT_EQ(
      place(cluster, group_of(1, half, Strategy::kPack, Level::kNode, "c"))[0].devices[0].device,
      1);
  const auto apart =
      place(cluster, group_of(3, third, Strategy::kStrictSpread, Level::kDevice, "d"));
  std::set<std::int32_t> devices;
  for (const BundlePlacement& bundle : apart) devices.insert(bundle.devices[0].device);
  EXPECT_EQ(devices.size(), 3U);
}

TEST(Strategy, WorkWithoutDevicesStaysOffNodesWithDevices) {
  std::vector<NodeSpec> specs = grid(1, 1, 2);
  specs.push_back({.name = "cpu0", .rack = "rack0", .cores = 8});
  specs.push_back({.name = "cpu1", .rack = "rack9", .cores = 8});
  Cluster cluster = Cluster::create(specs).value();
  const Bundle work{.resources = {.cpu = Amount::whole(4)}};
  EXPECT_THAT(nodes_of(place(cluster, group_of(3, work, Strategy::kPack, Level::kNode, "a"))),
              ElementsAre("cpu0", "cpu0", "cpu1"));
  EXPECT_THAT(nodes_of(place(cluster, group_of(2, work, Strategy::kPack, Level::kNode, "b"))),
              ElementsAre("node0", "node0"))
      << "but it does not wait for them";
}

TEST(Strategy, AffinitiesArePlacesNearOrApart) {
  Cluster cluster = Cluster::create(grid(2, 2, 2)).value();
  place(cluster, group_of(1, gpus(1), Strategy::kPack, Level::kNode, "data"));
  GroupRequest near = group_of(2, gpus(8), Strategy::kPack, Level::kNode, "near");
  near.affinities = {{.group = "data", .level = Level::kRack}};
  for (const BundlePlacement& bundle : place(cluster, near))
    EXPECT_EQ(cluster.node(bundle.node)->rack, 0);
  GroupRequest apart = group_of(1, gpus(1), Strategy::kPack, Level::kNode, "apart");
  apart.affinities = {{.group = "data", .apart = true, .level = Level::kRack}};
  EXPECT_EQ(cluster.node(place(cluster, apart)[0].node)->rack, 1);
  const auto later =
      place(cluster, group_of(40, gpus(1), Strategy::kSpread, Level::kNode, "later"));
  EXPECT_EQ(counts_of(later).size(), 6U) << "only data is kept apart from";
  ASSERT_TRUE(cluster.release("data"));
  ASSERT_TRUE(cluster.release("later"));
  const auto moved = place(cluster, group_of(1, gpus(1), Strategy::kPack, Level::kNode, "data"));
  EXPECT_EQ(cluster.node(moved[0].node)->rack, 0) << "being kept apart works both ways";
}

TEST(Strategy, PlacesDoNotDependOnTheOrderNodesJoinedIn) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::RandomCase random(seed);
    std::vector<NodeSpec> specs = random.nodes(3 + random.below(20));
    std::vector<QueuedGroup> queue;
    for (int i = 0; i < 12; ++i) {
      GroupRequest request = random.request("g" + std::to_string(i), 1 + random.below(8), {});
      request.priority = random.below(3);
      if (validate(request)) queue.push_back({std::move(request), static_cast<std::uint64_t>(i)});
    }
    const auto run = [&] {
      Cluster cluster;
      for (const NodeSpec& spec : specs) EXPECT_TRUE(cluster.add_node(spec));
      Scheduler scheduler;
      std::string text;
      const auto result = scheduler.pass(cluster, queue);
      for (const Decision& decision : result->decisions) {
        text += fmt::format("{} {}\n", decision.group, static_cast<int>(decision.kind));
        for (const BundlePlacement& bundle : decision.bundles)
          text += "  " + to_string(bundle) + "\n";
        if (decision.error) text += decision.error->message + "\n";
      }
      return text;
    };
    const std::string first = run();
    for (int i = 0; i < 3; ++i) {
      random.shuffle(specs);
      random.shuffle(queue);
      EXPECT_EQ(run(), first);
    }
  }
}

TEST(Strategy, RankOrderHoldsOnLargeClusters) {
  Cluster cluster = Cluster::create(grid(4, 4, 8)).value();
  const auto bundles = place(cluster, group_of(300, gpus(2, 8)));
  for (std::size_t i = 1; i < bundles.size(); ++i) {
    const auto key = [&](const BundlePlacement& b) {
      return std::pair(cluster.position_of(b.node), b.devices[0].device);
    };
    EXPECT_LT(key(bundles[i - 1]), key(bundles[i])) << i;
  }
  EXPECT_EQ(counts_of(bundles).size(), 75U);
  std::set<std::int32_t> racks;
  for (const BundlePlacement& bundle : bundles) racks.insert(cluster.node(bundle.node)->rack);
  EXPECT_EQ(racks.size(), 3U);
}

}  // namespace
}  // namespace troupe::placement

// Proves that the cluster never gives anything twice: random placements and releases, after each of
// which every sum is recomputed from what groups hold; and that refused calls change nothing.

#include "placement/cluster.hpp"

#include "placement/scheduler.hpp"
#include "tests/placement/random_case.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::placement {
namespace {

using ::testing::HasSubstr;

NodeSpec node(std::string name, int devices = 2) {
  NodeSpec spec{.name = std::move(name), .cores = 4, .memory = Bytes{100}};
  spec.devices.resize(static_cast<std::size_t>(devices));
  return spec;
}

GroupRequest one_gpu(std::string name) {
  return {.name = std::move(name), .bundles = {{.resources = {.gpu = Amount::whole(1)}}}};
}

BundlePlacement device_of(const Cluster& cluster, const std::string& name, std::int32_t device) {
  return {
      .node = *cluster.find_node(name), .node_name = name, .devices = {{device, Amount::whole(1)}}};
}

TEST(Cluster, GivesNothingTwiceWhateverComesAndGoes) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::RandomCase random(seed);
    Cluster cluster = Cluster::create(random.nodes(2 + random.below(12))).value();
    Scheduler scheduler;
    std::vector<std::string> active;
    for (int step = 0; step < 120; ++step) {
      const std::int32_t kind = random.below(10);
      if (kind < 5) {
        const GroupRequest request =
            random.request("g" + std::to_string(step), 1 + random.below(6), active);
        if (scheduler.place_one(cluster, request).kind == DecisionKind::kPlaced)
          active.push_back(request.name);
      } else if (kind < 8 && !active.empty()) {
        const std::string name = random.pick(active);
        ASSERT_TRUE(cluster.release(name));
        std::erase(active, name);
      } else if (kind == 8 && cluster.node_count() > 1) {
        const auto nodes = cluster.nodes();
        const NodeId id =
            nodes[static_cast<std::size_t>(random.below(static_cast<int>(nodes.size())))].id;
        ASSERT_TRUE(cluster.remove_node(id));
      } else {
        NodeSpec spec = random.random_node();
        spec.name = "late" + std::to_string(step);
        ASSERT_TRUE(cluster.add_node(std::move(spec)));
      }
      cluster.check_invariants();
    }
    for (const std::string& name : active) ASSERT_TRUE(cluster.release(name));
    for (const NodeState& state : cluster.nodes()) {
      NodeFree capacity = state.capacity;  // without failed devices
      for (std::size_t d = 0; d < capacity.devices.size(); ++d) capacity.devices[d] = 10'000;
      EXPECT_EQ(state.free, capacity) << state.spec.name;
    }
  }
}

TEST(Cluster, RefusesWhatIsTakenAndChangesNothing) {
  Cluster cluster = Cluster::create({node("a"), node("b")}).value();
  ASSERT_TRUE(cluster.allocate(one_gpu("x"), {{device_of(cluster, "a", 0)}}));
  const std::uint64_t version = cluster.version();
  const NodeFree free = cluster.nodes()[0].free;
  const auto taken = cluster.allocate(one_gpu("y"), {{device_of(cluster, "a", 0)}});
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::kConflict);
  EXPECT_THAT(taken.error().message,
              HasSubstr("node a: device 0: group y bundle 0 wants 1, free 0"));
  GroupRequest two = one_gpu("z");
  two.bundles.push_back(two.bundles[0]);
  std::vector<BundlePlacement> places{device_of(cluster, "b", 0), device_of(cluster, "a", 0)};
  places[1].bundle = 1;
  EXPECT_FALSE(cluster.allocate(two, places)) << "the second is taken, so the first is given back";
  EXPECT_EQ(cluster.group("z"), nullptr);
  EXPECT_EQ(cluster.version(), version);
  EXPECT_EQ(cluster.nodes()[0].free, free);
  EXPECT_EQ(cluster.allocate(one_gpu("x"), {{device_of(cluster, "b", 0)}}).error().code,
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(cluster.allocate(one_gpu("y"), {{device_of(cluster, "a", 7)}}).error().code,
            ErrorCode::kConflict);
  cluster.check_invariants();
}

TEST(Cluster, RefusesSharesThatMakeNoSense) {
  Cluster cluster = Cluster::create({node("a")}).value();
  BundlePlacement twice = device_of(cluster, "a", 0);
  twice.devices.push_back(twice.devices[0]);
  EXPECT_EQ(cluster.allocate(one_gpu("x"), {{twice}}).error().code, ErrorCode::kInvalidArgument);
  BundlePlacement nothing = device_of(cluster, "a", 0);
  nothing.devices[0].amount = {};
  EXPECT_EQ(cluster.allocate(one_gpu("x"), {{nothing}}).error().code, ErrorCode::kInvalidArgument);
  BundlePlacement negative = device_of(cluster, "a", 0);
  negative.memory = Bytes{-5};
  EXPECT_EQ(cluster.allocate(one_gpu("x"), {{negative}}).error().code, ErrorCode::kConflict);
  cluster.check_invariants();
}

TEST(Cluster, CountsVersionsOfStateAndOfNodes) {
  Cluster cluster = Cluster::create({node("a")}).value();
  const Cluster snapshot = cluster;
  ASSERT_TRUE(cluster.allocate(one_gpu("x"), {{device_of(cluster, "a", 0)}}));
  EXPECT_GT(cluster.version(), snapshot.version());
  EXPECT_EQ(cluster.topology_version(), snapshot.topology_version());
  EXPECT_EQ(snapshot.group("x"), nullptr);
  ASSERT_TRUE(cluster.set_draining(*cluster.find_node("a"), true));
  EXPECT_GT(cluster.topology_version(), snapshot.topology_version());
}

TEST(Cluster, NamesAndIdsAreNeverUsedTwice) {
  Cluster cluster = Cluster::create({node("a")}).value();
  EXPECT_EQ(cluster.add_node(node("a")).error().code, ErrorCode::kAlreadyExists);
  const NodeId first = *cluster.find_node("a");
  ASSERT_TRUE(cluster.remove_node(first));
  EXPECT_EQ(cluster.add_node(node("b"), first).error().code, ErrorCode::kAlreadyExists);
  EXPECT_NE(cluster.add_node(node("a")).value(), first);
  EXPECT_EQ(cluster.node(first), nullptr);
}

TEST(Cluster, ALostNodeTakesItsBundlesFromTheirGroups) {
  Cluster cluster = Cluster::create({node("a"), node("b")}).value();
  GroupRequest request = one_gpu("x");
  request.bundles.push_back(request.bundles[0]);
  std::vector<BundlePlacement> places{device_of(cluster, "a", 0), device_of(cluster, "b", 0)};
  places[1].bundle = 1;
  ASSERT_TRUE(cluster.allocate(request, places));
  const auto lost = cluster.remove_node(*cluster.find_node("a"));
  ASSERT_TRUE(lost);
  EXPECT_EQ(*lost, (std::vector<LostBundle>{{"x", 0}}));
  EXPECT_FALSE(cluster.group("x")->is_complete());
  EXPECT_TRUE(cluster.group("x")->bundles.contains(1));
  cluster.check_invariants();
}

TEST(Cluster, OrdersNodesByRackDomainAndNameWhateverOrderTheyJoinIn) {
  std::vector<NodeSpec> specs;
  for (const char* name : {"n66", "n7", "n100", "n8", "n9"}) specs.push_back(node(name));
  specs[0].domain = specs[1].domain = "nv1";
  specs[2].rack = "r0";
  const auto names = [](const Cluster& cluster) {
    std::string text;
    for (const NodeState& state : cluster.nodes()) text += state.spec.name + " ";
    return text;
  };
  const std::string wanted = names(Cluster::create(specs).value());
  EXPECT_EQ(wanted, "n8 n9 n7 n66 n100 ");
  testing::RandomCase random(3);
  for (int i = 0; i < 20; ++i) {
    random.shuffle(specs);
    Cluster cluster;
    for (const NodeSpec& spec : specs) ASSERT_TRUE(cluster.add_node(spec));
    EXPECT_EQ(names(cluster), wanted);
  }
}

}  // namespace
}  // namespace troupe::placement

// Proves the natural order of names, the checks of node specs, and that topology files are read
// strictly and survive a round trip.

#include "placement/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace troupe::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::string& json) {
  const auto nodes = parse_topology(json, "t.json");
  return nodes ? "fine" : nodes.error().message;
}

TEST(Topology, OrdersNamesByTheirNumbers) {
  std::vector<std::string> names{"node66",    "node7",    "node007", "node",
                                 "10.0.0.66", "10.0.0.7", "b2a10",   "b2a9"};
  std::sort(names.begin(), names.end(), NaturalLess());
  EXPECT_THAT(names, ElementsAre("10.0.0.7", "10.0.0.66", "b2a9", "b2a10", "node", "node007",
                                 "node7", "node66"));
  EXPECT_EQ(natural_order("a1", "a1"), std::strong_ordering::equal);
  EXPECT_NE(natural_order("a1", "a01"), std::strong_ordering::equal);
}

TEST(Topology, SplitsCoresOverSocketsInRuns) {
  const NodeSpec node{.name = "a", .sockets = 3, .cores = 8};
  std::vector<std::int32_t> sockets;
  for (std::int32_t core = 0; core < 8; ++core) sockets.push_back(socket_of_core(node, core));
  EXPECT_THAT(sockets, ElementsAre(0, 0, 0, 1, 1, 1, 2, 2));
}

TEST(Topology, ReadsAFileAndWritesItAgain) {
  const std::string json = R"({"nodes": [
    {"name": "gpu-{}", "count": 2, "rack": "r1", "domain": "nv0", "sockets": 2, "devices": 4,
     "cores": 16, "memory": 1024, "named": {"license": 1.5}, "labels": {"zone": "a"}},
    {"name": "cpu", "cores": 4, "devices": [], "draining": true},
    {"name": "odd", "sockets": 2, "devices": [{"socket": 1, "nic": "mlx5_0", "failed": true}]}]})";
  const auto nodes = parse_topology(json, "t.json");
  ASSERT_TRUE(nodes) << nodes.error().message;
  ASSERT_EQ(nodes->size(), 4U);
  EXPECT_EQ((*nodes)[1].name, "gpu-1");
  EXPECT_EQ((*nodes)[1].devices[1].socket, 0);
  EXPECT_EQ((*nodes)[1].devices[2].socket, 1);
  EXPECT_EQ((*nodes)[1].named.at("license"), Amount{15'000});
  EXPECT_TRUE((*nodes)[2].draining);
  EXPECT_EQ((*nodes)[3].devices[0].nic, "mlx5_0");
  EXPECT_EQ(parse_topology(topology_json(*nodes), "again").value(), *nodes);
  const std::string path = ::testing::TempDir() + "topology_test.json";
  std::ofstream(path) << json;
  EXPECT_EQ(load_topology(path).value(), *nodes);
  std::remove(path.c_str());
  EXPECT_EQ(load_topology(path).error().code, ErrorCode::kNotFound);
}

TEST(Topology, FaultsNameTheirPlace) {
  EXPECT_THAT(error_of("{"), HasSubstr("t.json: not JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("t.json: want an object, found array"));
  EXPECT_THAT(error_of(R"({"nodes": []})"), HasSubstr("no nodes"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": "a", "coers": 1}]})"),
              HasSubstr("t.json.nodes[0]: unknown key 'coers'"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": 3}]})"),
              HasSubstr("t.json.nodes[0].name: want a text, found number"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": "a", "count": 2}]})"),
              HasSubstr("has count 2 but no {}"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": "a", "devices": -1}]})"),
              HasSubstr("devices: want a whole number"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": "a", "devices": [{"socket": 1}]}]})"),
              HasSubstr("device 0: socket 1 of 1"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": "a", "memory": 1e99}]})"),
              HasSubstr("memory: want a whole number"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": "a", "named": {"x": -1}}]})"),
              HasSubstr("x is negative"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": ""}]})"), HasSubstr("the name is empty"));
  EXPECT_THAT(error_of(R"({"nodes": [{"name": "n{}", "count": 65537}]})"),
              HasSubstr("count: want a whole number"));
}

}  // namespace
}  // namespace troupe::placement

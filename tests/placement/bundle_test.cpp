// Proves that each kind of bad request has its own error, which names group, bundle and value, and
// that the JSON form of requests is read strictly.

#include "placement/bundle.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace troupe::placement {
namespace {

using ::testing::HasSubstr;

GroupRequest good() {
  return {.name = "train",
          .bundles = std::vector(
              4, Bundle{.resources = {.gpu = Amount::whole(1), .cpu = Amount::whole(2)}})};
}

std::string error_of(const std::function<void(GroupRequest&)>& spoil) {
  GroupRequest request = good();
  spoil(request);
  const auto valid = validate(request);
  if (valid) return "fine";
  EXPECT_EQ(valid.error().code, ErrorCode::kInvalidArgument);
  return valid.error().message;
}

TEST(Request, EachFaultHasItsOwnError) {
  EXPECT_EQ(error_of([](GroupRequest&) {}), "fine");
  const std::vector<std::pair<std::string, std::function<void(GroupRequest&)>>> faults{
      {"group: the name has 0 bytes", [](auto& r) { r.name.clear(); }},
      {"group train: no bundles", [](auto& r) { r.bundles.clear(); }},
      {"20000 bundles, at most 16384", [](auto& r) { r.bundles.resize(20'000, r.bundles[0]); }},
      {"group train: unknown strategy 9", [](auto& r) { r.strategy = static_cast<Strategy>(9); }},
      {"group train: unknown level 7", [](auto& r) { r.level = static_cast<Level>(7); }},
      {"bundle 2: gpu is negative: -1",
       [](auto& r) { r.bundles[2].resources.gpu = Amount::whole(-1); }},
      {"bundle 1: cpu is negative: -0.5",
       [](auto& r) { r.bundles[1].resources.cpu = Amount{-5'000}; }},
      {"bundle 1: memory is negative: -1 bytes",
       [](auto& r) { r.bundles[1].resources.memory = Bytes{-1}; }},
      {"bundle 3: gpu 1.5: above one device only whole numbers",
       [](auto& r) { r.bundles[3].resources.gpu = Amount{15'000}; }},
      {"bundle 0: asks for nothing", [](auto& r) { r.bundles[0] = {}; }},
      {"label zone: unknown selector operator 77",
       [](auto& r) {
         r.bundles[0].selectors = {{"zone", static_cast<SelectorOp>(77), {"a"}}};
       }},
      {"label zone: operator = with 2 values",
       [](auto& r) {
         r.bundles[0].selectors = {{"zone", SelectorOp::kEqual, {"a", "b"}}};
       }},
      {"label zone: operator in with 0 values",
       [](auto& r) {
         r.bundles[0].selectors = {{"zone", SelectorOp::kIn, {}}};
       }},
      {"per_domain_max is negative: -1", [](auto& r) { r.per_domain_max = -1; }},
      {"per_domain_exact is negative: -2", [](auto& r) { r.per_domain_exact = -2; }},
      {"4 bundles do not divide into 3 per domain", [](auto& r) { r.per_domain_exact = 3; }},
      {"per_domain_exact 4 is above per_domain_max 2",
       [](auto& r) {
         r.per_domain_exact = 4;
         r.per_domain_max = 2;
       }},
      {"STRICT_PACK of 4 bundles contradicts per_domain_max 2",
       [](auto& r) {
         r.strategy = Strategy::kStrictPack;
         r.per_domain_max = 2;
       }},
      {"affinity to itself", [](auto& r) { r.affinities = {{.group = "train"}}; }},
      {"affinity to x at level device",
       [](auto& r) { r.affinities = {{.group = "x", .level = Level::kDevice}}; }},
      {"level device, but the bundle has gpu 2",
       [](auto& r) {
         r.level = Level::kDevice;
         r.bundles[0].resources.gpu = Amount::whole(2);
       }},
      {"level device, but the bundle has no gpu",
       [](auto& r) {
         r.level = Level::kDevice;
         r.bundles[0].resources.gpu = {};
       }},
      {"priority 2000000", [](auto& r) { r.priority = 2'000'000; }},
      {"reserve per gpu: cpu is negative: -1",
       [](auto& r) { r.reserve_per_gpu.cpu = Amount::whole(-1); }},
      {"memory with the reserve of its gpus",
       [](auto& r) {
         r.bundles[0].resources.gpu = Amount::whole(1000);
         r.reserve_per_gpu.memory = kMemoryMax;
       }},
  };
  std::set<std::string> seen;
  for (const auto& [text, spoil] : faults) {
    const std::string message = error_of(spoil);
    EXPECT_THAT(message, HasSubstr(text));
    EXPECT_TRUE(seen.insert(message).second) << message;
  }
}

TEST(Request, ReserveFollowsTheGpus) {
  GroupRequest request = good();
  request.bundles[0].resources = {.gpu = Amount::whole(4), .cpu = Amount::whole(1)};
  request.bundles[1].resources = {.gpu = Amount{2'500}};
  request.bundles[2].resources = {.cpu = Amount::whole(3)};
  request.reserve_per_gpu = {.cpu = Amount::whole(8), .memory = Bytes{10}};
  EXPECT_EQ(needs_of(request, 0).cpu, Amount::whole(33));
  EXPECT_EQ(needs_of(request, 0).memory, Bytes{40});
  EXPECT_EQ(needs_of(request, 1).cpu, Amount::whole(2));
  EXPECT_EQ(needs_of(request, 1).memory, Bytes{3}) << "a quarter, rounded up";
  EXPECT_EQ(needs_of(request, 2).cpu, Amount::whole(3));
}

TEST(Request, IsReadFromJson) {
  const auto request =
      parse_group_request(R"({"name": "train", "strategy": "STRICT_SPREAD", "level": "domain",
    "per_domain_max": 4, "priority": -2, "movable": false,
    "reserve_per_gpu": {"cpu": 2, "memory": 100},
    "bundles": [{"gpu": 1, "cpu": 8, "count": 2, "selectors": [{"label": "zone", "value": "a"}]},
                {"gpu": 0.25, "memory": 7, "named": {"license": 1}}],
    "affinities": [{"group": "data", "apart": true, "level": "rack", "strict": false}]})",
                          "r.json");
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->bundles.size(), 3U);
  EXPECT_EQ(request->bundles[1].selectors[0].values[0], "a");
  EXPECT_EQ(request->bundles[2].resources.gpu, Amount{2'500});
  EXPECT_EQ(request->strategy, Strategy::kStrictSpread);
  EXPECT_EQ(request->level, Level::kDomain);
  EXPECT_EQ(request->priority, -2);
  EXPECT_FALSE(request->movable);
  EXPECT_TRUE(request->affinities[0].apart);
  EXPECT_EQ(request->reserve_per_gpu.memory, Bytes{100});
}

TEST(Request, FaultyJsonNamesItsPlace) {
  const auto error = [](const std::string& json) {
    const auto request = parse_group_request(json, "r.json");
    return request ? std::string("fine") : request.error().message;
  };
  EXPECT_THAT(error(R"({"name": "a", "strategy": "PAKC", "bundles": [{"cpu": 1}]})"),
              HasSubstr("unknown strategy 'PAKC': want PACK, SPREAD"));
  EXPECT_THAT(error(R"({"name": "a", "level": "row", "bundles": [{"cpu": 1}]})"),
              HasSubstr("unknown level 'row'"));
  EXPECT_THAT(error(R"({"name": "a", "bundles": [{"cpu": -1}]})"),
              HasSubstr("r.json.bundles[0].cpu: cpu is negative: -1"));
  EXPECT_THAT(error(R"({"name": "a", "bundles": [{"gpus": 1}]})"),
              HasSubstr("r.json.bundles[0]: unknown key 'gpus'"));
  EXPECT_THAT(
      error(R"({"name": "a", "bundles": [{"cpu": 1, "selectors": [{"label": "z", "op": "~"}]}]})"),
      HasSubstr("r.json.bundles[0].selectors[0].op: unknown selector operator '~'"));
  EXPECT_THAT(error(R"({"name": "a"})"), HasSubstr("no bundles"));
}

}  // namespace
}  // namespace troupe::placement

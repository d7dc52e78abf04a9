// Proves the rank numbering of a mesh against a slow enumeration, over random meshes, and that bad
// axes, ranks and indices are errors that name both values.

#include "runtime/group/mesh.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace troupe::runtime {
namespace {

const std::vector<std::string> kAxisNames{"dp", "pp", "tp", "cp", "ep"};

std::vector<Axis> random_axes(Rng& rng) {
  std::vector<Axis> axes;
  std::vector<std::int64_t> order = rng.permutation(5);
  const auto count = 1 + rng.below(4);
  for (std::uint64_t i = 0; i < count; ++i) {
    axes.push_back({kAxisNames[static_cast<std::size_t>(order[i])], 1 + static_cast<int>(rng.below(4))});
  }
  return axes;
}

/// All coordinate vectors in rank order: an odometer whose last wheel turns fastest.
std::vector<std::vector<int>> enumerate(const std::vector<Axis>& axes) {
  std::vector<std::vector<int>> every;
  std::vector<int> at(axes.size(), 0);
  for (;;) {
    every.push_back(at);
    std::size_t wheel = axes.size();
    while (wheel > 0 && ++at[wheel - 1] == axes[wheel - 1].size) at[--wheel] = 0;
    if (wheel == 0) return every;
  }
}

TEST(Mesh, NumbersRanksWithTheLastAxisFastest) {
  const Mesh mesh = Mesh::create({{"dp", 2}, {"pp", 2}, {"tp", 3}}).value();
  EXPECT_EQ(mesh.size(), 12);
  EXPECT_EQ(mesh.rank_at({1, 0, 2}).value(), RankId{8});
  EXPECT_EQ(mesh.coordinates(RankId{8}), (std::vector<int>{1, 0, 2}));
  EXPECT_EQ(mesh.along(RankId{8}, "tp"), (std::vector<RankId>{{6}, {7}, {8}}));
  EXPECT_EQ(mesh.along(RankId{8}, "dp"), (std::vector<RankId>{{2}, {8}}));
  EXPECT_EQ(mesh.along(RankId{8}, "cp"), std::vector<RankId>{{8}});
  EXPECT_EQ(mesh.to_string(), "dp 2 × pp 2 × tp 3");
  EXPECT_EQ(mesh.ranks_at({{"tp", -1}, {"pp", 0}}).value(), (std::vector<RankId>{{2}, {8}}));
}

TEST(Mesh, RandomMeshesAgreeWithEnumeration) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto axes = random_axes(rng);
    const Mesh mesh = Mesh::create(axes).value();
    const auto every = enumerate(axes);
    ASSERT_EQ(mesh.size(), static_cast<int>(every.size()));
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const auto& at = every[static_cast<std::size_t>(rank)];
      ASSERT_EQ(mesh.coordinates(RankId{rank}), at);
      ASSERT_EQ(mesh.rank_at(at).value(), RankId{rank});
      for (std::size_t i = 0; i < axes.size(); ++i) {
        ASSERT_EQ(mesh.coordinate(RankId{rank}, axes[i].name), at[i]);
        const auto line = mesh.along(RankId{rank}, axes[i].name);
        ASSERT_EQ(static_cast<int>(line.size()), axes[i].size);
        for (int k = 0; k < axes[i].size; ++k) {
          auto expected = at;
          expected[i] = k;
          ASSERT_EQ(mesh.coordinates(line[static_cast<std::size_t>(k)]), expected);
        }
      }
    }
  }
}

TEST(Mesh, SubgroupsPartitionTheRanks) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Mesh mesh = Mesh::create(random_axes(rng)).value();
    for (const auto& name : kAxisNames) {
      std::set<int> seen;
      for (const auto& group : mesh.subgroups(name)) {
        ASSERT_EQ(static_cast<int>(group.size()), mesh.axis_size(name));
        for (const RankId rank : group) ASSERT_TRUE(seen.insert(rank.value).second);
      }
      ASSERT_EQ(static_cast<int>(seen.size()), mesh.size());
    }
  }
}

void expect_refused(const result<Mesh>& mesh, const std::vector<std::string>& named) {
  ASSERT_FALSE(mesh);
  EXPECT_EQ(mesh.error().code, ErrorCode::kInvalidArgument);
  for (const auto& word : named)
    EXPECT_NE(mesh.error().message.find(word), std::string::npos) << mesh.error().message;
}

TEST(Mesh, RefusesBadAxesNamingThem) {
  expect_refused(Mesh::create({{"dp", 2}, {"tp", 0}}), {"tp", "0"});
  expect_refused(Mesh::create({{"dp", -3}}), {"dp", "-3"});
  expect_refused(Mesh::create({{"dp", 2}, {"dp", 4}}), {"dp", "2", "4"});
  expect_refused(Mesh::create({{"", 2}}), {"axis 0"});
  expect_refused(Mesh::create({{"dp", 1 << 20}, {"tp", 1 << 20}}), {"tp"});
  expect_refused(Mesh::create({{"dp", 2147483647}, {"tp", 2147483647}}), {"dp"});
  expect_refused(Mesh::create({{"dp", 4}, {"tp", 2}}, 6), {"8", "6", "dp 4"});
  EXPECT_TRUE(Mesh::create({{"dp", 4}, {"tp", 2}}, 8));
}

TEST(Mesh, RefusesIndicesOutOfRangeNamingAxisAndSize) {
  const Mesh mesh = Mesh::create({{"dp", 2}, {"tp", 3}}).value();
  for (const int index : {3, -4}) {
    const auto ranks = mesh.ranks_at({{"tp", index}});
    ASSERT_FALSE(ranks);
    EXPECT_NE(ranks.error().message.find("tp"), std::string::npos);
    EXPECT_NE(ranks.error().message.find(std::to_string(index)), std::string::npos);
    EXPECT_NE(ranks.error().message.find("3"), std::string::npos);
  }
  EXPECT_FALSE(mesh.rank_at({2, 0}));
  EXPECT_FALSE(mesh.rank_at({0}));
  EXPECT_FALSE(mesh.rank_at({0, -1}));
  EXPECT_FALSE(mesh.ranks_at({{"pp", 1}})) << "an axis that the mesh lacks has size 1";
  EXPECT_TRUE(mesh.ranks_at({{"pp", -1}}));
  EXPECT_THROW((void)mesh.coordinate(RankId{6}, "tp"), CheckFailure);
  EXPECT_THROW((void)mesh.coordinates(RankId{-1}), CheckFailure);
  EXPECT_THROW((void)Mesh::data_parallel(0), CheckFailure);
}

}  // namespace
}  // namespace troupe::runtime

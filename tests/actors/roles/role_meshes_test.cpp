// Proves where rollout ranks sit: the worked examples of nested groups, and for all small meshes
// that ranks are placed once each and in the groups of reshard/nested_groups.hpp.

#include "actors/roles/role_meshes.hpp"

#include "reshard/nested_groups.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace troupe::actors {
namespace {

std::vector<int> identity(int devices) {
  std::vector<int> found(static_cast<std::size_t>(devices));
  std::iota(found.begin(), found.end(), 0);
  return found;
}

TEST(RolloutDevices, TensorPeersSitAStrideApartWhereThePolicyIsCutFiner) {
  EXPECT_EQ(rollout_devices({.tp = 4}, 2, 4), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(rollout_devices({.tp = 4}, 2, 8), (std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(rollout_devices({.tp = 8}, 2, 8), (std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7}));
}

TEST(RolloutDevices, RanksStayOnTheirDevicesWhereNothingIsGained) {
  EXPECT_EQ(rollout_devices({.tp = 4}, 1, 4), identity(4));
  EXPECT_EQ(rollout_devices({.tp = 2}, 2, 4), identity(4));
  EXPECT_EQ(rollout_devices({.tp = 2}, 4, 4), identity(4));
  EXPECT_EQ(rollout_devices({.tp = 3}, 2, 6), identity(6));
}

TEST(RolloutDevices, RanksSitInTheNestedGroupsOnceEach) {
  for (const int pp : {1, 2, 4}) {
    for (const int tp : {2, 4, 8}) {
      for (const int dp : {1, 2, 3}) {
        for (int rollout_tp = 2; rollout_tp <= tp; rollout_tp *= 2) {
          const int devices = pp * tp * dp;
          const std::vector<int> found = rollout_devices({.tp = tp, .pp = pp}, rollout_tp, devices);
          std::vector<int> sorted = found;
          std::ranges::sort(sorted);
          EXPECT_EQ(sorted, identity(devices));
          reshard::RankGroups groups;
          for (std::size_t rank = 0; rank < found.size(); ++rank) {
            if (rank % static_cast<std::size_t>(rollout_tp) == 0) groups.emplace_back();
            groups.back().push_back(found[rank]);
          }
          std::ranges::sort(groups);
          const reshard::HybridMesh mesh{
              .pp = pp, .tp = tp, .dp = dp, .generation_pp = 1, .generation_tp = rollout_tp};
          EXPECT_EQ(groups, reshard::generation_tp_groups(mesh, reshard::Grouping::kNested))
              << "pp " << pp << " tp " << tp << " dp " << dp << " rollout tp " << rollout_tp;
        }
      }
    }
  }
}

}  // namespace
}  // namespace troupe::actors

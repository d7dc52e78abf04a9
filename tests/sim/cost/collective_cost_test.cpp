// Proves collective costs: the closed forms by hand, the hierarchical form against its parts, and
// laws that must hold for any numbers.

#include "sim/cost/collective_cost.hpp"

#include "runtime/base/rng.hpp"
#include "sim/catalogue/catalogue.hpp"

#include <gtest/gtest.h>

namespace troupe::sim {
namespace {

const Link kLink{1e-5, 1e11};

TEST(Collectives, HaveTheirClosedForms) {
  EXPECT_DOUBLE_EQ(ring_all_reduce_s(8, 1e9, kLink), 14e-5 + 2 * 7.0 / 8 * 1e-2);
  EXPECT_DOUBLE_EQ(tree_all_reduce_s(8, 1e9, kLink), 6e-5 + 2e-2);
  EXPECT_DOUBLE_EQ(tree_all_reduce_s(9, 0, kLink), 8e-5);
  EXPECT_DOUBLE_EQ(gather_s(4, 1e9, kLink), 3e-5 + 0.75 * 1e-2);
  EXPECT_DOUBLE_EQ(chain_broadcast_s(4, 1e9, 1e7, kLink), 1e-2 + 4e-5 + 3e-4);
  EXPECT_EQ(all_reduce_s(1, 1e9, kLink), 0);
  EXPECT_EQ(gather_s(1, 1e9, kLink), 0);
}

TEST(Collectives, TakeTheTreeForSmallAndTheRingForLargeMessages) {
  EXPECT_EQ(all_reduce_s(64, 1e3, kLink), tree_all_reduce_s(64, 1e3, kLink));
  EXPECT_EQ(all_reduce_s(64, 1e10, kLink), ring_all_reduce_s(64, 1e10, kLink));
}

TEST(Fabric, EightDevicesShareOneAdapter) {
  const Fabric fabric(*Catalogue::built_in().device("a100-80g-hybridflow"), Constants());
  EXPECT_DOUBLE_EQ(fabric.across(1).rate, 0.8 * 25e9);
  EXPECT_DOUBLE_EQ(fabric.across(8).rate, 0.8 * 25e9 / 8);
  // Two nodes of eight: inside, then a ninth of the bytes a device across, then inside.
  const double expected =
      2 * gather_s(8, 1e9, fabric.inside()) + all_reduce_s(2, 1e9 / 8, fabric.across(8));
  EXPECT_DOUBLE_EQ(fabric.all_reduce(16, 1e9), expected);
  // A small message goes up and down one tree: three levels inside, one between the nodes.
  EXPECT_DOUBLE_EQ(fabric.all_reduce(16, 0),
                   6 * fabric.inside().latency_s + 2 * fabric.across(8).latency_s);
  // A data-parallel group at stride 8 has one device in each node, and eight such groups at once.
  EXPECT_EQ(fabric.ranks_inside(4, 8), 1);
  EXPECT_DOUBLE_EQ(fabric.all_reduce(4, 1e9, 8), all_reduce_s(4, 1e9, fabric.across(8)));
}

TEST(Fabric, MoreBytesAndSlowerLinksNeverTakeLess) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    DeviceSpec device = *Catalogue::built_in().device(rng.below(2) == 0 ? "h100" : "a100-80g");
    DeviceSpec slower = device;
    slower.nvlink_rate *= 0.5;
    slower.nic_rate *= 0.5;
    const Fabric fabric(device, Constants());
    const Fabric slow(slower, Constants());
    const int ranks = 1 + static_cast<int>(rng.below(128));
    const int stride = 1 << rng.below(5);
    const double bytes = rng.uniform() * 1e10;
    for (const auto cost : {&Fabric::all_reduce, &Fabric::gather, &Fabric::all_to_all}) {
      const double one = (fabric.*cost)(ranks, bytes, stride);
      EXPECT_GE(one, 0);
      EXPECT_GE((fabric.*cost)(ranks, 2 * bytes, stride), one);
      EXPECT_GE((slow.*cost)(ranks, bytes, stride), one);
    }
  }
}

TEST(Constants, AreCheckedByNameAndRange) {
  Constants constants;
  EXPECT_TRUE(constants.set(Constant::kGemmShare, 0.6));
  EXPECT_EQ(constants[Constant::kGemmShare], 0.6);
  const auto refused = constants.set(Constant::kGemmShare, 1.5);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("gemm_share: 1.5, wanted 0.5 to 0.85"), std::string::npos)
      << refused.error().to_string();
  const auto unknown = constant_from_name("gem_share");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("did you mean gemm_share?"), std::string::npos)
      << unknown.error().to_string();
  for (const ConstantInfo& info : constant_table()) {
    EXPECT_LE(info.low, info.prior) << info.name;
    EXPECT_LE(info.prior, info.high) << info.name;
    EXPECT_FALSE(info.source.empty()) << info.name;
    EXPECT_EQ(info_of(*constant_from_name(info.name)).name, info.name);
  }
}

}  // namespace
}  // namespace troupe::sim

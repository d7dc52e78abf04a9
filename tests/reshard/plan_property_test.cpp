// Proves over thousands of random cases that a plan moves exactly what it must: each target buffer
// equals gather-everything-then-slice bit for bit with its padding untouched, each number crosses
// the network once to each node that lacks it and never otherwise, and the plan does not depend on
// the order of ranks. Cases are random models on random meshes in all directions, and tensors cut
// into random rectangles. A failure prints its seed.

#include "tests/reshard/memory_world.hpp"
#include "tests/reshard/random_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::reshard {
namespace {

using reshard::testing::at;
using reshard::testing::Case;
using reshard::testing::CaseMaker;
using reshard::testing::expect_same_as_gathering;
using reshard::testing::network_lower_bound;

/// Each target segment is written exactly once, and all traffic figures are those of the
/// operations.
void expect_sound(const Plan& plan, const Case& made) {
  std::int64_t wanted = 0;
  for (const RankLayout& rank : made.target.ranks) {
    for (const Segment& s : rank.segments)
      wanted += s.box.elements() * element_bytes(made.target.tensors[at(s.tensor)].dtype);
  }
  std::map<std::int32_t, RankTraffic> counted;
  for (const RankTraffic& entry : plan.traffic)
    counted[entry.rank] = {.rank = entry.rank,
                           .node = entry.node,
                           .is_source = entry.is_source,
                           .is_target = entry.is_target};
  std::int64_t moved = 0;
  for (const Op& op : plan.ops) {
    const std::int64_t bytes = plan.bytes_of(op);
    RankTraffic& from = counted.at(op.source_rank);
    RankTraffic& to = counted.at(op.target_rank);
    moved += bytes;
    ASSERT_EQ(op.kind == OpKind::kLocal, op.source_rank == op.target_rank);
    ASSERT_EQ(op.crosses_network(), from.node != to.node);
    if (op.kind == OpKind::kLocal) {
      to.local_bytes += bytes;
    } else if (op.crosses_network()) {
      from.network_out_bytes += bytes;
      to.network_in_bytes += bytes;
    } else {
      from.node_out_bytes += bytes;
      to.node_in_bytes += bytes;
    }
  }
  EXPECT_EQ(moved, wanted) << "as many bytes as the target holds";
  for (const RankTraffic& entry : plan.traffic) EXPECT_EQ(counted.at(entry.rank), entry);
}

/// Operations of each kind over all cases: what never came up was not tested.
using Seen = std::map<OpKind, std::int64_t>;

void expect_all_seen(const Seen& seen) {
  for (const OpKind kind :
       {OpKind::kLocal, OpKind::kNode, OpKind::kNetwork, OpKind::kRelay, OpKind::kFanOut})
    EXPECT_TRUE(seen.contains(kind)) << "no operation was " << op_kind_name(kind);
}

void expect_right(const Case& made, Seen& seen) {
  const auto planned = plan(made.source, made.target, made.options);
  ASSERT_TRUE(planned) << planned.error().message;
  for (const Op& op : planned->ops) ++seen[op.kind];
  expect_sound(*planned, made);
  expect_same_as_gathering(*planned, made.source, made.target, made.options);
  EXPECT_EQ(planned->network_bytes(), network_lower_bound(made.source, made.target, made.options));
}

TEST(PlanProperty, RandomModelsOnRandomMeshesArriveBitForBit) {
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    const Case made = CaseMaker(seed).model_case();
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, made.text));
    expect_right(made, seen);
    if (::testing::Test::HasFailure()) return;
  }
  expect_all_seen(seen);
}

TEST(PlanProperty, RandomRectanglesArriveBitForBit) {
  Seen seen;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    const Case made = CaseMaker(seed).box_case();
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, made.text));
    expect_right(made, seen);
    if (::testing::Test::HasFailure()) return;
  }
  expect_all_seen(seen);
}

TEST(PlanProperty, DoesNotDependOnTheOrderOfRanksAndTensors) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Case made = CaseMaker(seed).model_case();
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, made.text));
    const auto before = plan(made.source, made.target, made.options);
    ASSERT_TRUE(before) << before.error().message;
    for (Roster* roster : {&made.source, &made.target}) {
      std::reverse(roster->ranks.begin(), roster->ranks.end());
      std::reverse(roster->tensors.begin(), roster->tensors.end());
      const auto last = static_cast<std::int32_t>(roster->tensors.size()) - 1;
      for (RankLayout& rank : roster->ranks)
        for (Segment& s : rank.segments) s.tensor = last - s.tensor;
    }
    const auto after = plan(made.source, made.target, made.options);
    ASSERT_TRUE(after) << after.error().message;
    EXPECT_EQ(before->digest, after->digest);
    EXPECT_EQ(before->ops, after->ops);
    EXPECT_EQ(before->traffic, after->traffic);
    EXPECT_EQ(before->tensors, after->tensors);
  }
}

TEST(PlanProperty, SeveralPublicationsWithOnePlanBringNewValues) {
  const Case made = CaseMaker(7).model_case();
  const auto planned = plan(made.source, made.target, made.options);
  ASSERT_TRUE(planned);
  for (std::uint64_t round = 1; round <= 3; ++round)
    expect_same_as_gathering(*planned, made.source, made.target, made.options, round);
}

}  // namespace
}  // namespace troupe::reshard

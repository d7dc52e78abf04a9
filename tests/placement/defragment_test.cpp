// Proves that suggested moves are legal one after the other and that the waiting group fits after
// them; that nothing is moved; and that it says so when nothing helps.

#include "placement/defragment.hpp"

#include "tests/placement/random_case.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::placement {
namespace {

using ::testing::HasSubstr;

GroupRequest gpus(std::string name, std::size_t bundles, std::int32_t each = 1) {
  return {.name = std::move(name),
          .bundles = std::vector(bundles, Bundle{.resources = {.gpu = Amount::whole(each)}})};
}

Cluster cluster_of(int nodes, int devices) {
  std::vector<NodeSpec> specs;
  for (int i = 0; i < nodes; ++i) {
    NodeSpec spec{.name = fmt::format("node{}", i)};
    spec.devices.resize(static_cast<std::size_t>(devices));
    specs.push_back(std::move(spec));
  }
  return Cluster::create(std::move(specs)).value();
}

/// Carries the moves out on a copy and checks each.
void expect_works(const Cluster& cluster, const GroupRequest& request,
                  const Defragmentation& plan) {
  Cluster work = cluster;
  for (const Move& move : plan.moves) {
    const GroupRequest moved = work.group(move.group)->request;
    EXPECT_TRUE(moved.movable);
    ASSERT_EQ(work.group(move.group)->bundles.at(move.from.bundle), move.from);
    ASSERT_TRUE(work.allocate_moved(moved, move.from, move.to));
    std::vector<BundlePlacement> whole;
    for (const auto& [index, bundle] : work.group(move.group)->bundles) whole.push_back(bundle);
    const auto checked = check_placement(work, moved, whole);
    EXPECT_TRUE(checked) << checked.error().message;
    work.check_invariants();
  }
  const auto taken = work.allocate(request, plan.bundles);
  EXPECT_TRUE(taken) << taken.error().message;
  EXPECT_TRUE(check_placement(work, request, plan.bundles));
  work.check_invariants();
}

TEST(Defragment, ClearsTheNodeThatTakesFewestMoves) {
  Cluster cluster = cluster_of(3, 4);
  Scheduler scheduler;
  GroupRequest spread = gpus("old", 3);
  spread.strategy = Strategy::kSpread;
  ASSERT_EQ(scheduler.place_one(cluster, spread).kind, DecisionKind::kPlaced);
  ASSERT_EQ(scheduler.place_one(cluster, gpus("two", 1, 2)).kind, DecisionKind::kPlaced);
  const GroupRequest request = gpus("new", 1, 4);
  const auto plan = suggest_moves(cluster, request);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->moves.size(), 1U);
  EXPECT_EQ(plan->moves[0].group, "old");
  expect_works(cluster, request, *plan);
}

TEST(Defragment, LeavesWhatMustNotMove) {
  Cluster cluster = cluster_of(2, 2);
  Scheduler scheduler;
  GroupRequest strict = gpus("strict", 2);
  strict.strategy = Strategy::kStrictSpread;
  ASSERT_EQ(scheduler.place_one(cluster, strict).kind, DecisionKind::kPlaced);
  const auto none = suggest_moves(cluster, gpus("new", 1, 2));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message, HasSubstr("no moves found"));
  ASSERT_TRUE(cluster.release("strict"));
  GroupRequest pinned = gpus("pinned", 2);
  pinned.strategy = Strategy::kSpread;
  pinned.movable = false;
  ASSERT_EQ(scheduler.place_one(cluster, pinned).kind, DecisionKind::kPlaced);
  EXPECT_FALSE(suggest_moves(cluster, gpus("new", 1, 2)));
  EXPECT_THAT(suggest_moves(cluster, gpus("new", 1, 1)).error().message,
              HasSubstr("fits without moves"));
  EXPECT_THAT(suggest_moves(cluster, gpus("new", 1, 3)).error().message,
              HasSubstr("no place, whatever is moved"));
}

TEST(Defragment, SuggestionsWorkOnRandomClusters) {
  int suggested = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::RandomCase random(seed);
    Cluster cluster = Cluster::create(random.nodes(3 + random.below(5))).value();
    Scheduler scheduler;
    for (int i = 0; i < 10; ++i)
      scheduler.place_one(cluster,
                          random.request(fmt::format("old{}", i), 1 + random.below(2), {}));
    for (int i = 0; i < 10; i += 2) {
      const auto ended = cluster.release(fmt::format("old{}", i));
      static_cast<void>(ended);  // some were never placed
    }
    const GroupRequest request = random.request("new", 1 + random.below(3), {});
    const std::uint64_t version = cluster.version();
    const auto plan = suggest_moves(cluster, request);
    EXPECT_EQ(cluster.version(), version);
    if (!plan) continue;
    ++suggested;
    expect_works(cluster, request, *plan);
  }
  EXPECT_GT(suggested, 5);
}

}  // namespace
}  // namespace troupe::placement

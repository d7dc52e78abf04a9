// Proves that `explain` names the constraint that fails on each node, the groups that hold what is
// needed, the place in the queue, and what would let the group run; and that ending exactly those
// groups does let it run.

#include "placement/explain.hpp"

#include "tests/placement/random_case.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace troupe::placement {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GroupRequest gpus(std::string name, std::size_t bundles, std::int32_t each = 1) {
  return {.name = std::move(name),
          .bundles = std::vector(bundles, Bundle{.resources = {.gpu = Amount::whole(each)}})};
}

std::vector<QueuedGroup> queue_of(std::vector<GroupRequest> requests) {
  std::vector<QueuedGroup> queue;
  for (GroupRequest& request : requests)
    queue.push_back(
        {.request = std::move(request), .arrival = static_cast<std::uint64_t>(queue.size())});
  return queue;
}

Cluster three_nodes() {
  std::vector<NodeSpec> specs;
  for (const char* name : {"a", "b", "c"}) {
    NodeSpec spec{.name = name, .cores = 8, .memory = gibibytes(16), .labels = {{"zone", "x"}}};
    spec.devices.resize(4);
    specs.push_back(std::move(spec));
  }
  specs[2].labels["zone"] = "y";
  return Cluster::create(std::move(specs)).value();
}

void run(Cluster& cluster, const GroupRequest& request) {
  ASSERT_EQ(Scheduler().place_one(cluster, request).kind, DecisionKind::kPlaced) << request.name;
}

const Refusal& at(const Explanation& explanation, const std::string& place) {
  static const Refusal kNone{.place = "nowhere"};
  for (const std::vector<Refusal>* list : {&explanation.nodes, &explanation.domains}) {
    for (const Refusal& refusal : *list) {
      if (refusal.place == place) return refusal;
    }
  }
  return kNone;
}

TEST(Explain, NamesResourceHoldersAndPosition) {
  Cluster cluster = three_nodes();
  run(cluster, gpus("train", 1, 3));
  GroupRequest memory = gpus("eval", 1);
  memory.bundles[0].resources = {.memory = gibibytes(10)};
  run(cluster, memory);
  run(cluster, gpus("rest", 2, 4));
  GroupRequest wanted = gpus("wanted", 1, 2);
  wanted.bundles[0].resources.memory = gibibytes(8);
  wanted.bundles[0].selectors = {{"zone", SelectorOp::kEqual, {"x"}}};
  const auto queue = queue_of({gpus("first", 1, 4), wanted});
  Scheduler scheduler;
  Cluster after = cluster;
  ASSERT_TRUE(scheduler.pass(after, queue));
  const Explanation explanation = explain(cluster, scheduler, queue, "wanted");
  EXPECT_EQ(explanation.state, GroupState::kWaiting);
  EXPECT_EQ(explanation.wait, WaitReason::kResources);
  EXPECT_EQ(explanation.position, 2U);
  EXPECT_THAT(explanation.ahead, ElementsAre("first"));
  const Refusal& a = at(explanation, "node a");
  EXPECT_EQ(a.constraint, Constraint::kGpu);
  EXPECT_EQ(a.wanted, "2");
  EXPECT_EQ(a.found, "1");
  EXPECT_THAT(a.held_by, ElementsAre("train"));
  EXPECT_FALSE(a.by_capacity);
  const Refusal& c = at(explanation, "node c");
  EXPECT_EQ(c.constraint, Constraint::kSelector);
  EXPECT_EQ(c.wanted, "zone = x");
  EXPECT_EQ(c.found, "y");
  EXPECT_THAT(explanation.summary,
              HasSubstr("group wanted waits for resources, position 2 in the queue"));
  EXPECT_THAT(explanation.summary, HasSubstr("it would run when these end: "));
  EXPECT_THAT(explanation.to_string(), HasSubstr("node a: gpu wanted 2, free 1 (held by train)"));
}

TEST(Explain, TellsWhatIsHeldForAGroupBefore) {
  Cluster cluster = three_nodes();
  run(cluster, gpus("train", 1, 1));
  Scheduler scheduler;
  const auto queue = queue_of({gpus("big", 3, 4), gpus("small", 1)});
  ASSERT_TRUE(scheduler.pass(cluster, queue));
  const Explanation explanation = explain(cluster, scheduler, queue, "small");
  EXPECT_EQ(explanation.wait, WaitReason::kReserved);
  EXPECT_EQ(at(explanation, "node b").constraint, Constraint::kHeld);
  EXPECT_THAT(explanation.summary, HasSubstr("held for groups before it"));
}

TEST(Explain, TellsDrainingAffinityAndStrategy) {
  Cluster cluster = three_nodes();
  run(cluster, gpus("data", 1, 4));
  ASSERT_TRUE(cluster.set_draining(*cluster.find_node("c"), true));
  GroupRequest near = gpus("near", 1);
  near.affinities = {{.group = "data"}};
  Scheduler scheduler;
  const auto queue = queue_of({near});
  const Explanation first = explain(cluster, scheduler, queue, "near");
  EXPECT_EQ(first.wait, WaitReason::kAffinity);
  EXPECT_EQ(at(first, "node b").constraint, Constraint::kAffinity);
  EXPECT_EQ(at(first, "node b").resource, "data");
  EXPECT_EQ(at(first, "node c").constraint, Constraint::kDraining);
  EXPECT_EQ(at(first, "node a").constraint, Constraint::kGpu);
  GroupRequest strict = gpus("strict", 3);
  strict.strategy = Strategy::kStrictPack;
  strict.level = Level::kNode;
  run(cluster, gpus("more", 2));
  const auto second_queue = queue_of({strict});
  const Explanation second = explain(cluster, scheduler, second_queue, "strict");
  EXPECT_EQ(at(second, "node b").constraint, Constraint::kStrategy);
  EXPECT_EQ(at(second, "node b").found, "2");
}

TEST(Explain, TellsInfeasibleUnknownActiveRejectedAndReady) {
  Cluster cluster = three_nodes();
  run(cluster, gpus("active", 1));
  Scheduler scheduler;
  const auto queue = queue_of({gpus("huge", 1, 8), gpus("bad", 0), gpus("ready", 1)});
  const Explanation huge = explain(cluster, scheduler, queue, "huge");
  EXPECT_EQ(huge.state, GroupState::kInfeasible);
  EXPECT_TRUE(at(huge, "node a").by_capacity);
  EXPECT_THAT(huge.summary, HasSubstr("closest node, a, has gpu 4"));
  EXPECT_EQ(explain(cluster, scheduler, queue, "nobody").state, GroupState::kUnknown);
  EXPECT_EQ(explain(cluster, scheduler, queue, "active").state, GroupState::kActive);
  EXPECT_EQ(explain(cluster, scheduler, queue, "bad").state, GroupState::kRejected);
  EXPECT_THAT(explain(cluster, scheduler, queue, "ready").summary, HasSubstr("fits now"));
}

TEST(Explain, EndingTheGroupsItNamesLetsTheGroupRun) {
  int waited = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::RandomCase random(seed);
    Cluster cluster = Cluster::create(random.nodes(2 + random.below(5))).value();
    Scheduler scheduler;
    for (int i = 0; i < 8; ++i)
      scheduler.place_one(cluster, random.request(fmt::format("old{}", i), 2, {}));
    const auto queue = queue_of({random.request("new", 1 + random.below(4), {})});
    if (!validate(queue[0].request)) continue;
    Cluster after = cluster;
    const auto result = scheduler.pass(after, queue);
    const DecisionKind kind = result->decisions[0].kind;
    const Explanation explanation = explain(cluster, scheduler, queue, "new");
    EXPECT_EQ(explanation.state == GroupState::kInfeasible, kind == DecisionKind::kInfeasible);
    EXPECT_EQ(explanation.state == GroupState::kWaiting && explanation.wait == WaitReason::kNone,
              kind == DecisionKind::kPlaced);
    if (kind != DecisionKind::kWaiting) continue;
    ++waited;
    EXPECT_THAT(explanation.nodes.size() + explanation.domains.size(), ::testing::Gt(0U));
    ASSERT_FALSE(explanation.would_run_when.empty());
    for (const std::string& name : explanation.would_run_when)
      ASSERT_TRUE(cluster.release(name)) << name;
    EXPECT_EQ(Scheduler().place_one(cluster, queue[0].request).kind, DecisionKind::kPlaced);
  }
  EXPECT_GT(waited, 40);
}

}  // namespace
}  // namespace troupe::placement

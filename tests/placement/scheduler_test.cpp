// Proves what a pass promises: all bundles or none, order by priority, age and arrival, immediate
// and explained infeasibility, reservations that keep big groups from starving (by a property test
// over random streams of small groups), repair and elastic groups that leave survivors alone.

#include "placement/scheduler.hpp"

#include "tests/placement/random_case.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace troupe::placement {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Cluster cluster_of(int nodes, int devices) {
  std::vector<NodeSpec> specs;
  for (int i = 0; i < nodes; ++i) {
    NodeSpec spec{.name = fmt::format("node{}", i), .cores = 16, .memory = gibibytes(64)};
    spec.devices.resize(static_cast<std::size_t>(devices));
    specs.push_back(std::move(spec));
  }
  return Cluster::create(std::move(specs)).value();
}

GroupRequest gpus(std::string name, std::size_t bundles, std::int32_t each = 1,
                  std::int32_t priority = 0) {
  return {.name = std::move(name),
          .bundles = std::vector(bundles, Bundle{.resources = {.gpu = Amount::whole(each)}}),
          .priority = priority};
}

std::vector<QueuedGroup> queue_of(std::vector<GroupRequest> requests) {
  std::vector<QueuedGroup> queue;
  for (GroupRequest& request : requests) {
    const auto arrival = static_cast<std::uint64_t>(queue.size());
    queue.push_back({.request = std::move(request), .arrival = arrival});
  }
  return queue;
}

std::map<std::string, Decision> decide(Scheduler& scheduler, Cluster& cluster,
                                       const std::vector<QueuedGroup>& queue) {
  std::map<std::string, Decision> decisions;
  auto result = scheduler.pass(cluster, queue);
  EXPECT_TRUE(result);
  for (Decision& decision : result->decisions)
    decisions.emplace(decision.group, std::move(decision));
  cluster.check_invariants();
  return decisions;
}

TEST(Scheduler, PlacesAllBundlesOrNone) {
  Cluster cluster = cluster_of(2, 4);
  Scheduler scheduler;
  auto decisions = decide(scheduler, cluster, queue_of({gpus("a", 6), gpus("b", 4), gpus("c", 2)}));
  EXPECT_EQ(decisions["a"].kind, DecisionKind::kPlaced);
  EXPECT_EQ(decisions["b"].kind, DecisionKind::kWaiting);
  EXPECT_EQ(decisions["b"].position, 1U);
  EXPECT_EQ(cluster.group("b"), nullptr);
}

TEST(Scheduler, OrdersByPriorityThenArrivalAndAgesPriorities) {
  Scheduler scheduler;
  std::vector<QueuedGroup> queue =
      queue_of({gpus("early", 4), gpus("urgent", 4, 1, 5), gpus("old", 4)});
  Cluster cluster = cluster_of(1, 4);
  EXPECT_EQ(decide(scheduler, cluster, queue)["urgent"].kind, DecisionKind::kPlaced);
  queue[2].waited = seconds(30 * 6);
  EXPECT_EQ(standing(queue[2], scheduler.options()), seconds(180));
  cluster = cluster_of(1, 4);
  EXPECT_EQ(decide(scheduler, cluster, queue)["old"].kind, DecisionKind::kPlaced)
      << "six steps of age beat five";
}

TEST(Scheduler, InfeasibleIsImmediateAndSaysWhatIsMissing) {
  Cluster cluster = cluster_of(2, 4);
  Scheduler scheduler;
  GroupRequest strict = gpus("pack", 5);
  strict.strategy = Strategy::kStrictPack;
  GroupRequest spread = gpus("spread", 3);
  spread.strategy = Strategy::kStrictSpread;
  GroupRequest label = gpus("label", 1);
  label.bundles[0].selectors = {{"zone", SelectorOp::kEqual, {"mars"}}};
  GroupRequest memory = gpus("memory", 1);
  memory.bundles[0].resources.memory = gibibytes(100);
  GroupRequest license = gpus("license", 1);
  license.bundles[0].resources.named["license"] = Amount::whole(1);
  GroupRequest exact = gpus("exact", 10);
  exact.per_domain_exact = 5;
  GroupRequest mixed = gpus("mixed", 2, 3);
  mixed.bundles.push_back({.resources = {.gpu = Amount::whole(2)}});
  auto decisions = decide(scheduler, cluster,
                          queue_of({gpus("wide", 1, 8), strict, spread, label, memory, license,
                                    exact, mixed, gpus("many", 9)}));
  const std::map<std::string, std::string> wanted{
      {"wide", "bundle 0 wants gpu 8; the closest node, node0, has gpu 4"},
      {"pack",
       "STRICT_PACK wants 5 bundles of gpu 1 in one node; the closest, node node0, holds 4"},
      {"spread",
       "STRICT_SPREAD wants 3 bundles of gpu 1 with at most 1 per node; 2 nodes can hold any"},
      {"label", "bundle 0 wants label zone = mars: none of 2 nodes has it"},
      {"memory", "bundle 0 wants memory 100.0 GiB; the closest node, node0, has memory 64.0 GiB"},
      {"license", "bundle 0 wants license 1; the closest node, node0, has license 0"},
      {"exact",
       "wants 10 bundles of gpu 1, 5 in each node; 0 of 2 can hold that many, the closest other"},
      {"mixed",
       "each bundle fits by itself, but no combination of the 3 bundles does with PACK at level "
       "node"},
      {"many", "wants 9 bundles of gpu 1; the cluster holds 8"}};
  for (const auto& [name, text] : wanted) {
    EXPECT_EQ(decisions[name].kind, DecisionKind::kInfeasible) << name;
    ASSERT_TRUE(decisions[name].error);
    EXPECT_EQ(decisions[name].error->code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(decisions[name].error->message,
                HasSubstr("group " + name + ": infeasible: " + text));
    EXPECT_FALSE(scheduler.check_feasible(cluster, queue_of({gpus("x", 1, 8)})[0].request));
  }
}

TEST(Scheduler, FeasibleAgainWhenANodeJoins) {
  Cluster cluster = cluster_of(1, 4);
  Scheduler scheduler;
  EXPECT_FALSE(scheduler.check_feasible(cluster, gpus("g", 1, 8)));
  NodeSpec big{.name = "big"};
  big.devices.resize(8);
  ASSERT_TRUE(cluster.add_node(big));
  EXPECT_TRUE(scheduler.check_feasible(cluster, gpus("g", 1, 8)));
  ASSERT_TRUE(cluster.set_draining(*cluster.find_node("big"), true));
  const auto draining = scheduler.check_feasible(cluster, gpus("g", 1, 8));
  EXPECT_FALSE(draining);
}

TEST(Scheduler, BadRequestsAreRejectedWithTheirOwnErrors) {
  Cluster cluster = cluster_of(1, 4);
  Scheduler scheduler;
  ASSERT_EQ(scheduler.place_one(cluster, gpus("active", 1)).kind, DecisionKind::kPlaced);
  GroupRequest lonely = gpus("lonely", 1);
  lonely.affinities = {{.group = "nobody"}};
  auto decisions =
      decide(scheduler, cluster, queue_of({gpus("empty", 0), gpus("active", 1), lonely}));
  EXPECT_THAT(decisions["empty"].error->message, HasSubstr("no bundles"));
  EXPECT_EQ(decisions["active"].error->code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(decisions["lonely"].error->code, ErrorCode::kNotFound);
  EXPECT_THAT(decisions["lonely"].error->message, HasSubstr("affinity to nobody: no such group"));
  const auto twice = scheduler.pass(cluster, queue_of({gpus("x", 1), gpus("x", 1)}));
  EXPECT_EQ(twice->decisions[1].error->code, ErrorCode::kAlreadyExists);
  const auto queue = queue_of({gpus("queued", 1)});
  EXPECT_EQ(scheduler.check_submission(cluster, queue, gpus("queued", 1)).error().code,
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(scheduler.check_submission(cluster, queue, gpus("active", 1)).error().code,
            ErrorCode::kAlreadyExists);
  lonely.affinities[0].apart = true;
  EXPECT_EQ(scheduler.check_submission(cluster, queue, lonely).error().code, ErrorCode::kNotFound);
  lonely.affinities[0].group = "queued";
  EXPECT_TRUE(scheduler.check_submission(cluster, queue, lonely));
  SchedulerOptions small;
  small.queue_max = 1;
  EXPECT_EQ(Scheduler(small).pass(cluster, queue_of({gpus("a", 1), gpus("b", 1)})).error().code,
            ErrorCode::kResourceExhausted);
}

TEST(Scheduler, GroupsThatWaitForEachOtherAreRejected) {
  Cluster cluster = cluster_of(2, 4);
  Scheduler scheduler;
  GroupRequest a = gpus("a", 1);
  GroupRequest b = gpus("b", 1);
  GroupRequest c = gpus("c", 1);
  a.affinities = {{.group = "b"}};
  b.affinities = {{.group = "a"}};
  c.affinities = {{.group = "d"}};
  auto decisions = decide(scheduler, cluster, queue_of({a, b, c, gpus("d", 1)}));
  EXPECT_EQ(decisions["a"].error->code, ErrorCode::kConflict);
  EXPECT_EQ(decisions["b"].error->code, ErrorCode::kConflict);
  EXPECT_EQ(decisions["c"].wait, WaitReason::kAffinity);
  EXPECT_EQ(decisions["d"].kind, DecisionKind::kPlaced);
  auto next = decide(scheduler, cluster, queue_of({c}));
  EXPECT_EQ(next["c"].bundles[0].node_name, cluster.group("d")->bundles.at(0).node_name);
}

TEST(Scheduler, SmallGroupsUseWhatAReservationLeavesOverAndNoMore) {
  Cluster cluster = cluster_of(2, 4);
  Scheduler scheduler;
  ASSERT_EQ(scheduler.place_one(cluster, gpus("running", 3)).kind,
            DecisionKind::kPlaced);  // one device left there
  GroupRequest big = gpus("big", 2, 4);
  auto decisions = decide(scheduler, cluster, queue_of({big, gpus("small", 1), gpus("tiny", 1)}));
  EXPECT_EQ(decisions["big"].wait, WaitReason::kResources);
  EXPECT_EQ(decisions["small"].wait, WaitReason::kReserved) << "all devices are held for big";
  EXPECT_EQ(decisions["tiny"].position, 3U);
  ASSERT_EQ(scheduler.reservations().size(), 1U);
  ASSERT_TRUE(cluster.release("running"));
  decisions = decide(scheduler, cluster, queue_of({big, gpus("small", 1)}));
  EXPECT_EQ(decisions["big"].kind, DecisionKind::kPlaced);
  EXPECT_EQ(decisions["small"].wait, WaitReason::kResources);

  Cluster wider = cluster_of(3, 4);
  Scheduler other;
  ASSERT_EQ(other.place_one(wider, gpus("running", 3)).kind, DecisionKind::kPlaced);
  ASSERT_EQ(other.place_one(wider, gpus("more", 2, 4)).kind, DecisionKind::kPlaced);
  ASSERT_TRUE(wider.release("more"));
  GroupRequest three = gpus("three", 3, 4);
  three.strategy = Strategy::kStrictSpread;
  GroupRequest two = gpus("two", 1, 4);
  decisions = decide(other, wider, queue_of({three, two}));
  EXPECT_EQ(decisions["two"].wait, WaitReason::kReserved);
}

/// A stream of small groups that never ends, and one big group: it must be placed as soon as those
/// that ran when it came to the head of the queue have ended.
TEST(Scheduler, BigGroupsAreNotStarvedByAStreamOfSmallOnes) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::RandomCase random(seed);
    const int nodes = 2 + random.below(4);
    Cluster cluster = cluster_of(nodes, 4);
    Scheduler scheduler;
    std::map<std::string, int> ends;  // running group → step it ends at
    std::vector<QueuedGroup> queue;
    std::uint64_t arrivals = 0;
    const auto enqueue = [&](GroupRequest request) {
      queue.push_back({.request = std::move(request), .arrival = arrivals++});
    };
    int placed_at = -1;
    int last_end = -1;  // of what runs when the big group first waits
    const int big_comes = 5 + random.below(10);
    for (int step = 0; step < 200 && placed_at < 0; ++step) {
      for (auto at = ends.begin(); at != ends.end();) {
        if (at->second > step) {
          ++at;
          continue;
        }
        ASSERT_TRUE(cluster.release(at->first));
        at = ends.erase(at);
      }
      if (step == big_comes) {
        GroupRequest big = gpus("big", static_cast<std::size_t>(nodes), 3 + random.below(2));
        big.strategy = random.chance(0.5) ? Strategy::kStrictSpread : Strategy::kPack;
        enqueue(std::move(big));
      }
      for (int i = 0; i <= nodes; ++i)  // more than fits, every step
        enqueue(gpus(fmt::format("small{}-{}", step, i),
                     static_cast<std::size_t>(1 + random.below(2)), 1 + random.below(2),
                     random.below(3)));
      for (QueuedGroup& queued : queue) queued.waited += seconds(10);
      const auto result = scheduler.pass(cluster, queue);
      ASSERT_TRUE(result);
      cluster.check_invariants();
      bool head = false;
      for (const Decision& decision : result->decisions) {
        if (decision.kind == DecisionKind::kPlaced) {
          if (decision.group == "big") placed_at = step;
          ends[decision.group] = step + 1 + random.below(8);
        } else if (decision.group == "big") {
          ASSERT_EQ(decision.kind, DecisionKind::kWaiting);
          head = decision.position == 1;
        }
      }
      // From here no newcomer can pass it: those come with 2 × 30 s at most, and have waited 10 s.
      if (head && last_end < 0 && step - big_comes >= 7) {
        for (const auto& [name, end] : ends) last_end = std::max(last_end, end);
      }
      std::erase_if(queue, [&](const QueuedGroup& queued) {
        return cluster.group(queued.request.name) != nullptr;
      });
    }
    ASSERT_GE(placed_at, 0) << "starved";
    if (last_end >= 0) {
      EXPECT_LE(placed_at, last_end + 1);
    }
  }
}

TEST(Scheduler, LowPrioritiesAreNotStarvedByHighOnes) {
  Cluster cluster = cluster_of(1, 4);
  Scheduler scheduler;
  std::vector<QueuedGroup> queue = queue_of({gpus("low", 4, 1, 0)});
  bool placed = false;
  for (int step = 1; step < 40 && !placed; ++step) {
    queue.push_back({.request = gpus(fmt::format("high{}", step), 4, 1, 10),
                     .arrival = static_cast<std::uint64_t>(step)});
    for (QueuedGroup& queued : queue) queued.waited += seconds(20);
    auto decisions = decide(scheduler, cluster, queue);
    placed = decisions["low"].kind == DecisionKind::kPlaced;
    std::vector<std::string> running;
    for (const auto& [name, group] : cluster.groups()) running.push_back(name);
    for (const std::string& name : running) {
      ASSERT_TRUE(cluster.release(name));
      std::erase_if(queue, [&](const QueuedGroup& queued) { return queued.request.name == name; });
    }
  }
  EXPECT_TRUE(placed) << "ten priorities are ten times 30 s";
}

TEST(Scheduler, RepairPlacesLostBundlesAndLeavesSurvivorsAlone) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::RandomCase random(seed);
    Cluster cluster = Cluster::create(random.nodes(4 + random.below(4))).value();
    Scheduler scheduler;
    const GroupRequest request = random.request("g", 2 + random.below(4), {});
    if (scheduler.place_one(cluster, request).kind != DecisionKind::kPlaced) continue;
    const auto nodes = cluster.nodes();
    const NodeId gone =
        nodes[static_cast<std::size_t>(random.below(static_cast<int>(nodes.size())))].id;
    ASSERT_TRUE(cluster.remove_node(gone));
    const auto survivors = cluster.group("g")->bundles;
    if (survivors.size() == request.bundles.size()) continue;
    auto decisions = decide(scheduler, cluster, queue_of({request}));
    for (const auto& [index, bundle] : survivors)
      EXPECT_EQ(cluster.group("g")->bundles.at(index), bundle);
    if (decisions["g"].kind != DecisionKind::kPlaced) continue;
    EXPECT_EQ(decisions["g"].bundles.size(), request.bundles.size() - survivors.size());
    ASSERT_TRUE(cluster.group("g")->is_complete());
    std::vector<BundlePlacement> whole;
    for (const auto& [index, bundle] : cluster.group("g")->bundles) whole.push_back(bundle);
    EXPECT_TRUE(check_placement(cluster, request, whole));
  }
}

TEST(Scheduler, GroupsGrowAndShrinkWhileTheyRun) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::RandomCase random(seed);
    Cluster cluster = Cluster::create(random.nodes(3 + random.below(5))).value();
    Scheduler scheduler;
    GroupRequest request = random.request("g", 1 + random.below(4), {});
    if (scheduler.place_one(cluster, request).kind != DecisionKind::kPlaced) continue;
    for (int step = 0; step < 6; ++step) {
      const ActiveGroup before = *cluster.group("g");
      const std::size_t count = before.request.bundles.size();
      if (random.chance(0.5)) {
        const auto grown = grow(
            before, std::vector(static_cast<std::size_t>(1 + random.below(2)), random.bundle()));
        if (!grown) continue;
        auto decisions = decide(scheduler, cluster, queue_of({*grown}));
        for (const auto& [index, bundle] : before.bundles)
          ASSERT_EQ(cluster.group("g")->bundles.at(index), bundle) << "a survivor moved";
        if (decisions["g"].kind != DecisionKind::kPlaced) {
          EXPECT_EQ(cluster.group("g")->request, before.request);
        }
      } else {
        std::vector<std::int32_t> drop{random.below(static_cast<std::int32_t>(count))};
        const auto kept = shrink(cluster, "g", drop);
        if (!kept) {
          EXPECT_EQ(cluster.group("g")->bundles, before.bundles);
          continue;
        }
        ASSERT_EQ(kept->size(), count - 1);
        for (std::size_t i = 0; i < kept->size(); ++i) {
          BundlePlacement wanted = before.bundles.at((*kept)[i]);
          wanted.bundle = static_cast<std::int32_t>(i);
          ASSERT_EQ(cluster.group("g")->bundles.at(static_cast<std::int32_t>(i)), wanted);
        }
      }
      cluster.check_invariants();
      std::vector<BundlePlacement> whole;
      for (const auto& [index, bundle] : cluster.group("g")->bundles) whole.push_back(bundle);
      const auto checked = check_placement(cluster, cluster.group("g")->request, whole);
      ASSERT_TRUE(checked) << checked.error().message;
    }
  }
}

TEST(Scheduler, AnActiveGroupIsOnlyCompletedByWhatItWas) {
  Cluster cluster = cluster_of(2, 4);
  Scheduler scheduler;
  ASSERT_EQ(scheduler.place_one(cluster, gpus("g", 2)).kind, DecisionKind::kPlaced);
  GroupRequest other = gpus("g", 3);
  other.bundles[0].resources.gpu = Amount::whole(2);
  for (const bool by_pass : {true, false}) {
    const auto decide_one = [&](const GroupRequest& request) {
      if (!by_pass) return scheduler.place_one(cluster, request);
      return decide(scheduler, cluster, queue_of({request}))["g"];
    };
    EXPECT_THAT(decide_one(other).error->message, HasSubstr("bundle 0 differs in the request"));
    GroupRequest spread = gpus("g", 3);
    spread.strategy = Strategy::kSpread;
    EXPECT_THAT(decide_one(spread).error->message,
                HasSubstr("is active as PACK at level node, queued as SPREAD"));
    EXPECT_EQ(decide_one(gpus("g", 2)).error->code, ErrorCode::kAlreadyExists);
  }
  EXPECT_EQ(cluster.group("g")->request, gpus("g", 2));
}

TEST(Scheduler, ShrinkRefusesWhatIsNotThereAndTheLastBundle) {
  Cluster cluster = cluster_of(1, 4);
  ASSERT_EQ(Scheduler().place_one(cluster, gpus("g", 2)).kind, DecisionKind::kPlaced);
  EXPECT_EQ(shrink(cluster, "h", {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(shrink(cluster, "g", {{5}}).error().code, ErrorCode::kNotFound);
  EXPECT_THAT(shrink(cluster, "g", {{0, 1}}).error().message, HasSubstr("no bundles"));
  EXPECT_THAT(shrink(cluster, "g", {{0}}).value(), ElementsAre(1));
}

TEST(Scheduler, ABudgetThatEndsIsNotCalledInfeasible) {
  NodeSpec spec{.name = "a"};
  spec.devices.resize(5);
  Cluster cluster = Cluster::create({spec}).value();
  SchedulerOptions options;
  options.search.steps_max = 1;
  Scheduler hasty(options);
  const auto shares = [](std::vector<std::int64_t> units) {
    GroupRequest request{.name = "g", .bundles = {}};
    for (const std::int64_t each : units)
      request.bundles.push_back({.resources = {.gpu = Amount{each}}});
    return request;
  };
  // Each shape fits alone and the sum is 5.0 devices less a little; only a search tells that no
  // device can take 0.55 beside 0.4 or 0.7 with all others placed.
  const GroupRequest hard = shares({4'000, 4'000, 4'000, 4'000, 7'000, 7'000, 7'000, 7'000, 5'500});
  const Decision unknown = hasty.place_one(cluster, hard);
  EXPECT_EQ(unknown.kind, DecisionKind::kWaiting);
  EXPECT_EQ(unknown.wait, WaitReason::kSearchBudget);
  EXPECT_EQ(Scheduler().place_one(cluster, hard).kind, DecisionKind::kInfeasible)
      << "searched to the end";
  EXPECT_EQ(hasty
                .place_one(cluster, shares({5'100, 5'100, 5'100, 5'100, 5'100, 4'900, 4'900, 4'900,
                                            4'900, 4'901}))
                .kind,
            DecisionKind::kInfeasible)
      << "the sum of 5.0001 is a proof without a search";
  EXPECT_EQ(
      hasty.place_one(cluster, shares({6'000, 6'000, 6'000, 6'000, 6'000, 6'000, 1'000})).kind,
      DecisionKind::kInfeasible)
      << "six of 0.6 are a proof, too";
}

}  // namespace
}  // namespace troupe::placement

// Proves the rules of the head's directory: who may register, when a closed or silent connection
// means loss, what an instance that comes back is told, and that lists come in bounded pages. By
// examples, and by random histories in which every instance that came up goes down exactly once
// and in time, checked after each event. Seeds are printed.

#include "runtime/cluster/directory.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace troupe::runtime {
namespace {

using testing::HasSubstr;

TimePoint at(double seconds_from_start) {
  return TimePoint{std::chrono::hours(1)} +
         std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds_from_start));
}

NodeArrived arrive(const std::string& name, std::uint64_t instance, std::uint64_t connection,
                   int devices = 2) {
  NodeRegister node{.name = name,
                    .address = "127.0.0.1:5000",
                    .pid = 7,
                    .version = "0.1",
                    .inventory = {},
                    .state = {}};
  node.inventory.host = "host-" + name;
  node.state.instance = instance;
  for (int i = 0; i < devices; ++i) {
    HostDevice device;
    device.index = i;
    device.model = "simulated";
    node.inventory.devices.push_back(device);
  }
  return {node, ConnectionId{connection}};
}

JobArrived announce(const std::string& name, std::uint64_t epoch, std::uint64_t connection) {
  return {{.name = name, .epoch = epoch, .host = "here", .pid = 9, .command = "troupe train"},
          ConnectionId{connection}};
}

ConnectionDown down(std::uint64_t connection, bool silent = false) {
  return {ConnectionId{connection}, silent, silent ? "no word for 3.0 s" : "connection reset"};
}

template <class Effect>
std::vector<Effect> only(const result<std::vector<DirectoryEffect>>& effects) {
  std::vector<Effect> found;
  EXPECT_TRUE(effects.has_value()) << effects.error().to_string();
  if (!effects) return found;
  for (const DirectoryEffect& effect : *effects) {
    if (const auto* one = std::get_if<Effect>(&effect)) found.push_back(*one);
  }
  return found;
}

std::string state_of(const DirectoryCore& core, const std::string& node, double now) {
  const auto entry = core.find_node(node, at(now));
  return entry ? entry->state : entry.error().to_string();
}

TEST(Directory, AClosedConnectionIsAwayThenLostAndASilentOneIsLostAtOnce) {
  DirectoryCore core;
  ASSERT_EQ(only<NodeUp>(core.step(arrive("a", 1, 1), at(0))).size(), 1U);
  ASSERT_EQ(only<NodeUp>(core.step(arrive("b", 2, 2), at(0))).size(), 1U);
  EXPECT_TRUE(only<NodeDown>(core.step(down(1), at(10))).empty());
  EXPECT_EQ(state_of(core, "a", 10), "away");
  EXPECT_EQ(core.next_due(), at(12));
  EXPECT_TRUE(only<NodeDown>(core.step(DirectoryTick{}, at(11.9))).empty());
  const auto lost = only<NodeDown>(core.step(DirectoryTick{}, at(12)));
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].cause.code, ErrorCode::kRankDead);
  EXPECT_THAT(lost[0].cause.message, HasSubstr("connection reset"));
  EXPECT_EQ(state_of(core, "a", 12), "lost");
  EXPECT_EQ(only<NodeDown>(core.step(down(2, true), at(13))).size(), 1U);
  EXPECT_FALSE(core.next_due());
}

TEST(Directory, TheSameInstanceComesBackWithinItsTimeAsIfNothingWas) {
  DirectoryCore core;
  ASSERT_TRUE(core.step(arrive("a", 1, 1), at(0)));
  ASSERT_TRUE(core.step(down(1), at(10)));
  const auto up = only<NodeUp>(core.step(arrive("a", 1, 5), at(11)));
  ASSERT_EQ(up.size(), 1U);
  EXPECT_TRUE(up[0].returned);
  EXPECT_TRUE(only<NodeDown>(core.step(down(1), at(11.5))).empty())
      << "the old connection's end is no news";
  EXPECT_TRUE(only<NodeDown>(core.step(DirectoryTick{}, at(20))).empty());
}

TEST(Directory, ANewInstanceReplacesOneThatIsAwayAndIsRefusedWhileTheOldIsUp) {
  DirectoryCore core;
  ASSERT_TRUE(core.step(arrive("a", 1, 1), at(0)));
  const auto refused = core.step(arrive("a", 2, 2), at(1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(refused.error().message, HasSubstr("127.0.0.1:5000"));
  ASSERT_TRUE(core.step(down(1), at(2)));
  const auto effects = core.step(arrive("a", 2, 2), at(3));
  ASSERT_EQ(only<NodeDown>(effects).size(), 1U);
  EXPECT_EQ(only<NodeDown>(effects)[0].epoch, 1U);
  EXPECT_THAT(only<NodeDown>(effects)[0].cause.message, HasSubstr("a new instance replaces it"));
  ASSERT_EQ(only<NodeUp>(effects).size(), 1U);
  EXPECT_FALSE(only<NodeUp>(effects)[0].returned);
}

TEST(Directory, DrainingSurvivesBeingAwayAndANewInstanceStartsFresh) {
  DirectoryCore core;
  ASSERT_TRUE(core.step(arrive("a", 1, 1), at(0)));
  EXPECT_EQ(only<NodeDraining>(core.step(NodeDrainWanted{"a"}, at(1))).size(), 1U);
  EXPECT_TRUE(only<NodeDraining>(core.step(NodeDrainWanted{"a"}, at(1))).empty());
  ASSERT_TRUE(core.step(down(1), at(2)));
  EXPECT_EQ(state_of(core, "a", 2), "away");
  EXPECT_EQ(only<NodeDraining>(core.step(arrive("a", 1, 2), at(3))).size(), 1U);
  EXPECT_EQ(state_of(core, "a", 3), "draining");
  EXPECT_EQ(core.step(NodeDrainWanted{"b"}, at(3)).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(core.step(NodeParted{ConnectionId{2}, "asked to"}, at(4)));
  EXPECT_EQ(core.step(NodeDrainWanted{"a"}, at(4)).error().code, ErrorCode::kConflict);
  ASSERT_TRUE(core.step(arrive("a", 9, 3), at(5)));
  EXPECT_EQ(state_of(core, "a", 5), "up");
}

TEST(Directory, SnapshotsCountOnlyFromTheRegisteredConnectionAndInOrder) {
  DirectoryCore core;
  EXPECT_EQ(core.step(NodeSnapshot{ConnectionId{1}, {}}, at(0)).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(core.step(arrive("a", 1, 1), at(0)));
  NodeState state{.instance = 1, .version = 5, .draining = false, .jobs = {"j"}, .ranks = {}};
  RankState rank;
  rank.job = "j";
  rank.group = "g";
  rank.phase = RankPhase::kRunning;
  state.ranks.push_back(rank);
  ASSERT_TRUE(core.step(NodeSnapshot{ConnectionId{1}, state}, at(1)));
  EXPECT_EQ(core.status().ranks_running, 1);
  state.version = 4;
  EXPECT_EQ(core.step(NodeSnapshot{ConnectionId{1}, state}, at(1)).error().code,
            ErrorCode::kConflict);
  state.version = 6;
  state.instance = 2;
  EXPECT_EQ(core.step(NodeSnapshot{ConnectionId{1}, state}, at(1)).error().code,
            ErrorCode::kConflict);
}

TEST(Directory, AControllerThatWasLostMustStartAnew) {
  DirectoryCore core;
  ASSERT_EQ(only<JobUp>(core.step(announce("j", 1, 1), at(0))).size(), 1U);
  EXPECT_EQ(core.step(announce("j", 2, 2), at(1)).error().code, ErrorCode::kAlreadyExists);
  const auto lost = only<JobDown>(core.step(down(1, true), at(2)));
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_FALSE(lost[0].ended);
  const auto refused = core.step(announce("j", 1, 3), at(3));
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_THAT(refused.error().message, HasSubstr("lost 1.0 s ago"));
  ASSERT_EQ(only<JobUp>(core.step(announce("j", 2, 4), at(4))).size(), 1U);
  const auto ended = only<JobDown>(core.step(JobParted{ConnectionId{4}, "done"}, at(5)));
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_TRUE(ended[0].ended);
  EXPECT_EQ(core.status().jobs_running, 0);
}

TEST(Directory, RefusesNamesThatDoNotFitAPathOrALine) {
  DirectoryCore core;
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a/b"), std::string(129, 'x')})
    EXPECT_EQ(core.step(arrive(name, 1, 1), at(0)).error().code, ErrorCode::kInvalidArgument)
        << name;
  EXPECT_EQ(core.step(announce("a\n", 1, 1), at(0)).error().code, ErrorCode::kInvalidArgument);
}

TEST(Directory, ListsComeInPagesOfBoundedSizeAndCountWhatMatches) {
  DirectoryCore core;
  for (std::uint64_t i = 0; i < 25; ++i)
    ASSERT_TRUE(core.step(arrive("n" + std::to_string(100 + i), i + 1, i + 1), at(0)));
  ASSERT_TRUE(core.step(NodeDrainWanted{"n103"}, at(0)));
  std::vector<std::string> names;
  PageRequest request{.after = "", .limit = 10, .job = "", .state = ""};
  for (int pages = 0; pages < 10; ++pages) {
    const auto page = core.nodes(request, at(1)).value();
    EXPECT_EQ(page.total, 25U);
    EXPECT_LE(page.entries.size(), 10U);
    for (const NodeEntry& entry : page.entries) names.push_back(entry.name);
    request.after = page.next;
    if (page.next.empty()) break;
  }
  ASSERT_EQ(names.size(), 25U);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  const auto draining =
      core.nodes({.after = "", .limit = 10, .job = "", .state = "draining"}, at(1)).value();
  ASSERT_EQ(draining.entries.size(), 1U);
  EXPECT_EQ(draining.entries[0].name, "n103");
  EXPECT_TRUE(draining.next.empty());
  for (const std::int32_t limit : {0, -1, kPageMax + 1})
    EXPECT_EQ(core.nodes({.after = "", .limit = limit, .job = "", .state = ""}, at(1)).error().code,
              ErrorCode::kInvalidArgument);
}

TEST(Directory, ForgetsTheOldestOfTheGoneAndRefusesBeyondItsBounds) {
  DirectoryCore core(
      {.away_for = std::chrono::seconds(2), .nodes_max = 4, .jobs_max = 1, .gone_kept = 2});
  for (std::uint64_t i = 1; i <= 4; ++i)
    ASSERT_TRUE(core.step(arrive("n" + std::to_string(i), i, i), at(0)));
  EXPECT_EQ(core.step(arrive("n5", 5, 5), at(0)).error().code, ErrorCode::kResourceExhausted);
  for (std::uint64_t i = 1; i <= 4; ++i)
    ASSERT_TRUE(core.step(NodeParted{ConnectionId{i}, "bye"}, at(static_cast<double>(i))));
  EXPECT_EQ(core.find_node("n2", at(9)).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(core.find_node("n3", at(9)));
  ASSERT_TRUE(core.step(announce("j", 1, 9), at(9)));
  EXPECT_EQ(core.step(announce("k", 1, 10), at(9)).error().code, ErrorCode::kResourceExhausted);
}

/// Nodes connect, drop, fall silent, are replaced and come back at random.
void random_history(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed);
  DirectoryCore core;
  double now = 0;
  std::uint64_t connections = 0;
  std::map<std::uint64_t, std::pair<std::string, std::uint64_t>> open;  // by connection
  std::map<std::string, std::uint64_t> up;  // name → instance, by effects
  std::map<std::string, double> closed_at;
  const auto apply = [&](const result<std::vector<DirectoryEffect>>& effects) {
    if (!effects) return false;
    for (const DirectoryEffect& effect : *effects) {
      if (const auto* node_up = std::get_if<NodeUp>(&effect)) {
        const auto known = up.find(node_up->name);
        EXPECT_TRUE(known == up.end() || (known->second == node_up->epoch && node_up->returned));
        up[node_up->name] = node_up->epoch;
      } else if (const auto* node_down = std::get_if<NodeDown>(&effect)) {
        const auto known = up.find(node_down->name);
        EXPECT_TRUE(known != up.end() && known->second == node_down->epoch);
        up.erase(node_down->name);
      }
    }
    return true;
  };
  for (int step = 0; step < 200; ++step) {
    now += rng.uniform();
    const std::string name = "n" + std::to_string(rng.below(3));
    const std::uint64_t kind = rng.below(10);
    if (kind < 4) {
      const std::uint64_t connection = ++connections;
      if (apply(core.step(arrive(name, 1 + rng.below(3), connection), at(now)))) {
        open[connection] = {name, 0};
        closed_at.erase(name);
      }
    } else if (kind < 8 && !open.empty()) {
      auto victim = open.begin();
      std::advance(victim, static_cast<std::ptrdiff_t>(rng.below(open.size())));
      const bool silent = rng.below(3) == 0;
      const bool current = core.node_connections().contains(victim->second.first) &&
                           core.node_connections().at(victim->second.first).value == victim->first;
      ASSERT_TRUE(apply(core.step(down(victim->first, silent), at(now))));
      if (current) closed_at[victim->second.first] = silent ? now - 10 : now;
      open.erase(victim);
    } else {
      ASSERT_TRUE(apply(core.step(DirectoryTick{}, at(now))));
      for (const auto& [gone, when] : closed_at) {
        ASSERT_EQ(up.contains(gone), now - when < 2)
            << gone << " closed at " << when << ", now " << now;
      }
    }
    for (const auto& [node, connection] : core.node_connections()) ASSERT_TRUE(up.contains(node));
  }
}

TEST(Directory, EveryInstanceGoesDownOnceAndInTimeInRandomHistories) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    random_history(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace troupe::runtime

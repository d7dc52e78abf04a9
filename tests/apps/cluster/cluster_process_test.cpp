// Proves the commands for clusters with real processes on loopback: head and unequal nodes, JSON
// and tables, exit codes, stopping, and what status says after kill -9 and SIGSTOP of a node, a
// head and a controller. The controller of these tests runs rank processes that share devices in
// turns.

#include "tests/support/troupe_processes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace troupe {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::eventually;
using ::testing::HasSubstr;
using testing::Process;
using testing::Said;
using testing::TestCluster;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Process& start_controller(TestCluster& cluster, const std::string& job, int bundles, int gpus,
                          int seconds = 60) {
  return cluster.start_program(job, {TROUPE_CLUSTER_CONTROLLER, job, std::to_string(bundles),
                                     std::to_string(gpus), std::to_string(seconds)});
}

/// `turn a device 0: alpha/0 play ticket 4`
struct Turn {
  std::string group;
  int ticket = 0;
};
std::vector<Turn> turns_of(const std::string& out, const std::string& device) {
  std::vector<Turn> turns;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const std::string head = "turn " + device + ": ";
    if (!line.starts_with(head)) continue;
    const std::string rest = line.substr(head.size());
    turns.push_back({rest.substr(0, rest.find('/')), std::stoi(rest.substr(rest.rfind(' ') + 1))});
  }
  return turns;
}

std::string said_by(Process& process) { return process.out() + process.err(); }

TEST(ClusterCommands, ShowAClusterOfUnequalNodesAsTextAndAsJson) {
  TestCluster cluster;
  const auto begin = std::chrono::steady_clock::now();
  Process& head = cluster.start_head();
  EXPECT_LT(seconds_since(begin), 5);
  EXPECT_EQ(cluster.ask({"status"}).code, 0) << "a cluster without nodes is healthy";
  cluster.start_node("big", 3, {"--label", "rack=r1"});
  cluster.start_node("small", 1, {"--memory-gb", "2"});
  ASSERT_TRUE(cluster.nodes_up(2)) << head.err();

  const Said status = cluster.ask({"status", "--json"});
  EXPECT_EQ(status.code, 0) << status.err;
  const auto json = status.json();
  EXPECT_EQ(json["healthy"], true);
  EXPECT_EQ(json["nodes"]["up"], 2);
  EXPECT_EQ(json["devices"]["total"], 4);
  EXPECT_EQ(json["devices"]["free"], 4.0);
  EXPECT_EQ(json["head"]["pid"], head.pid());
  EXPECT_EQ(json["head"]["address"], cluster.address());

  const auto nodes = cluster.ask({"list", "nodes", "--json"}).json();
  ASSERT_EQ(nodes["total"], 2);
  EXPECT_EQ(nodes["nodes"][0]["name"], "big");
  EXPECT_EQ(nodes["nodes"][0]["devices"], 3);
  EXPECT_EQ(nodes["nodes"][0]["devices_free"], 3.0);
  EXPECT_EQ(nodes["nodes"][0]["device_model"], "simulated");
  EXPECT_EQ(nodes["nodes"][0]["rack"], "r1");
  EXPECT_EQ(nodes["nodes"][1]["memory_bytes"], std::int64_t{2} << 30);
  EXPECT_EQ(nodes["nodes"][1]["pid"], cluster["small"].pid());

  const Said text = cluster.ask({"list", "nodes"});
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("NODE   STATE"), HasSubstr("big    up"), HasSubstr("small  up")));
  const Said page = cluster.ask({"list", "nodes", "--limit", "1"});
  EXPECT_THAT(page.out, ::testing::Not(HasSubstr("small")));
  EXPECT_THAT(page.err, HasSubstr("1 of 2 nodes"));
  EXPECT_THAT(cluster.ask({"status"}).out,
              AllOf(HasSubstr("2 up"), HasSubstr("devices  4, 4 free")));
  for (const char* what : {"groups", "jobs", "ranks"}) {
    const Said empty = cluster.ask({"list", what, "--json"});
    EXPECT_EQ(empty.code, 0) << empty.err;
    EXPECT_EQ(empty.json()[what].size(), 0U);
  }
  EXPECT_EQ(cluster.ask({"list", "nodes", "--in-state", "lost", "--json"}).json()["total"], 0);
}

TEST(ClusterCommands, BadRequestsHaveAnErrorAndAnExitCodeOfTheirOwn) {
  TestCluster cluster;
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string says;
  };
  const auto check = [&](const std::vector<Case>& cases) {
    for (const Case& one : cases) {
      const Said said = cluster.ask(one.words);
      EXPECT_EQ(said.code, one.code) << one.words[0] << ": " << said.err;
      EXPECT_THAT(said.err, HasSubstr(one.says)) << one.words[0];
    }
  };
  check({{{"status"}, 2, "no head is named"},
         {{"status", "--address", "nonsense"}, 2, "nonsense"},
         {{"status", "--address", "127.0.0.1:1", "--timeout", "1"}, 1, "127.0.0.1:1"},
         {{"list", "elephants"}, 2, "elephants"},
         {{"list", "nodes", "--limit", "0"}, 2, "--limit"},
         {{"stop"}, 2, "name a job"},
         {{"stop", "j", "--all"}, 2, "--all"},
         {{"explain"}, 2, "group"},
         {{"cert", "make", "--out", "x"}, 2, "--authority"},
         {{"head", "--listen", "127.0.0.1:nine"}, 2, "nine"},
         {{"head", "--listen", "0.0.0.0:0"}, 2, "loopback"},
         {{"node", "--label", "rack"}, 2, ""},
         {{"status", "--timeout", "nan"}, 2, "'nan' is not a number from 0.001"},
         {{"node", "--memory-gb", "-nan"}, 2, "is not a number from 0.001"},
         {{"frobnicate"}, 2, "frobnicate"}});
  EXPECT_FALSE(std::filesystem::exists(cluster.folder() / "state"))
      << "who is refused leaves nothing";
  Process& head = cluster.start_head();
  check({{{"explain", "ghost"}, 1, "ghost"},
         {{"explain", "77"}, 1, "77"},
         {{"stop", "ghost"}, 1, "ghost"},
         {{"stop", "--node", "ghost"}, 1, "ghost"},
         {{"status", "--nodes", "1", "--timeout", "0.5"}, 1, "0 nodes are up, wanted 1"},
         {{"node", "--label", "rack"}, 2, "--label 'rack'"},
         {{"node", "--name", "a/b", "--devices", "0"}, 1, "a/b"},
         {{"head", "--listen", "127.0.0.1:0"},
          1,
          "a head runs on this folder, process " + std::to_string(head.pid())}});
}

TEST(ClusterCommands, OutputThatCannotBeWrittenFailsTheCommand) {
  for (const std::string words : {"--version", "simulate --catalogue", "head --help"}) {
    const int status = std::system(
        (std::string(testing::troupe_program()) + " " + words + " >/dev/full 2>/dev/null").c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << words;
  }
}

TEST(ClusterCommands, AWrongTokenIsRefusedAndHarmsNothing) {
  TestCluster cluster;
  cluster.start_head();
  const auto token = cluster.folder() / "wrong";
  testing::write_file(token, std::string(64, 'a'));
  std::filesystem::permissions(
      token, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const Said status = cluster.ask({"status", "--token-file", token.string()});
  EXPECT_EQ(status.code, 1);
  EXPECT_THAT(status.err, HasSubstr("token"));
  const auto begin = std::chrono::steady_clock::now();
  const Said node =
      cluster.ask({"node", "--name", "thief", "--devices", "1", "--token-file", token.string()});
  EXPECT_EQ(node.code, 1);
  EXPECT_LT(seconds_since(begin), 5) << "a wrong token shows at once";
  std::filesystem::permissions(token, std::filesystem::perms::all);
  const Said open = cluster.ask({"status", "--token-file", token.string()});
  EXPECT_EQ(open.code, 2) << open.err;
  EXPECT_EQ(cluster.ask({"status"}).code, 0);
  EXPECT_EQ(cluster.state_of("thief"), "");
}

TEST(ClusterCommands, ACertifiedClusterTakesNobodyElse) {
  testing::TemporaryFolder keys;
  TestCluster maker;
  const auto make = [&](const std::string& folder, std::vector<std::string> words) {
    words.insert(words.begin(), {"cert", "make", "--out", (keys / folder).string()});
    EXPECT_EQ(maker.ask(words).code, 0);
  };
  make("ours", {"--authority"});
  make("ours", {"--name", "all"});
  make("theirs", {"--authority"});
  make("theirs", {"--name", "all"});
  EXPECT_EQ(maker.ask({"cert", "make", "--authority", "--out", (keys / "ours").string()}).code, 1);
  TestCluster cluster({"--tls", (keys / "ours").string()});
  Process& head = cluster.start_head();
  cluster.start_node("a", 1);
  ASSERT_TRUE(cluster.nodes_up(1)) << head.err();
  Process& controller = start_controller(cluster, "job", 1, 1);
  EXPECT_FALSE(controller.says("ready", 1s)) << "it was not told of certificates";
  cluster.set("TROUPE_TLS", (keys / "theirs").string());
  EXPECT_FALSE(start_controller(cluster, "job", 1, 1).says("ready", 1s));
  cluster.set("TROUPE_TLS", (keys / "ours").string());
  Process& ours = start_controller(cluster, "job", 1, 1);
  EXPECT_TRUE(ours.says("ready")) << said_by(ours) << cluster["a"].err();
  EXPECT_EQ(cluster.ask({"status"}).code, 0);
}

TEST(ClusterCommands, RunAJobOnTwoNodesInTurnsAndStopIt) {
  TestCluster cluster;
  Process& head = cluster.start_head();
  cluster.start_node("a", 2);
  cluster.start_node("b", 1);
  ASSERT_TRUE(cluster.nodes_up(2)) << head.err();
  Process& controller = start_controller(cluster, "play", 3, 1);
  ASSERT_TRUE(controller.says("ready", 25s))
      << said_by(controller) << cluster["a"].err() << head.err();
  const std::string out = controller.out();
  EXPECT_THAT(out, AllOf(HasSubstr("placed bundle 0: a"), HasSubstr("placed bundle 1: a"),
                         HasSubstr("placed bundle 2: b")));
  for (const char* device : {"a device 0", "a device 1", "b device 0"}) {
    const std::vector<Turn> turns = turns_of(out, device);
    ASSERT_EQ(turns.size(), 6U) << device;
    for (std::size_t i = 0; i < turns.size(); ++i) {
      EXPECT_EQ(turns[i].group, i % 2 == 0 ? "alpha" : "beta")
          << "in the order of the calls, on every device";
      EXPECT_EQ(turns[i].ticket, turns[0].ticket + static_cast<int>(i));
    }
  }

  const Said explained = cluster.ask({"explain", "play-pool", "--json"});
  EXPECT_EQ(explained.code, 0) << explained.err;
  EXPECT_EQ(explained.json()["status"], "ACTIVE");
  EXPECT_EQ(explained.json()["placements"].size(), 3U);
  EXPECT_EQ(cluster.ask({"list", "jobs", "--json"}).json()["jobs"][0]["state"], "running");
  ASSERT_TRUE(eventually(5s, [&] {
    return cluster.ask({"list", "ranks", "--json"}).json()["total"] >= 3;
  }));
  const auto nodes = cluster.ask({"list", "nodes", "--json"}).json()["nodes"];
  EXPECT_EQ(nodes[0]["devices_free"], 0.0);
  EXPECT_EQ(nodes[1]["devices_free"], 0.0);
  const auto lanes = cluster.ask({"status", "--lanes", "--json"}).json()["lanes"];
  EXPECT_EQ(lanes["a"].size(), 2U);
  EXPECT_EQ(lanes["a"][0]["lane"], "play/0");
  EXPECT_EQ(lanes["a"][0]["turns_taken"], 6);
  EXPECT_EQ(lanes["a"][0]["holder"], nullptr);
  EXPECT_EQ(lanes["a"][0]["memory"].size(), 1U) << "of the ranks that still live";
  EXPECT_THAT(cluster.ask({"status", "--lanes"}).out, HasSubstr("play/0"));

  Process& waiting = start_controller(cluster, "wait", 1, 1);
  ASSERT_TRUE(eventually(5s, [&] { return cluster.ask({"explain", "wait-pool"}).code == 3; }));
  EXPECT_THAT(cluster.ask({"explain", "wait-pool"}).out, HasSubstr("PENDING"));
  Process& greedy = start_controller(cluster, "greedy", 1, 3);
  EXPECT_EQ(greedy.wait(10s), 1) << said_by(greedy);
  EXPECT_THAT(greedy.err(), HasSubstr("greedy-pool"));

  const Said stopped = cluster.ask({"stop", "play", "--reason", "enough", "--json"});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_EQ(stopped.json()["jobs"][0], "play");
  EXPECT_EQ(controller.wait(5s), 0);
  EXPECT_THAT(controller.out(), HasSubstr("stop enough"));
  EXPECT_TRUE(waiting.says("ready", 20s)) << "its devices are free: " << said_by(waiting);
  EXPECT_EQ(cluster.ask({"explain", "play-pool"}).code, 1);
}

TEST(ClusterCommands, ANodeThatIsKilledOrStoppedIsLostWithinThreeSeconds) {
  TestCluster cluster;
  cluster.start_head();
  cluster.start_node("killed", 1);
  cluster.start_node("stopped", 1);
  ASSERT_TRUE(cluster.nodes_up(2));
  auto begin = std::chrono::steady_clock::now();
  cluster["killed"].signal(SIGKILL);
  ASSERT_TRUE(eventually(6s, [&] { return cluster.state_of("killed") == "lost"; }));
  EXPECT_LT(seconds_since(begin), 3.3);
  const Said status = cluster.ask({"status", "--json"});
  EXPECT_EQ(status.code, 3);
  EXPECT_EQ(status.json()["healthy"], false);
  EXPECT_THAT(status.json()["problems"][0].get<std::string>(), HasSubstr("node killed is lost"));
  begin = std::chrono::steady_clock::now();
  cluster["stopped"].signal(SIGSTOP);
  ASSERT_TRUE(eventually(6s, [&] { return cluster.state_of("stopped") == "lost"; }));
  EXPECT_LT(seconds_since(begin), 4.0);
  cluster["stopped"].signal(SIGCONT);
  EXPECT_TRUE(eventually(8s, [&] { return cluster.state_of("stopped") == "up"; }));
  cluster.start_node("killed", 2);
  EXPECT_TRUE(eventually(8s, [&] { return cluster.state_of("killed") == "up"; }));
  EXPECT_EQ(cluster.ask({"status", "--json"}).json()["devices"]["total"], 3);
}

TEST(ClusterCommands, BundlesOfALostNodeMoveToASpareAndTheControllerHearsOfIt) {
  TestCluster cluster;
  cluster.start_head();
  cluster.start_node("a", 1);
  cluster.start_node("b", 1);
  ASSERT_TRUE(cluster.nodes_up(2));
  Process& controller = start_controller(cluster, "job", 2, 1);
  ASSERT_TRUE(controller.says("ready", 25s)) << said_by(controller);
  cluster.start_node("spare", 1);
  ASSERT_TRUE(cluster.nodes_up(3));
  cluster["b"].signal(SIGKILL);
  ASSERT_TRUE(controller.says("change lost", 6s)) << said_by(controller);
  EXPECT_TRUE(controller.says("change moved", 6s)) << said_by(controller);
  EXPECT_TRUE(eventually(5s, [&] { return cluster.ask({"explain", "job-pool"}).code == 0; }));
  const auto placements = cluster.ask({"explain", "job-pool", "--json"}).json()["placements"];
  ASSERT_EQ(placements.size(), 2U);
  EXPECT_EQ(placements[0]["node"], "a");
  EXPECT_EQ(placements[1]["node"], "spare");
}

TEST(ClusterCommands, AHeadThatIsKilledAndStartedAgainFindsNodesJobsAndGroups) {
  TestCluster cluster;
  cluster.start_head();
  cluster.start_node("a", 2);
  ASSERT_TRUE(cluster.nodes_up(1));
  Process& controller = start_controller(cluster, "job", 2, 1);
  ASSERT_TRUE(controller.says("ready", 25s)) << said_by(controller);
  cluster["head"].signal(SIGKILL);
  EXPECT_EQ(cluster["head"].wait(), 128 + SIGKILL);
  EXPECT_EQ(cluster.ask({"status", "--timeout", "2"}).code, 1);
  cluster.start_head();
  ASSERT_TRUE(cluster.nodes_up(1));
  EXPECT_TRUE(eventually(8s, [&] {
    const auto jobs = cluster.ask({"list", "jobs", "--json"}).json()["jobs"];
    return jobs.size() == 1 && jobs[0]["state"] == "running";
  }));
  EXPECT_TRUE(eventually(8s, [&] { return cluster.ask({"explain", "job-pool"}).code == 0; }));
  EXPECT_TRUE(eventually(5s, [&] {
    return cluster.ask({"list", "nodes", "--json"}).json()["nodes"][0]["devices_free"] == 0.0;
  }));
  EXPECT_EQ(controller.out().find("\nlost "), std::string::npos) << controller.out();
  // It goes on under the new head: stopping reaches it.
  EXPECT_EQ(cluster.ask({"stop", "job"}).code, 0);
  EXPECT_EQ(controller.wait(5s), 0);
  EXPECT_TRUE(eventually(5s, [&] {
    return cluster.ask({"list", "nodes", "--json"}).json()["nodes"][0]["devices_free"] == 2.0;
  }));
}

TEST(ClusterCommands, AControllerThatIsKilledLeavesNothingBehind) {
  TestCluster cluster;
  cluster.start_head();
  cluster.start_node("a", 2);
  ASSERT_TRUE(cluster.nodes_up(1));
  Process& controller = start_controller(cluster, "job", 2, 1);
  ASSERT_TRUE(controller.says("ready", 25s)) << said_by(controller);
  controller.signal(SIGKILL);
  EXPECT_TRUE(eventually(
      8s,
      [&] {
        const auto nodes = cluster.ask({"list", "nodes", "--json"}).json()["nodes"];
        return nodes.size() == 1 && nodes[0]["devices_free"] == 2.0 && nodes[0]["ranks"] == 0;
      }))
      << cluster.ask({"list", "nodes"}).out << cluster["a"].err();
  EXPECT_EQ(cluster.ask({"list", "jobs", "--json"}).json()["jobs"][0]["state"], "lost");
  EXPECT_EQ(cluster.ask({"status"}).code, 0) << "a lost job is no illness of the cluster";
}

TEST(ClusterCommands, StopEndsOneNodeOrEverythingInGoodOrder) {
  TestCluster cluster;
  cluster.start_head();
  cluster.start_node("a", 1);
  cluster.start_node("b", 1);
  ASSERT_TRUE(cluster.nodes_up(2));
  const Said one = cluster.ask({"stop", "--node", "a"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("node a stopped"));
  EXPECT_EQ(cluster["a"].wait(5s), 0);
  EXPECT_EQ(cluster.state_of("a"), "left");
  EXPECT_EQ(cluster.ask({"status"}).code, 0) << "a node that left is not missed";
  cluster["b"].signal(SIGTERM);
  EXPECT_EQ(cluster["b"].wait(8s), 0);
  EXPECT_EQ(cluster.state_of("b"), "left");
  cluster.start_node("c", 1);
  ASSERT_TRUE(cluster.nodes_up(1));
  const Said all = cluster.ask({"stop", "--all"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(cluster["c"].wait(8s), 0);
  EXPECT_EQ(cluster["head"].wait(5s), 0);
  EXPECT_EQ(cluster.ask({"status"}).code, 2) << "its address file is gone";
}

}  // namespace
}  // namespace troupe

// Proves the head's server over real sockets on loopback: agents and controllers register under
// their own names only, lists and status say what is there, listeners hear of each arrival and loss
// once and in order, stopping reaches the right peers, and a restarted head is filled again by
// those who come back.

#include "runtime/cluster/head.hpp"

#include "runtime/link/link_hub.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::in(5s); }

template <class Predicate>
bool until(Predicate holds) {
  const Deadline deadline = soon();
  while (!deadline.passed()) {
    if (holds()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return holds();
}

/// Keeps what it was told, as one line each.
class Told final : public DirectoryListener {
 public:
  void on_node_up(const NodeRegister& node, const Ref<Channel>& channel, bool returned) override {
    EXPECT_TRUE(channel);
    note("up " + node.name + (returned ? " again" : ""));
  }
  void on_node_down(const std::string& name, std::uint64_t, const Error& cause) override {
    note("down " + name + " " + std::string(error_code_name(cause.code)));
  }
  void on_node_draining(const std::string& name) override { note("draining " + name); }
  void on_job_up(const JobAnnouncement& job, const Ref<Channel>&, bool returned) override {
    note("job " + job.name + (returned ? " again" : ""));
  }
  void on_job_down(const std::string& job, const Error&) override { note("no job " + job); }
  std::vector<std::string> lines() const {
    const std::scoped_lock lock(mutex_);
    return lines_;
  }

 private:
  void note(std::string line) {
    const std::scoped_lock lock(mutex_);
    lines_.push_back(std::move(line));
  }
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

/// What the head asks of a peer, by method.
class Asked final : public ChannelService {
 public:
  void on_request(Channel&, std::string_view method, std::span<const std::byte>, Deadline,
                  Responder responder) override {
    note(method);
    LaneReport lane;
    lane.lane = "j/0";
    if (method == "lane.status")
      return responder.reply(encode_value(std::vector<LaneReport>{lane}));
    responder.reply(std::vector<std::byte>());
  }
  void on_notify(Channel&, std::string_view method, std::span<const std::byte>) override {
    note(method);
  }
  std::vector<std::string> methods() const {
    const std::scoped_lock lock(mutex_);
    return methods_;
  }

 private:
  void note(std::string_view method) {
    const std::scoped_lock lock(mutex_);
    methods_.emplace_back(method);
  }
  mutable std::mutex mutex_;
  std::vector<std::string> methods_;
};

/// A peer of the head with a hub of its own.
struct Peer {
  Peer(ActorSystem& system, PeerRole role, const std::string& name, const std::string& address) {
    hub = LinkHub::open(system, {.self = {role, name}}).value();
    auto connected = hub->connect(address, asked, soon()).wait(soon());
    EXPECT_TRUE(connected.has_value()) << connected.error().to_string();
    if (connected) channel = *connected;
  }
  template <class Answer, class Question>
  result<Answer> ask(std::string_view method, const Question& question) {
    TROUPE_TRY(auto bytes, encode_value(question));
    TROUPE_TRY(auto reply, channel->request(method, std::move(bytes), soon()).wait(soon()));
    return decode_value<Answer>(reply);
  }
  template <class Question>
  result<void> tell(std::string_view method, const Question& question) {
    TROUPE_TRY(auto bytes, encode_value(question));
    TROUPE_TRY(auto reply, channel->request(method, std::move(bytes), soon()).wait(soon()));
    (void)reply;
    return {};
  }
  std::shared_ptr<Asked> asked = std::make_shared<Asked>();
  std::unique_ptr<LinkHub> hub;
  Ref<Channel> channel;
};

NodeRegister node(const std::string& name, std::uint64_t instance, int devices) {
  NodeRegister about;
  about.name = name;
  about.address = "127.0.0.1:1";
  about.state.instance = instance;
  about.inventory.devices.resize(static_cast<std::size_t>(devices));
  return about;
}

JobAnnouncement job(const std::string& name, std::uint64_t epoch) {
  return {.name = name, .epoch = epoch, .host = "h", .pid = 1, .command = "c"};
}

class Head : public testing::Test {
 protected:
  Head() { start(); }
  void start() {
    hub_ = LinkHub::open(system_, {.self = {PeerRole::kHead, "head"}}).value();
    head_ = std::make_unique<HeadServer>(
        system_, HeadOptions{.port = port_, .directory = {.away_for = 300ms}});
    head_->add_listener(told_);
    const auto address = head_->start(*hub_);
    ASSERT_TRUE(address.has_value()) << address.error().to_string();
    port_ = address->port;
    address_ = address->to_string();
  }
  std::unique_ptr<Peer> peer(PeerRole role, const std::string& name) {
    return std::make_unique<Peer>(system_, role, name, address_);
  }
  std::unique_ptr<Peer> registered(const std::string& name, std::uint64_t instance, int devices) {
    auto agent = peer(PeerRole::kNode, name);
    const auto welcome = agent->ask<NodeRegistered>("node.register", node(name, instance, devices));
    EXPECT_TRUE(welcome.has_value()) << welcome.error().to_string();
    return agent;
  }

  ActorSystem system_;
  Told told_;
  std::uint16_t port_ = 0;
  std::string address_;
  std::unique_ptr<LinkHub> hub_;
  std::unique_ptr<HeadServer> head_;
};

TEST_F(Head, KnowsWhoIsThereAndTellsListenersOnceInOrder) {
  auto a = registered("a", 1, 2);
  auto b = registered("b", 2, 3);
  auto controller = peer(PeerRole::kController, "j");
  ASSERT_TRUE(controller->ask<JobAnnounced>("head.announce_job", job("j", 7)).has_value());
  auto client = peer(PeerRole::kClient, "status");
  const auto status = client->ask<HeadStatus>("head.status", 0).value();
  EXPECT_EQ(status.nodes_up, 2);
  EXPECT_EQ(status.devices_up, 5);
  EXPECT_EQ(status.jobs_running, 1);
  EXPECT_EQ(status.address, address_);
  const auto page = client->ask<Page<NodeEntry>>("head.list_nodes", PageRequest{}).value();
  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_EQ(page.entries[1].devices, 3);
  EXPECT_EQ(
      client->ask<Page<JobEntry>>("head.list_jobs", PageRequest{}).value().entries.at(0).job.epoch,
      7U);
  EXPECT_EQ(client->ask<NodeEntry>("head.find_node", NodeQuery{"b"}).value().name, "b");
  EXPECT_EQ(client->ask<NodeEntry>("head.find_node", NodeQuery{"c"}).error().code,
            ErrorCode::kNotFound);
  EXPECT_EQ(client->ask<std::vector<LaneReport>>("head.lanes", NodeQuery{"a"}).value().at(0).lane,
            "j/0");
  EXPECT_EQ(client->ask<std::vector<LaneReport>>("head.lanes", NodeQuery{"c"}).error().code,
            ErrorCode::kNotFound);

  NodeState state;
  state.instance = 1;
  state.version = 1;
  state.ranks.resize(3);
  for (std::int32_t i = 0; i < 3; ++i) state.ranks[static_cast<std::size_t>(i)].rank = RankId{i};
  ASSERT_TRUE(a->channel->notify("node.state", encode_value(state).value()).has_value());
  EXPECT_TRUE(until([&] { return head_->status().ranks_running == 3; }));
  EXPECT_EQ(client->ask<Page<RankEntry>>("head.list_ranks", PageRequest{}).value().total, 3U);

  ASSERT_TRUE(controller->tell("head.end_job", Farewell{"done"}));
  b.reset();
  ASSERT_TRUE(until([&] { return head_->status().nodes_lost == 1; }));
  ASSERT_TRUE(a->tell("node.leave", Farewell{"asked to"}));
  EXPECT_THAT(told_.lines(), ElementsAre("up a", "up b", "job j", "no job j", "down b rank_dead",
                                         "down a cancelled"));
}

TEST_F(Head, RefusesFalseNamesRanksAndUnknownOrTornRequestsAndGoesOn) {
  auto a = peer(PeerRole::kNode, "a");
  EXPECT_EQ(a->ask<NodeRegistered>("node.register", node("b", 1, 1)).error().code,
            ErrorCode::kConflict);
  auto controller = peer(PeerRole::kController, "j");
  EXPECT_EQ(controller->ask<NodeRegistered>("node.register", node("j", 1, 1)).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(controller->ask<JobAnnounced>("head.announce_job", job("k", 1)).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(a->tell("head.dance", 0).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(a->tell("dance", 0).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(a->tell("node.register", 0).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(a->tell("node.leave", Farewell{"x"}).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(a->channel->notify("node.state", {}).has_value());
  PageRequest page;
  page.limit = 0;
  EXPECT_EQ(a->ask<Page<NodeEntry>>("head.list_nodes", page).error().code,
            ErrorCode::kInvalidArgument);
  auto rank_hub = LinkHub::open(system_, {.self = {PeerRole::kRank, "j/p/0"}}).value();
  const auto refused = rank_hub->connect(address_, std::make_shared<Asked>(), soon()).wait(soon());
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().to_string(), HasSubstr("ranks talk to their agent"));
  EXPECT_TRUE(a->ask<NodeRegistered>("node.register", node("a", 1, 1)).has_value());
}

TEST_F(Head, ANameThatIsUpIsRefusedUntilItIsGone) {
  auto first = registered("a", 1, 1);
  auto second = peer(PeerRole::kNode, "a");
  EXPECT_EQ(second->ask<NodeRegistered>("node.register", node("a", 2, 1)).error().code,
            ErrorCode::kAlreadyExists);
  first.reset();
  ASSERT_TRUE(until([&] { return head_->status().nodes_up == 0; }));
  EXPECT_TRUE(second->ask<NodeRegistered>("node.register", node("a", 2, 1)).has_value());
  EXPECT_THAT(told_.lines(), ElementsAre("up a", "down a rank_dead", "up a"));
}

TEST_F(Head, StoppingReachesTheJobTheNodeOrEverybody) {
  auto a = registered("a", 1, 1);
  auto b = registered("b", 2, 1);
  auto controller = peer(PeerRole::kController, "j");
  ASSERT_TRUE(controller->ask<JobAnnounced>("head.announce_job", job("j", 7)).has_value());
  auto client = peer(PeerRole::kClient, "stop");
  StopRequest wanted;
  EXPECT_EQ(client->ask<StopAnswer>("head.stop", wanted).error().code, ErrorCode::kInvalidArgument);
  wanted.job = "k";
  EXPECT_EQ(client->ask<StopAnswer>("head.stop", wanted).error().code, ErrorCode::kNotFound);
  wanted.job = "j";
  EXPECT_THAT(client->ask<StopAnswer>("head.stop", wanted).value().jobs, ElementsAre("j"));
  EXPECT_TRUE(until([&] { return !controller->asked->methods().empty(); }));
  EXPECT_THAT(controller->asked->methods(), ElementsAre("job.stop"));
  EXPECT_TRUE(a->asked->methods().empty()) << "the controller ends its ranks itself";
  wanted.force = true;
  ASSERT_TRUE(client->ask<StopAnswer>("head.stop", wanted).has_value());
  EXPECT_TRUE(until([&] { return !a->asked->methods().empty() && !b->asked->methods().empty(); }));
  EXPECT_THAT(a->asked->methods(), ElementsAre("job.end"));
  wanted = {};
  wanted.node = "b";
  EXPECT_THAT(client->ask<StopAnswer>("head.stop", wanted).value().nodes, ElementsAre("b"));
  EXPECT_TRUE(until([&] { return b->asked->methods().size() == 2; }));
  EXPECT_THAT(b->asked->methods(), ElementsAre("job.end", "agent.drain"));
  wanted = {};
  wanted.all = true;
  wanted.reason = "the day is over";
  const auto all = client->ask<StopAnswer>("head.stop", wanted).value();
  EXPECT_THAT(all.nodes, ElementsAre("a", "b"));
  EXPECT_TRUE(all.head);
  for (const auto* node : {&a, &b}) ASSERT_TRUE((*node)->tell("node.leave", Farewell{"asked to"}));
  ASSERT_TRUE(controller->tell("head.end_job", Farewell{"asked to"}));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(head_->wait_stop(nullptr), "the day is over");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s)
      << "it waits for those that are still here";
}

TEST_F(Head, DrainingIsToldOnceAndShown) {
  auto a = registered("a", 1, 1);
  auto client = peer(PeerRole::kClient, "drain");
  EXPECT_EQ(client->ask<NodeEntry>("head.drain_node", NodeQuery{"a"}).value().state, "draining");
  EXPECT_EQ(client->ask<NodeEntry>("head.drain_node", NodeQuery{"a"}).value().state, "draining");
  EXPECT_EQ(client->ask<NodeEntry>("head.drain_node", NodeQuery{"x"}).error().code,
            ErrorCode::kNotFound);
  EXPECT_THAT(told_.lines(), ElementsAre("up a", "draining a"));
}

TEST_F(Head, ARestartedHeadIsFilledByThoseWhoComeBack) {
  auto a = registered("a", 1, 2);
  head_.reset();
  hub_.reset();
  EXPECT_TRUE(until([&] { return a->channel->failure().has_value(); }));
  start();
  EXPECT_EQ(head_->status().nodes_up, 0);
  a = registered("a", 1, 2);
  EXPECT_EQ(head_->status().nodes_up, 1);
  EXPECT_THAT(told_.lines(), ElementsAre("up a", "up a")) << "a new head has no memory of it";
}

}  // namespace
}  // namespace troupe::runtime

// Proves that lanes work between processes' ends: a controller numbers calls, ranks show their
// tickets to the agent and get turns in that order, the agent asks owners to move memory before a
// turn, and whatever end breaks, the others go on. Agent, ranks and controller are real ends of
// in-process channels.

#include "runtime/cluster/agent_lanes.hpp"
#include "runtime/cluster/lanes.hpp"
#include "runtime/cluster/ticket_gate.hpp"
#include "runtime/link/channel_pair.hpp"
#include "runtime/link/service_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

class NoService final : public ChannelService {
 public:
  void on_request(Channel&, std::string_view, std::span<const std::byte>, Deadline,
                  Responder responder) override {
    responder.reply(fail(ErrorCode::kNotFound, "nothing here"));
  }
};

Deadline soon() { return Deadline::in(5s); }

/// One rank process as its agent sees it.
struct TestRank {
  TestRank(const std::shared_ptr<LaneService>& agent, const std::string& name)
      : table(std::make_shared<ServiceTable>()) {
    auto ends = make_channel_pair(
        table, agent, {.first = {PeerRole::kRank, name}, .second = {PeerRole::kNode, "n"}});
    channel = ends.first;
    lanes = std::make_unique<AgentLanes>(
        channel, AgentLanes::Options{.job = "job", .device = 0, .answer_within = 5s});
    EXPECT_TRUE(table->add("memory.", lanes->service()));
  }
  ~TestRank() {
    channel->close(
        Error{.code = ErrorCode::kCancelled, .message = "over", .origin = {}, .causes = {}});
  }

  std::shared_ptr<ServiceTable> table;
  Ref<Channel> channel;
  std::unique_ptr<AgentLanes> lanes;
};

class Lanes : public testing::Test {
 protected:
  Lanes() {
    auto ends = make_channel_pair(
        std::make_shared<NoService>(), agent_,
        {.first = {PeerRole::kController, "job"}, .second = {PeerRole::kNode, "n"}});
    controller_ = ends.first;
  }
  ~Lanes() override {
    outbox_.reset();
    controller_->close(
        Error{.code = ErrorCode::kCancelled, .message = "over", .origin = {}, .causes = {}});
  }
  std::unique_ptr<LaneGate::Turn> reserve() {
    return gate_.reserve({.phase = "train", .owner = "policy"}).value();
  }
  LaneReport report() { return agent_->report().at(0); }
  /// Waits until `holds` is true of the only lane.
  template <class Predicate>
  bool until(Predicate holds) {
    const Deadline deadline = soon();
    while (!deadline.passed()) {
      const auto lanes = agent_->report();
      if (lanes.size() == 1 && holds(lanes[0])) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  ActorSystem system_;
  std::shared_ptr<LaneService> agent_ =
      LaneService::make(system_, {.device_capacity = {mebibytes(100), mebibytes(50)}});
  Ref<Channel> controller_;
  std::atomic<bool> connected_{true};
  std::shared_ptr<TicketOutbox> outbox_ = std::make_shared<TicketOutbox>(
      system_,
      TicketOutbox::Options{.channel = [this] { return connected_ ? controller_ : nullptr; },
                            .tickets_max = std::size_t{1} << 20,
                            .answer_within = 5s,
                            .again_after = 5ms});
  TicketGate gate_{lane_name("job", 0), outbox_};
};

TEST_F(Lanes, TurnsComeInTheOrderOfSubmissionWhicheverRankIsFirst) {
  TestRank policy(agent_, "job/policy/0");
  TestRank rollout(agent_, "job/rollout/0");
  const auto first = reserve();
  const auto second = reserve();
  std::atomic<bool> second_has_it{false};
  std::thread waiter([&] {
    const auto turn = rollout.lanes->wait(*second->ticket(), "rollout", soon());
    EXPECT_TRUE(turn.has_value()) << turn.error().to_string();
    second_has_it = true;
  });
  ASSERT_TRUE(until([](const LaneReport& lane) { return lane.waiting.size() == 1; }));
  EXPECT_EQ(report().next, 1U);
  {
    const auto turn = policy.lanes->wait(*first->ticket(), "train", soon());
    ASSERT_TRUE(turn.has_value()) << turn.error().to_string();
    const LaneReport lane = report();
    ASSERT_TRUE(lane.holder);
    EXPECT_EQ(lane.holder->rank, "job/policy/0");
    EXPECT_EQ(lane.holder->phase, "train");
    ASSERT_EQ(lane.waiting.size(), 1U);
    EXPECT_EQ(lane.waiting[0].rank, "job/rollout/0");
    EXPECT_FALSE(second_has_it);
  }
  waiter.join();
  EXPECT_TRUE(second_has_it);
}

TEST_F(Lanes, ACallThatIsNeverMadeHoldsNobodyUp) {
  TestRank policy(agent_, "job/policy/0");
  reserve().reset();
  const auto second = reserve();
  EXPECT_TRUE(policy.lanes->wait(*second->ticket(), "train", soon()).has_value());
  EXPECT_EQ(gate_.reserve({.phase = "p", .owner = "o"}).value()->wait(soon()).error().code,
            ErrorCode::kUnsupported);
}

TEST_F(Lanes, SkipsWaitForTheConnectionToComeBack) {
  TestRank policy(agent_, "job/policy/0");
  connected_ = false;
  auto first = reserve();  // while it has a place, those after it must be told one by one
  for (int i = 0; i < 4; ++i) reserve().reset();
  EXPECT_EQ(outbox_->unconfirmed(), 4U);
  const auto sixth = reserve();
  std::thread later([&] {
    ASSERT_TRUE(until([](const LaneReport& lane) { return lane.waiting.size() == 1; }));
    first.reset();
    connected_ = true;
  });
  EXPECT_TRUE(policy.lanes->wait(*sixth->ticket(), "train", soon()).has_value());
  later.join();
  EXPECT_TRUE(until([&](const LaneReport&) { return outbox_->unconfirmed() == 0; }));
}

TEST_F(Lanes, APhaseFindsItsMemoryInPlaceAndOthersEntriesMoved) {
  TestRank policy(agent_, "job/policy/0");
  TestRank rollout(agent_, "job/rollout/0");
  std::mutex mutex;
  std::vector<std::string> moves;
  const auto note = [&](const std::string& what) {
    return [&, what]() -> result<void> {
      const std::scoped_lock lock(mutex);
      moves.push_back(what);
      return {};
    };
  };
  ASSERT_TRUE(rollout.lanes->add(
      {.key = {"", "cache"}, .bytes = mebibytes(60), .eviction = Eviction::kDrop},
      {.load = note("load cache"), .offload = {}, .drop = note("drop cache")}));
  ASSERT_TRUE(policy.lanes->add(
      {.key = {"", "gradients"},
       .bytes = mebibytes(50),
       .eviction = Eviction::kOffload,
       .residency = Residency::kOffloaded},
      {.load = note("load gradients"), .offload = note("offload gradients"), .drop = {}}));
  policy.lanes->declare("train", {"gradients"}, mebibytes(10));
  rollout.lanes->declare("rollout", {"cache"});
  EXPECT_EQ(policy.lanes->room_in({.name = "x", .resident = {{"", "gradients"}}}).value(),
            mebibytes(50));
  for (int round = 0; round < 2; ++round) {
    const auto a = reserve();
    ASSERT_TRUE(policy.lanes->wait(*a->ticket(), "train", soon()).has_value());
    const auto b = reserve();
    ASSERT_TRUE(rollout.lanes->wait(*b->ticket(), "rollout", soon()).has_value());
  }
  EXPECT_THAT(moves,
              ElementsAre("drop cache", "load gradients", "offload gradients", "load cache",
                          "drop cache", "load gradients", "offload gradients", "load cache"));
  EXPECT_TRUE(rollout.lanes->remove({"", "cache"}));
  EXPECT_EQ(rollout.lanes->remove({"", "cache"}).error().code, ErrorCode::kNotFound);
}

TEST_F(Lanes, ARefusalBringsTheTableAndAFailedMoveItsReason) {
  TestRank policy(agent_, "job/policy/0");
  TestRank rollout(agent_, "job/rollout/0");
  const auto refuse = []() -> result<void> { return fail(ErrorCode::kIo, "host memory is full"); };
  const auto throws = []() -> result<void> { throw std::runtime_error("foreign"); };
  ASSERT_TRUE(rollout.lanes->add(
      {.key = {"", "weights"}, .bytes = mebibytes(30), .eviction = Eviction::kNever}, {}));
  ASSERT_TRUE(rollout.lanes->add(
      {.key = {"", "cache"}, .bytes = mebibytes(40), .eviction = Eviction::kDrop},
      {.load = {}, .offload = {}, .drop = refuse}));
  policy.lanes->declare("big", {}, mebibytes(80));
  policy.lanes->declare("medium", {}, mebibytes(50));
  auto call = reserve();
  auto turn = policy.lanes->wait(*call->ticket(), "big", soon());
  ASSERT_FALSE(turn.has_value());
  EXPECT_EQ(turn.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(turn.error().to_string(), HasSubstr("30.0 MiB  job/rollout/0/weights"));
  call = reserve();
  turn = policy.lanes->wait(*call->ticket(), "medium", soon());
  ASSERT_FALSE(turn.has_value());
  EXPECT_THAT(turn.error().to_string(), HasSubstr("cannot drop job/rollout/0/cache"));
  EXPECT_EQ(turn.error().root_cause().message, "host memory is full");
  ASSERT_TRUE(rollout.lanes->remove({"", "cache"}));
  ASSERT_TRUE(rollout.lanes->add(
      {.key = {"", "cache"}, .bytes = mebibytes(40), .eviction = Eviction::kDrop},
      {.load = {}, .offload = {}, .drop = throws}));
  call = reserve();
  turn = policy.lanes->wait(*call->ticket(), "medium", soon());
  ASSERT_FALSE(turn.has_value());
  EXPECT_THAT(turn.error().to_string(), HasSubstr("foreign"));
  EXPECT_EQ(policy.lanes->add({.key = {"", "huge"}, .bytes = mebibytes(90)}, {}).error().code,
            ErrorCode::kResourceExhausted);
  call = reserve();
  EXPECT_TRUE(policy.lanes->wait(*call->ticket(), "undeclared", soon()).has_value())
      << "the lane is free";
}

TEST_F(Lanes, ADeadRankLeavesNeitherTurnNorEntriesNorWaits) {
  TestRank rollout(agent_, "job/rollout/0");
  auto policy = std::make_unique<TestRank>(agent_, "job/policy/0");
  ASSERT_TRUE(policy->lanes->add(
      {.key = {"", "weights"}, .bytes = mebibytes(90), .eviction = Eviction::kNever}, {}));
  const auto first = reserve();
  auto held = policy->lanes->wait(*first->ticket(), "train", soon());
  ASSERT_TRUE(held.has_value());
  const Error death{
      .code = ErrorCode::kRankDead, .message = "signal 9", .origin = {}, .causes = {}};
  policy->channel->close(death);
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(report().holder) << "a closed channel alone does not say that the process is over";
  agent_->rank_gone("job/policy/0", death);
  EXPECT_FALSE(report().holder);
  EXPECT_TRUE(report().entries.empty());
  rollout.lanes->declare("rollout", {}, mebibytes(90));
  const auto second = reserve();
  EXPECT_TRUE(rollout.lanes->wait(*second->ticket(), "rollout", soon()).has_value());
  held->reset();
}

TEST_F(Lanes, AWaitEndsAtItsDeadlineWithTheNameOfTheHolder) {
  TestRank policy(agent_, "job/policy/0");
  TestRank rollout(agent_, "job/rollout/0");
  const auto first = reserve();
  const auto held = policy.lanes->wait(*first->ticket(), "train", soon());
  ASSERT_TRUE(held.has_value());
  const auto second = reserve();
  const auto turn = rollout.lanes->wait(*second->ticket(), "rollout", Deadline::in(50ms));
  ASSERT_FALSE(turn.has_value());
  EXPECT_EQ(turn.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(turn.error().to_string(), HasSubstr("job/policy/0 holds it for train"));
}

TEST_F(Lanes, OtherJobsRolesAndDevicesAreRefused) {
  TestRank stranger(agent_, "other/policy/0");
  const auto call = reserve();
  EXPECT_EQ(stranger.lanes->wait(*call->ticket(), "train", soon()).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(stranger.lanes->add({.key = {"", "w"}, .bytes = mebibytes(1)}, {}).error().code,
            ErrorCode::kConflict);
  TestRank policy(agent_, "job/policy/0");
  for (const char* lane : {"job/2", "job/-1", "job/x", "job"})
    EXPECT_EQ(policy.lanes->wait({lane, 1}, "train", soon()).error().code, ErrorCode::kNotFound)
        << lane;
  LaneWait message;
  message.lane = "job/0";
  message.number = 1;
  const auto wait = encode_value(message).value();
  EXPECT_EQ(controller_->request("lane.wait", wait, soon()).wait(soon()).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(controller_->request("lane.wait", {}, soon()).wait(soon()).error().code,
            ErrorCode::kCorrupt);
  EXPECT_EQ(controller_->request("lane.dance", {}, soon()).wait(soon()).error().code,
            ErrorCode::kNotFound);
}

TEST_F(Lanes, AJobThatIsGoneTakesItsLanesAndEndsItsWaits) {
  TestRank policy(agent_, "job/policy/0");
  (void)reserve();
  const auto held_up = std::make_unique<LaneTicket>(LaneTicket{"job/0", 5});
  std::thread end([&] {
    ASSERT_TRUE(until([](const LaneReport& lane) { return lane.waiting.size() == 1; }));
    agent_->job_gone(
        "job",
        Error{.code = ErrorCode::kAborted, .message = "the job ended", .origin = {}, .causes = {}});
  });
  const auto turn = policy.lanes->wait(*held_up, "train", soon());
  end.join();
  ASSERT_FALSE(turn.has_value());
  EXPECT_EQ(turn.error().message, "the job ended");
  EXPECT_TRUE(agent_->report().empty());
}

TEST_F(Lanes, AnAgentThatHasForgottenTheLaneGoesOnWhereItsControllerIs) {
  TestRank policy(agent_, "job/policy/0");
  for (int i = 0; i < 3; ++i) reserve().reset();
  auto late = reserve();  // of a call that is ending, when the agent gives the job up
  for (int i = 0; i < 3; ++i) reserve().reset();
  ASSERT_TRUE(until([&](const LaneReport&) { return outbox_->unconfirmed() == 0; }));
  const Error gone{
      .code = ErrorCode::kAborted, .message = "the job is over", .origin = {}, .causes = {}};
  agent_->job_gone("job", gone);
  const auto next = reserve();
  EXPECT_EQ(next->ticket()->number, 8U);
  EXPECT_EQ(next->ticket()->floor, 4U);
  std::thread end([&] {
    ASSERT_TRUE(until([](const LaneReport& lane) { return lane.waiting.size() == 1; }));
    late.reset();
  });
  EXPECT_TRUE(policy.lanes->wait(*next->ticket(), "train", soon()).has_value());
  end.join();
}

TEST_F(Lanes, FinishedTurnsAreKeptForTheTraceInTheirOrder) {
  TestRank policy(agent_, "job/policy/0");
  for (int i = 0; i < 3; ++i) {
    const auto call = reserve();
    ASSERT_TRUE(policy.lanes->wait(*call->ticket(), "train", soon()).has_value());
  }
  ASSERT_TRUE(until([](const LaneReport& lane) { return lane.next == 4; }));
  const auto ask = [&](std::uint64_t after) {
    const auto request = encode_value(LaneTurnsRequest{.job = "job", .after = after}).value();
    return decode_value<LaneTurns>(
               controller_->request("lane.turns", request, soon()).wait(soon()).value())
        .value();
  };
  const LaneTurns turns = ask(0);
  ASSERT_EQ(turns.turns.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(turns.turns[i].number, i + 1);
    EXPECT_EQ(turns.turns[i].rank, "job/policy/0");
    EXPECT_GE(turns.turns[i].began_s_ago, turns.turns[i].ended_s_ago);
  }
  EXPECT_EQ(turns.lost, 0U);
  EXPECT_TRUE(ask(turns.last).turns.empty());
}

TEST_F(Lanes, TwoGroupsOnTwoDevicesNeverCross) {
  // Each call takes a turn on both devices; orders that differed between devices would deadlock.
  TestRank a0(agent_, "job/a/0");
  TestRank b0(agent_, "job/b/0");
  AgentLanes a1(a0.channel, {.job = "job", .device = 1, .answer_within = 5s});
  AgentLanes b1(b0.channel, {.job = "job", .device = 1, .answer_within = 5s});
  TicketGate gate1(lane_name("job", 1), outbox_);
  std::mutex order;
  const auto run = [&](AgentLanes& first, AgentLanes& second, int calls) {
    for (int i = 0; i < calls; ++i) {
      std::unique_ptr<LaneGate::Turn> on0;
      std::unique_ptr<LaneGate::Turn> on1;
      {
        const std::scoped_lock lock(order);
        on0 = gate_.reserve({.phase = "p", .owner = "o"}).value();
        on1 = gate1.reserve({.phase = "p", .owner = "o"}).value();
      }
      const auto x = first.wait(*on0->ticket(), "p", soon());
      ASSERT_TRUE(x.has_value()) << x.error().to_string();
      const auto y = second.wait(*on1->ticket(), "p", soon());
      ASSERT_TRUE(y.has_value()) << y.error().to_string();
    }
  };
  std::thread other([&] { run(*a0.lanes, a1, 100); });
  run(*b0.lanes, b1, 100);
  other.join();
}

}  // namespace
}  // namespace troupe::runtime

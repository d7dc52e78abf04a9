// Proves how calls end: FIFO order, deadlines, cancellation, error results, failed CHECKs and foreign
// exceptions, collectives that are freed and rebuilt, stuck and killed ranks, and destruction at any
// moment. Times are loose upper bounds: "ends" means well before the deadline that would hide a hang.

#include "runtime/group/worker_group.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/group/call_trace.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/task/when.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

/// A door that a test opens; shared by all ranks.
struct Door {
  std::atomic<bool> open{false};
  std::atomic<int> inside{0};
};

struct Actor {
  Actor(WorkerContext& own, std::shared_ptr<Door> shared) : context(own), door(std::move(shared)) {}

  int echo(int value) { return value * 10 + context.rank().value; }
  int append(int value) {
    log.push_back(value);
    return 0;
  }
  std::vector<int> history() { return log; }
  /// Waits at the door, however long that takes.
  int wait_at_door(int value) {
    const auto waiting = context.waiting_for("the door");
    ++door->inside;
    while (!door->open.load()) std::this_thread::sleep_for(1ms);
    --door->inside;
    return value;
  }
  /// Waits at the door, and leaves when the call is over.
  bool polite(int) {
    ++door->inside;
    while (!door->open.load() && !context.cancelled()) std::this_thread::sleep_for(1ms);
    --door->inside;
    return context.cancelled();
  }
  result<float> sum(float value) {
    std::vector<float> one{value};
    TROUPE_TRY_VOID(context.collective().all_reduce(one, ReduceOp::kSum, context.deadline()));
    return one[0];
  }
  result<float> sum_along(const std::string& axis) {
    std::vector<float> one{static_cast<float>(context.rank().value)};
    TROUPE_TRY_VOID(context.collective(axis).all_reduce(one, ReduceOp::kSum, context.deadline()));
    return one[0];
  }
  /// One rank misbehaves, the others wait for it in a collective.
  result<float> misbehave(int culprit, const std::string& how) {
    if (context.rank().value == culprit) {
      std::this_thread::sleep_for(5ms);
      if (how == "error") return fail(ErrorCode::kIo, "disk of {} is full", culprit);
      if (how == "failure")
        throw Failure(Error{.code = ErrorCode::kIo, .message = "disk", .origin = {}, .causes = {}});
      TROUPE_CHECK(how != "check", "rank {} has a bug", culprit);
      if (how == "exception") throw std::runtime_error("from a library");
      if (how == "odd") throw 7;
      if (how == "late") std::this_thread::sleep_for(400ms);
    }
    return sum(1);
  }
  /// Rank 0 says that a peer is gone, as a collective does; the others wait for it.
  result<float> miss(int peer) {
    if (context.rank().value != 0) return sum(1);
    return fail(Error{.code = ErrorCode::kRankDead,
                      .message = fmt::format("rank {} is gone", peer),
                      .origin = {.group = "policy", .rank = RankId{peer}, .node = {}},
                      .causes = {}});
  }
  static constexpr auto methods() {
    return std::tuple{
        method<&Actor::miss>("miss", args(broadcast), returns(all)),
        method<&Actor::echo>("echo", args(broadcast), returns(all)),
        method<&Actor::append>("append", args(broadcast), returns(reduce(kSum))),
        method<&Actor::history>("history", args(), returns(all)),
        method<&Actor::wait_at_door>("wait_at_door", args(broadcast), returns(first)),
        method<&Actor::polite>("polite", args(broadcast), returns(all)),
        method<&Actor::sum>("sum", args(broadcast), returns(all)),
        method<&Actor::sum_along>("sum_along", args(broadcast), returns(all)),
        method<&Actor::misbehave>("misbehave", args(broadcast, broadcast), returns(all)),
    };
  }
  WorkerContext& context;
  std::shared_ptr<Door> door;
  std::vector<int> log;
};

struct Group : ::testing::Test {
  ActorSystem system;
  std::shared_ptr<Door> door = std::make_shared<Door>();

  GroupOptions options(int ranks) const {
    GroupOptions wanted;
    wanted.name = "policy";
    wanted.mesh = Mesh::data_parallel(ranks);
    wanted.call_deadline = 20s;
    wanted.shutdown_wait = 5s;
    return wanted;
  }
  result<WorkerGroup<Actor>> create(GroupOptions wanted) {
    return WorkerGroup<Actor>::create(system, std::move(wanted),
                                      [shared = door](WorkerContext& context) {
                                        return std::make_unique<Actor>(context, shared);
                                      });
  }
  WorkerGroup<Actor> make(int ranks) { return create(options(ranks)).value(); }
  void wait_until_inside(int count) {
    while (door->inside.load() < count) std::this_thread::sleep_for(1ms);
  }
};

TEST_F(Group, CallsReachAllRanksThroughBothRoutes) {
  for (const CallRoute route : {CallRoute::kDirect, CallRoute::kShells}) {
    GroupOptions wanted = options(3);
    wanted.route = route;
    auto group = create(wanted).value();
    EXPECT_EQ(group.call<&Actor::echo>(4).wait().value(), (std::vector<int>{40, 41, 42}));
  }
}

TEST_F(Group, CallsAreFifoAndOverlapInTheQueue) {
  for (const CallRoute route : {CallRoute::kDirect, CallRoute::kShells}) {
    GroupOptions wanted = options(4);
    wanted.route = route;
    auto group = create(wanted).value();
    std::vector<pending<int>> running;
    for (int i = 0; i < 200; ++i) running.push_back(group.call<&Actor::append>(i));
    const auto histories = group.call<&Actor::history>().wait().value();
    for (const auto& history : histories) {
      ASSERT_EQ(history.size(), 200U);
      ASSERT_TRUE(std::is_sorted(history.begin(), history.end()));
    }
    for (auto& one : running) ASSERT_TRUE(one.wait());
  }
}

TEST_F(Group, CallsOfSeveralThreadsHaveOneOrderOnAllRanks) {
  auto group = make(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&group, t] {
      std::vector<pending<int>> running;
      for (int i = 0; i < 100; ++i) running.push_back(group.call<&Actor::append>(t * 1000 + i));
      for (auto& one : running) ASSERT_TRUE(one.wait());
    });
  }
  for (auto& thread : threads) thread.join();
  const auto histories = group.call<&Actor::history>().wait().value();
  for (const auto& history : histories) ASSERT_EQ(history, histories.front());
  std::map<int, int> last;
  for (const int value : histories.front()) {
    const auto [found, fresh] = last.emplace(value / 1000, value);
    ASSERT_TRUE(fresh || found->second < value) << "calls of one thread are in order";
    found->second = value;
  }
  EXPECT_EQ(histories.front().size(), 400U);
}

TEST_F(Group, CoroutinesAwaitCallsAndOverlapThem) {
  auto group = make(2);
  Executor executor;
  auto main = [](WorkerGroup<Actor>& ranks) -> task<int> {
    auto one = ranks.call<&Actor::echo>(1);
    auto two = ranks.call_with<&Actor::echo>(CallOptions().within(10s), 2);
    const std::vector<int> second = co_await std::move(two);
    const std::vector<int> first_values = co_await std::move(one);
    // Options as a temporary inside the expression: must not be destroyed twice.
    const std::vector<int> third = co_await ranks.call_with<&Actor::echo>(
        CallOptions().within(10s).under(CancelSource().token()), 3);
    co_return first_values[0] + second[1] + third[1];
  };
  EXPECT_EQ(executor.run(main(group)).value(), 10 + 21 + 31);
}

TEST_F(Group, CollectivesWorkOverAllRanksAndAlongAxes) {
  GroupOptions wanted = options(6);
  wanted.mesh = Mesh::create({{"dp", 2}, {"tp", 3}, {"pp", 1}}).value();
  auto group = create(wanted).value();
  EXPECT_EQ(group.call<&Actor::sum>(2.0F).wait().value(), std::vector<float>(6, 12.0F));
  EXPECT_EQ(group.call<&Actor::sum_along>("tp").wait().value(),
            (std::vector<float>{3, 3, 3, 12, 12, 12}));
  EXPECT_EQ(group.call<&Actor::sum_along>("dp").wait().value(),
            (std::vector<float>{3, 5, 7, 3, 5, 7}));
  EXPECT_EQ(group.call<&Actor::sum_along>("pp").wait().value(),
            (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST_F(Group, AnErrorResultEndsTheCallFreesPeersAndLeavesTheGroupUsable) {
  auto group = make(4);
  for (const std::string how : {"error", "failure"}) {
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      auto lost_pending = group.call<&Actor::misbehave>(2, how);
      auto queued = group.call<&Actor::echo>(1);
      const auto lost = lost_pending.wait();
      ASSERT_FALSE(lost);
      EXPECT_EQ(lost.error().code, ErrorCode::kIo);
      EXPECT_EQ(lost.error().origin.group, "policy");
      EXPECT_EQ(lost.error().origin.rank, RankId{2});
      EXPECT_NE(lost.error().message.find("misbehave: disk"), std::string::npos);
      EXPECT_TRUE(queued.wait());
      EXPECT_EQ(group.call<&Actor::sum>(1.0F).wait().value(), std::vector<float>(4, 4.0F));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
    }
  }
  EXPECT_FALSE(group.dead_cause());
}

TEST_F(Group, CollectivesAreRebuiltBeforeAQueuedCallThatNeedsThem) {
  auto group = make(3);
  for (int round = 0; round < 20; ++round) {
    auto lost = group.call<&Actor::misbehave>(1, "error");
    // Behind it in every queue while the communicators break.
    auto behind = group.call<&Actor::sum>(2.0F);
    EXPECT_FALSE(lost.wait());
    const auto sums = behind.wait();
    // A rank may have begun it before the break; then it ends with that cause, never with a hang.
    if (!sums) {
      EXPECT_NE(sums.error().to_string().find("disk of 1"), std::string::npos)
          << sums.error().to_string();
    } else {
      EXPECT_EQ(*sums, std::vector<float>(3, 6.0F));
    }
    EXPECT_EQ(group.call<&Actor::sum>(1.0F).wait().value(), std::vector<float>(3, 3.0F));
  }
}

TEST_F(Group, AFailedCheckOrForeignExceptionKillsTheRankAndIsTheCauseOfAllThatFollows) {
  const std::map<std::string, std::string> cases{{"check", "rank 2 has a bug"},
                                                 {"exception", "from a library"},
                                                 {"odd", "not std::exception"}};
  for (const auto& [how, text] : cases) {
    SCOPED_TRACE(how);
    auto group = make(4);
    auto lost = group.call<&Actor::misbehave>(2, how);
    auto queued = group.call<&Actor::echo>(1);
    const auto first_outcome = lost.wait();
    ASSERT_FALSE(first_outcome);
    EXPECT_EQ(first_outcome.error().code, ErrorCode::kInternal);
    EXPECT_EQ(first_outcome.error().origin.rank, RankId{2});
    EXPECT_NE(first_outcome.error().message.find(text), std::string::npos)
        << first_outcome.error().message;
    const auto second = queued.wait();
    EXPECT_TRUE(second || second.error().code == ErrorCode::kRankDead);
    const auto begin = std::chrono::steady_clock::now();
    const auto later = group.call<&Actor::echo>(1).wait();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
    ASSERT_FALSE(later);
    EXPECT_EQ(later.error().code, ErrorCode::kRankDead);
    EXPECT_EQ(later.error().root_cause().origin.rank, RankId{2});
    EXPECT_NE(later.error().to_string().find(text), std::string::npos);
    EXPECT_TRUE(group.dead_cause());
    const auto status = group.status().value();
    EXPECT_TRUE(status[2].dead);
    EXPECT_FALSE(status[1].dead) << status[1].to_string();
  }
}

TEST_F(Group, AFailedConstructorIsAnErrorNamingTheRank) {
  const auto create_with = [&](auto bad) {
    return WorkerGroup<Actor>::create(
        system, options(3),
        [bad, shared = door](WorkerContext& context) -> result<std::unique_ptr<Actor>> {
          if (context.rank() == RankId{1}) return bad();
          // The others wait for rank 1 in their constructor.
          TROUPE_TRY_VOID(context.collective().barrier(context.deadline()));
          return std::make_unique<Actor>(context, shared);
        });
  };
  using Made = result<std::unique_ptr<Actor>>;
  const auto error = create_with([]() -> Made { return fail(ErrorCode::kNotFound, "no weights"); });
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(error.error().origin.rank, RankId{1});
  EXPECT_EQ(error.error().origin.group, "policy");
  const auto thrown = create_with([]() -> Made { throw std::runtime_error("bad alloc"); });
  ASSERT_FALSE(thrown);
  EXPECT_NE(thrown.error().message.find("bad alloc"), std::string::npos);
  const auto null = create_with([]() -> Made { return nullptr; });
  ASSERT_FALSE(null);
  EXPECT_NE(null.error().message.find("returned null"), std::string::npos);
}

TEST_F(Group, AConstructorThatNeverEndsMeetsTheDeadline) {
  GroupOptions wanted = options(2);
  wanted.create_deadline = 50ms;
  wanted.shutdown_wait = 50ms;
  const auto group = WorkerGroup<Actor>::create(
      system, wanted, [shared = door](WorkerContext& context) {
        while (context.rank() == RankId{1} && !shared->open.load())
          std::this_thread::sleep_for(1ms);
        return std::make_unique<Actor>(context, shared);
      });
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code, ErrorCode::kDeadline);
  EXPECT_NE(group.error().message.find("1 of 2"), std::string::npos) << group.error().message;
  door->open = true;
}

TEST_F(Group, ADeadlineEndsTheCallAndNamesTheRankAndWhatItWaitsFor) {
  auto group = make(2);
  const auto lost =
      group.call_with<&Actor::wait_at_door>(CallOptions().within(50ms), 1).wait();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kDeadline);
  EXPECT_EQ(lost.error().origin.group, "policy");
  EXPECT_NE(lost.error().message.find("wait_at_door"), std::string::npos);
  EXPECT_NE(lost.error().message.find("waits for the door"), std::string::npos)
      << lost.error().message;
  // What is queued behind a stuck method has its own deadline, and says what is in the way.
  const auto behind = group.call_with<&Actor::echo>(CallOptions().within(50ms), 1).wait();
  EXPECT_EQ(behind.error().code, ErrorCode::kDeadline);
  EXPECT_NE(behind.error().message.find("no rank has begun it; rank 0: wait_at_door"),
            std::string::npos)
      << behind.error().message;
  door->open = true;
  EXPECT_TRUE(group.call<&Actor::echo>(2).wait()) << "the group goes on once the method ends";
  EXPECT_EQ(group.call<&Actor::sum>(1.0F).wait().value(), std::vector<float>(2, 2.0F));
}

TEST_F(Group, ADeadlineInACollectiveFreesTheWaitingRanks) {
  auto group = make(3);
  const auto lost =
      group.call_with<&Actor::misbehave>(CallOptions().within(60ms), 1, "late").wait();
  EXPECT_EQ(lost.error().code, ErrorCode::kDeadline) << lost.error().to_string();
  EXPECT_EQ(group.call<&Actor::sum>(1.0F).wait().value(), std::vector<float>(3, 3.0F));
}

TEST_F(Group, ADeadlineInThePastRunsNothing) {
  auto group = make(2);
  const auto lost =
      group.call_with<&Actor::append>(CallOptions().until(Deadline{TimePoint{}}), 5).wait();
  EXPECT_EQ(lost.error().code, ErrorCode::kDeadline);
  const auto histories = group.call<&Actor::history>().wait().value();
  EXPECT_TRUE(histories[0].empty());
}

TEST_F(Group, CancellationBeforeTheStartRunsOnNoRank) {
  auto group = make(2);
  auto busy = group.call<&Actor::wait_at_door>(1);
  wait_until_inside(2);
  auto queued = group.call<&Actor::append>(7);
  CancelSource source;
  auto under_token = group.call_with<&Actor::append>(CallOptions().under(source.token()), 8);
  queued.cancel();
  source.cancel(cancelled("changed my mind"));
  EXPECT_EQ(queued.wait().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(under_token.wait().error().message, "changed my mind");
  const auto late = group.call_with<&Actor::append>(CallOptions().under(source.token()), 9).wait();
  EXPECT_EQ(late.error().code, ErrorCode::kCancelled);
  door->open = true;
  EXPECT_TRUE(busy.wait());
  const auto histories = group.call<&Actor::history>().wait().value();
  for (const auto& history : histories) EXPECT_TRUE(history.empty());
}

TEST_F(Group, CancellationOfARunningCallReturnsAtOnceAndIsSeenByTheMethod) {
  auto group = make(2);
  auto running = group.call<&Actor::polite>(1);
  wait_until_inside(2);
  running.cancel();
  EXPECT_EQ(running.wait().error().code, ErrorCode::kCancelled);
  while (door->inside.load() > 0) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(group.call<&Actor::echo>(1).wait());
}

TEST_F(Group, StatusAnswersWhileEnginesAreBusyOrStuck) {
  auto group = make(3);
  auto running = group.call<&Actor::wait_at_door>(1);
  wait_until_inside(3);
  std::this_thread::sleep_for(20ms);
  const auto status = group.status(Deadline::in(5s)).value();
  ASSERT_EQ(status.size(), 3U);
  for (const auto& rank : status) {
    EXPECT_TRUE(rank.busy);
    EXPECT_EQ(rank.method, "wait_at_door");
    EXPECT_EQ(rank.waits_for, "the door");
    EXPECT_GE(rank.busy_seconds, 0.015);
  }
  EXPECT_EQ(group.calls_open(), 1U);
  door->open = true;
  EXPECT_TRUE(running.wait());
  EXPECT_EQ(group.status().value()[0].calls_done, 1);
}

TEST_F(Group, AMethodWithoutProgressIsLoggedOnce) {
  const std::string file = testing::TempDir() + "troupe_stuck.log";
  std::remove(file.c_str());
  log::set_up(log::Level::kWarn, file);
  {
    GroupOptions wanted = options(1);
    wanted.heartbeat = 5ms;
    wanted.stuck_after = 30ms;
    auto group = create(wanted).value();
    auto running = group.call<&Actor::wait_at_door>(1);
    std::this_thread::sleep_for(200ms);
    door->open = true;
    EXPECT_TRUE(running.wait());
  }
  log::set_up(log::Level::kInfo);
  std::ifstream lines(file);
  int said = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("policy: no progress: rank 0: wait_at_door") != std::string::npos) ++said;
  }
  EXPECT_EQ(said, 1);
}

TEST_F(Group, KillingARankEndsCallsAndNamesTheCause) {
  auto group = make(3);
  auto running = group.call<&Actor::wait_at_door>(1);
  wait_until_inside(3);
  group.kill(RankId{1}, Error{.code = ErrorCode::kRankDead,
                              .message = "the supervisor gave up on it",
                              .origin = {},
                              .causes = {}});
  const auto lost = running.wait();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().root_cause().origin.rank, RankId{1});
  EXPECT_NE(lost.error().to_string().find("supervisor gave up"), std::string::npos);
  EXPECT_EQ(group.call<&Actor::echo>(1).wait().error().code, ErrorCode::kRankDead);
  door->open = true;
}

TEST_F(Group, AMissedPeerEndsTheCallWithTheCauseOfItsDeath) {
  auto group = make(3);
  auto running = group.call<&Actor::miss>(2);
  auto next = group.call<&Actor::miss>(2);
  std::this_thread::sleep_for(200ms);
  group.kill(RankId{2}, Error{.code = ErrorCode::kRankDead,
                              .message = "its host burnt down",
                              .origin = {},
                              .causes = {}});
  for (auto* call : {&running, &next}) {
    const auto lost = call->wait();
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().root_cause().origin.rank, RankId{2});
    EXPECT_NE(lost.error().root_cause().message.find("burnt down"), std::string::npos)
        << lost.error().to_string();
  }
}

TEST_F(Group, AMissedPeerWhoseDeathIsNotReportedEndsTheCallAsItIs) {
  auto group = make(3);
  const TimePoint begin = steady_now();
  const auto lost = group.call<&Actor::miss>(2).wait();
  ASSERT_FALSE(lost);
  EXPECT_LT(steady_now() - begin, 5s);
  EXPECT_EQ(lost.error().root_cause().message, "rank 2 is gone");
  EXPECT_FALSE(group.dead_cause());
  EXPECT_EQ(group.call<&Actor::sum>(1.0F).wait().value(), std::vector<float>(3, 3.0F));
}

TEST_F(Group, AMissedPeerNeverOutlivesTheDeadline) {
  auto group = make(2);
  const TimePoint begin = steady_now();
  const auto lost = group.call_with<&Actor::miss>(CallOptions().within(100ms), 1).wait();
  ASSERT_FALSE(lost);
  EXPECT_LT(steady_now() - begin, 1500ms);
}

TEST_F(Group, AbortFreesRanksInCollectivesAndTheGroupGoesOn) {
  auto group = make(2);
  auto stuck = group.call<&Actor::misbehave>(0, "late");
  std::this_thread::sleep_for(50ms);
  group.abort(Error{.code = ErrorCode::kAborted, .message = "operator", .origin = {}, .causes = {}});
  const auto lost = stuck.wait();
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().to_string().find("operator"), std::string::npos);
  EXPECT_EQ(group.call<&Actor::sum>(1.0F).wait().value(), std::vector<float>(2, 2.0F));
}

TEST_F(Group, RefusesMoreCallsInFlightThanTheBound) {
  GroupOptions wanted = options(1);
  wanted.calls_max = 3;
  auto group = create(wanted).value();
  std::vector<pending<int>> running;
  for (int i = 0; i < 3; ++i) running.push_back(group.call<&Actor::wait_at_door>(i));
  const auto refused = group.call<&Actor::echo>(1).wait();
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("3 calls in flight, the bound is 3"), std::string::npos);
  door->open = true;
  for (auto& one : running) EXPECT_TRUE(one.wait());
  EXPECT_TRUE(group.call<&Actor::echo>(1).wait());
}

TEST_F(Group, DestructionEndsRunningAndQueuedCallsAndJoinsTheEngines) {
  std::vector<pending<int>> running;
  pending<std::vector<bool>> polite;
  {
    auto group = make(3);
    polite = group.call<&Actor::polite>(1);
    for (int i = 0; i < 20; ++i) running.push_back(group.call<&Actor::append>(i));
    wait_until_inside(3);
  }
  EXPECT_EQ(door->inside.load(), 0) << "the engines saw the cancellation and ended";
  EXPECT_EQ(polite.wait().error().code, ErrorCode::kCancelled);
  for (auto& one : running) {
    const auto outcome = one.wait(Deadline::in(1s));
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kCancelled);
    EXPECT_EQ(outcome.error().origin.group, "policy");
  }
  EXPECT_EQ(door.use_count(), 1) << "workers are gone";
}

TEST_F(Group, DestructionWithRanksBlockedInACollectiveDoesNotWaitForTheirDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  {
    auto group = make(3);
    group.call<&Actor::misbehave>(0, "late").forget();
    std::this_thread::sleep_for(30ms);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
  EXPECT_EQ(door.use_count(), 1);
}

TEST_F(Group, DestructionLeavesAStuckEngineBehindAfterTheBoundedWait) {
  pending<int> stuck;
  const auto begin = std::chrono::steady_clock::now();
  {
    GroupOptions wanted = options(2);
    wanted.shutdown_wait = 50ms;
    auto group = create(wanted).value();
    stuck = group.call<&Actor::wait_at_door>(1);
    wait_until_inside(2);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_EQ(stuck.wait().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(door->inside.load(), 2);
  door->open = true;  // the engines end by themselves and free all they hold
  for (int i = 0; i < 1000 && door.use_count() > 1; ++i) std::this_thread::sleep_for(2ms);
  EXPECT_EQ(door.use_count(), 1);
}

TEST_F(Group, PendingsOutliveTheirGroupAndSystem) {
  pending<std::vector<int>> early;
  {
    ActorSystem other;
    auto group = WorkerGroup<Actor>::create(other, options(2), [shared = door](WorkerContext& own) {
                   return std::make_unique<Actor>(own, shared);
                 }).value();
    early = group.call<&Actor::echo>(1);
    ASSERT_TRUE(group.call<&Actor::echo>(2).wait());
  }
  EXPECT_EQ(early.wait().value(), (std::vector<int>{10, 11}));
}

TEST_F(Group, MovedAndReassignedGroupsShutDownTheOldOne) {
  auto group = make(1);
  auto running = group.call<&Actor::polite>(1);
  group = make(2);
  EXPECT_EQ(running.wait().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(group.call<&Actor::echo>(1).wait().value().size(), 2U);
}

TEST_F(Group, RefusesLanesThatDoNotMatchTheRanks) {
  OrderedLane lane;
  GroupOptions wanted = options(3);
  wanted.lanes = {&lane, &lane};
  const auto group = create(wanted);
  ASSERT_FALSE(group);
  EXPECT_NE(group.error().message.find("2 lanes for 3 ranks"), std::string::npos);
  wanted.lanes = {&lane, nullptr, &lane};
  EXPECT_FALSE(create(wanted));
}

// Traces.

class Recorder final : public CallTrace {
 public:
  void on_call(const CallSpan& span) override {
    const std::lock_guard lock(mutex_);
    lines_.push_back(fmt::format("{} {} {} {} {}", span.group, span.rank.value, span.method,
                                 span.phase, span.ok));
    ordered_ = ordered_ && span.submitted <= span.begin && span.begin <= span.end;
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    auto sorted = lines_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  bool ordered() const { return ordered_; }

 private:
  mutable std::mutex mutex_;  // guards lines_
  std::vector<std::string> lines_;
  std::atomic<bool> ordered_{true};
};

TEST_F(Group, TracesEveryRunWithItsTimes) {
  Recorder recorder;
  GroupOptions wanted = options(2);
  wanted.trace = &recorder;
  wanted.collectives = false;
  {
    auto group = create(wanted).value();
    ASSERT_TRUE(group.call<&Actor::echo>(1).wait());
  }
  EXPECT_EQ(recorder.lines(),
            (std::vector<std::string>{"policy 0 echo  true", "policy 1 echo  true"}));
  EXPECT_TRUE(recorder.ordered());
}

}  // namespace
}  // namespace troupe::runtime

// Proves the run loop: posting from threads, timers in order on real and virtual time, spawned work,
// and cancellation sources and tokens, their links and registrations.

#include "runtime/task/executor.hpp"

#include "runtime/task/cancel.hpp"
#include "runtime/task/virtual_clock.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

TEST(Executor, RunsPostedCallbacksOfOneThreadInOrder) {
  Executor executor;
  std::vector<int> seen;
  auto ends = make_pending<void>();
  std::thread poster([&] {
    for (int i = 0; i < 1000; ++i) executor.post([&seen, i] { seen.push_back(i); });
    executor.post([out = ends.second] { out.complete({}); });
  });
  auto main = [](pending<void> over) -> task<void> { co_await std::move(over); };
  EXPECT_TRUE(executor.run(main(std::move(ends.first))));
  poster.join();
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(Executor, TimersFireInOrderOfTimeOnVirtualTime) {
  VirtualClock clock;
  Executor executor(clock);
  std::vector<int> order;
  auto note = [&order](Duration span, int id) -> task<void> {
    co_await sleep_for(span);
    order.push_back(id);
  };
  auto main = [&]() -> task<void> {
    for (const int id : {5, 1, 4, 2, 3}) executor.spawn(note(id * 1h, id)).forget();
    co_await sleep_for(6h);
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(executor.run(main()));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(clock.now() - TimePoint{}, 6h);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(Executor, SleepsOnTheMachinesClock) {
  Executor executor;
  auto main = []() -> task<void> { co_await sleep_for(20ms); };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(executor.run(main()));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
}

TEST(Executor, SpawnedWorkGoesOnWhileMainWaits) {
  VirtualClock clock;
  Executor executor(clock);
  int ticks = 0;
  auto ticking = [&ticks]() -> task<void> {
    for (;;) {
      co_await sleep_for(1s);
      ++ticks;
    }
  };
  auto main = []() -> task<void> { co_await sleep_for(10500ms); };
  auto background = executor.spawn(ticking());
  EXPECT_TRUE(executor.run(main()));
  EXPECT_EQ(ticks, 10);
  EXPECT_FALSE(background.ready());
}

TEST(Executor, SpawnFromOtherThreadsIsSafe) {
  Executor executor;
  std::atomic<int> ran{0};
  auto work = [&ran]() -> task<void> {
    ++ran;
    co_return;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) executor.spawn(work()).forget();
    });
  }
  auto main = [&ran]() -> task<void> {
    while (ran.load() < 400) co_await sleep_for(1ms);
  };
  EXPECT_TRUE(executor.run(main()));
  for (auto& thread : threads) thread.join();
}

TEST(Executor, AForeignExceptionInSpawnedWorkIsAnInternalError) {
  Executor executor;
  auto broken = []() -> task<int> {
    throw std::runtime_error("boom");
    co_return 1;
  };
  auto work = executor.spawn(broken());
  executor.run_ready();
  const auto outcome = work.wait();
  EXPECT_EQ(outcome.error().code, ErrorCode::kInternal);
  EXPECT_NE(outcome.error().message.find("boom"), std::string::npos);
}

TEST(Executor, SpawnAfterTheEndIsAborted) {
  pending<int> late;
  auto work = []() -> task<int> { co_return 1; };
  {
    Executor executor;
    late = executor.spawn(work());
  }
  EXPECT_EQ(late.wait().error().code, ErrorCode::kAborted);
}

TEST(Executor, AnExceptionOfAPostedCallbackPassesAndLeavesNothingBehind) {
  Executor executor;
  auto held = std::make_shared<int>(1);
  auto main = [](std::shared_ptr<int> kept) -> task<void> {
    co_await sleep_for(1h);
    *kept = 2;
  };
  executor.post([] { throw std::logic_error("callback"); });
  EXPECT_THROW((void)executor.run(main(held)), std::logic_error);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Executor, NestedRunIsAProgrammerError) {
  Executor executor;
  auto inner = []() -> task<int> { co_return 1; };
  auto main = [&]() -> task<int> { co_return executor.run(inner()).value(); };
  EXPECT_THROW((void)executor.run(main()), CheckFailure);
}

TEST(Executor, YieldLetsOthersRun) {
  Executor executor;
  std::string order;
  auto speaker = [&order](char letter) -> task<void> {
    for (int i = 0; i < 3; ++i) {
      order += letter;
      co_await yield_now();
    }
  };
  auto a = executor.spawn(speaker('a'));
  auto b = executor.spawn(speaker('b'));
  executor.run_ready();
  EXPECT_EQ(order, "ababab");
  EXPECT_TRUE(a.ready() && b.ready());
}

TEST(Cancel, TheFirstReasonStays) {
  CancelSource source;
  const CancelToken token = source.token();
  EXPECT_FALSE(token.cancelled());
  source.cancel(cancelled("one"));
  source.cancel(cancelled("two"));
  EXPECT_TRUE(token.cancelled());
  EXPECT_EQ(token.reason().message, "one");
}

TEST(Cancel, OtherErrorsBecomeTheCause) {
  CancelSource source;
  source.cancel(Error{.code = ErrorCode::kIo, .message = "disk", .origin = {}, .causes = {}});
  EXPECT_EQ(source.token().reason().code, ErrorCode::kCancelled);
  EXPECT_EQ(source.token().reason().root_cause().message, "disk");
}

TEST(Cancel, CallbacksRunOnceAndNotAfterReset) {
  CancelSource source;
  int calls = 0;
  auto kept = source.token().on_cancel([&](const Error&) { ++calls; });
  auto dropped = source.token().on_cancel([&](const Error&) { calls += 100; });
  dropped.reset();
  source.cancel();
  EXPECT_EQ(calls, 1);
  auto late = source.token().on_cancel([&](const Error&) { calls += 10; });
  EXPECT_EQ(calls, 11);
}

TEST(Cancel, LinksFollowTheParentAndDoNotKeepChildrenAlive) {
  auto probe = std::make_shared<int>(0);
  CancelSource parent;
  {
    CancelSource child(parent.token());
    auto registration = child.token().on_cancel([probe](const Error&) { *probe += 1; });
    EXPECT_EQ(probe.use_count(), 2);
  }
  EXPECT_EQ(probe.use_count(), 1);
  CancelSource child(parent.token());
  CancelSource grandchild(child.token());
  parent.cancel(cancelled("all"));
  EXPECT_EQ(grandchild.token().reason().message, "all");
  CancelSource late(grandchild.token());
  EXPECT_TRUE(late.cancelled());
}

TEST(Cancel, LinksRaceSafelyWithTheirEnd) {
  for (int round = 0; round < 300; ++round) {
    CancelSource parent;
    std::thread canceller([parent] { parent.cancel(); });
    for (int i = 0; i < 10; ++i) {
      CancelSource child(parent.token());
      auto registration = child.token().on_cancel([](const Error&) {});
    }
    canceller.join();
  }
}

}  // namespace
}  // namespace troupe::runtime

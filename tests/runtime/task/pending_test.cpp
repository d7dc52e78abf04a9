// Proves that a pending is completed exactly once from any thread, that no wake-up is lost, and that
// dropping, cancelling and abandoning either end is safe. Races run many rounds with two threads.

#include "runtime/task/pending.hpp"

#include "runtime/task/executor.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

task<int> await_one(pending<int> one) { co_return co_await std::move(one); }

TEST(Pending, DeliversAValueThatCameBeforeTheAwait) {
  Executor executor;
  EXPECT_EQ(executor.run(await_one(pending<int>::of(3))).value(), 3);
}

TEST(Pending, DeliversAValueFromAnotherThread) {
  Executor executor;
  auto ends = make_pending<int>();
  std::thread producer([out = ends.second] {
    std::this_thread::sleep_for(5ms);
    out.complete(9);
  });
  EXPECT_EQ(executor.run(await_one(std::move(ends.first))).value(), 9);
  producer.join();
}

TEST(Pending, NoWakeUpIsLostWhenCompletionRacesWithTheAwait) {
  Executor executor;
  std::atomic<int> round{0};
  std::atomic<int> taken{0};
  completer<int> out;
  constexpr int kRounds = 3000;
  std::thread producer([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (round.load() < i) std::this_thread::yield();
      out.complete(i);
      taken.store(i);
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    while (taken.load() < i - 1) std::this_thread::yield();
    auto ends = make_pending<int>();
    out = std::move(ends.second);
    round.store(i);
    ASSERT_EQ(executor.run(await_one(std::move(ends.first))).value(), i);
  }
  producer.join();
}

TEST(Pending, TheFirstCompletionWins) {
  auto ends = make_pending<int>();
  EXPECT_TRUE(ends.second.complete(1));
  EXPECT_FALSE(ends.second.complete(2));
  EXPECT_FALSE(ends.second.fail(cancelled("late")));
  ends.first.cancel();
  EXPECT_EQ(ends.first.wait().value(), 1);
}

TEST(Pending, OnlyOneOfManyRacingCompletionsWins) {
  for (int round = 0; round < 200; ++round) {
    auto ends = make_pending<int>();
    std::atomic<int> wins{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&wins, i, out = ends.second] { wins += out.complete(i) ? 1 : 0; });
    }
    ends.first.cancel();
    const auto outcome = ends.first.wait();
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wins.load(), outcome ? 1 : 0);
  }
}

TEST(Pending, ADroppedProducerEndsItWithAborted) {
  auto ends = make_pending<int>();
  ends.second = completer<int>();
  EXPECT_TRUE(ends.first.ready());
  EXPECT_EQ(ends.first.wait().error().code, ErrorCode::kAborted);
}

TEST(Pending, DiscardingItDoesNotStopTheProducer) {
  auto value = std::make_shared<int>(4);
  auto ends = make_pending<std::shared_ptr<int>>();
  bool told = false;
  ends.second.on_cancel([&](const Error&) { told = true; });
  ends.first.forget();
  EXPECT_TRUE(ends.second.complete(value));
  EXPECT_FALSE(told);
  ends.second = {};
  EXPECT_EQ(value.use_count(), 1);
}

TEST(Pending, CancellingTellsTheProducerOnceWithTheReason) {
  auto ends = make_pending<int>();
  std::vector<std::string> told;
  ends.second.on_cancel([&](const Error& reason) { told.push_back(reason.message); });
  ends.first.cancel(cancelled("enough"));
  ends.first.cancel(cancelled("twice"));
  EXPECT_EQ(told, std::vector<std::string>{"enough"});
  EXPECT_EQ(ends.first.wait().error().message, "enough");
}

TEST(Pending, AHookSetAfterTheCancellationIsCalledAtOnce) {
  auto ends = make_pending<int>();
  ends.first.cancel(cancelled("early"));
  std::string told;
  ends.second.on_cancel([&](const Error& reason) { told = reason.message; });
  EXPECT_EQ(told, "early");
}

TEST(Pending, WaitGivesUpAtItsDeadline) {
  auto ends = make_pending<int>();
  const auto begin = std::chrono::steady_clock::now();
  const auto outcome = ends.first.wait(Deadline::in(20ms));
  EXPECT_EQ(outcome.error().code, ErrorCode::kDeadline);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
  EXPECT_FALSE(ends.second.complete(1));
}

TEST(Pending, ErrorsArriveAsFailureOrAsResult) {
  Executor executor;
  auto both = []() -> task<std::string> {
    auto ends = make_pending<int>();
    ends.second.fail(Error{.code = ErrorCode::kCorrupt, .message = "bits", .origin = {}, .causes = {}});
    result<int> seen = co_await as_result(std::move(ends.first));
    auto second = make_pending<int>();
    second.second.fail(seen.error());
    std::string text;
    try {
      co_await std::move(second.first);
    } catch (const Failure& failure) {
      text = failure.error().message;
    }
    co_return text + "/" + std::string(error_code_name(seen.error().code));
  };
  EXPECT_EQ(executor.run(both()).value(), "bits/corrupt");
}

TEST(Pending, CompletionAfterTheExecutorDiedIsHarmless) {
  auto ends = make_pending<int>();
  {
    Executor executor;
    executor.spawn(await_one(std::move(ends.first))).forget();
    executor.run_ready();
  }
  EXPECT_TRUE(ends.second.complete(1));
}

TEST(Pending, DestroyingTheWaiterRacesSafelyWithTheCompletion) {
  for (int round = 0; round < 500; ++round) {
    auto ends = make_pending<std::unique_ptr<int>>();
    std::thread producer([out = std::move(ends.second)] { out.complete(std::make_unique<int>(1)); });
    {
      Executor executor;
      auto waiting = [](pending<std::unique_ptr<int>> one) -> task<int> {
        auto value = co_await std::move(one);
        co_return *value;
      };
      executor.spawn(waiting(std::move(ends.first))).forget();
      executor.run_ready();
    }
    producer.join();
  }
}

TEST(Pending, UsingAnEmptyOneIsAProgrammerError) {
  auto ends = make_pending<int>();
  pending<int> moved = std::move(ends.first);
  EXPECT_THROW((void)ends.first.ready(), CheckFailure);
  moved.forget();
  EXPECT_THROW(moved.cancel(), CheckFailure);
}

}  // namespace
}  // namespace troupe::runtime

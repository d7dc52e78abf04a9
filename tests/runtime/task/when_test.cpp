// Proves the combinators: order of values, first error as the cause, children called off and gone,
// deadlines and cancellation at every place a coroutine can wait. Most run on virtual time, where a
// wrong wait shows as a wrong clock; a randomized test compares with a direct computation.

#include "runtime/task/when.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/task/deadline.hpp"
#include "runtime/task/virtual_clock.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

struct When : ::testing::Test {
  VirtualClock clock;
  Executor executor{clock};
  Duration elapsed() const { return clock.now() - TimePoint{}; }
};

task<int> after(Duration span, int value) {
  co_await sleep_for(span);
  co_return value;
}

task<int> fails_after(Duration span, std::string message) {
  co_await sleep_for(span);
  throw Failure(Error{.code = ErrorCode::kIo, .message = message, .origin = {}, .causes = {}});
}

task<void> nothing_after(Duration span) { co_await sleep_for(span); }

/// Sleeps, and notes how it ended.
task<int> noted(Duration span, std::vector<std::string>& notes) {
  const result<void> slept = co_await as_result(nothing_after(span));
  notes.push_back(slept ? "done" : std::string(error_code_name(slept.error().code)));
  if (!slept) throw Failure(slept.error());
  co_return 1;
}

TEST_F(When, AllTasksOverlapAndKeepTheirOrder) {
  auto main = []() -> task<std::string> {
    auto [a, b, c] = co_await when_all(after(30ms, 1), nothing_after(10ms), after(20ms, 3));
    (void)b;
    std::vector<task<int>> many;
    for (int i = 0; i < 5; ++i) many.push_back(after((5 - i) * 1ms, i));
    const std::vector<int> values = co_await when_all(std::move(many));
    std::string text = std::to_string(a) + std::to_string(c) + ":";
    for (const int value : values) text += std::to_string(value);
    co_return text;
  };
  EXPECT_EQ(executor.run(main()).value(), "13:01234");
  EXPECT_EQ(elapsed(), 35ms) << "the longest of each group";
}

TEST_F(When, AllOfNothingIsOverAtOnce) {
  auto main = []() -> task<std::size_t> {
    const auto none = co_await when_all(std::vector<task<int>>{});
    co_return none.size();
  };
  EXPECT_EQ(executor.run(main()).value(), 0U);
}

TEST_F(When, AllMixesTasksAndPendings) {
  auto main = []() -> task<int> {
    auto [a, b] = co_await when_all(pending<int>::of(4), after(1ms, 5));
    co_return a * 10 + b;
  };
  EXPECT_EQ(executor.run(main()).value(), 45);
}

TEST_F(When, AllEndsWithTheFirstErrorInTimeAndCallsOffTheRest) {
  std::vector<std::string> notes;
  auto main = [&notes]() -> task<int> {
    std::vector<task<int>> many;
    many.push_back(noted(1h, notes));
    many.push_back(fails_after(20ms, "second"));
    many.push_back(fails_after(10ms, "first"));
    many.push_back(noted(5ms, notes));
    co_await when_all(std::move(many));
    co_return 0;
  };
  const auto outcome = executor.run(main());
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().message, "first");
  EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
  EXPECT_EQ(notes, (std::vector<std::string>{"done", "cancelled"}));
  EXPECT_LT(elapsed(), 1s);
}

TEST_F(When, AllCancelsPendingsOfOtherProducers) {
  auto ends = make_pending<int>();
  bool told = false;
  ends.second.on_cancel([&](const Error&) { told = true; });
  auto main = [](pending<int> other) -> task<int> {
    auto [a, b] = co_await when_all(std::move(other), fails_after(1ms, "root"));
    co_return a + b;
  };
  EXPECT_EQ(executor.run(main(std::move(ends.first))).error().message, "root");
  EXPECT_TRUE(told);
}

TEST_F(When, AChildThatIgnoresCancellationIsDestroyedAfterTheGrace) {
  auto guard = std::make_shared<int>(1);
  auto stubborn = [](std::shared_ptr<int> held) -> task<int> {
    for (;;) {
      const result<void> slept = co_await as_result(shielded(nothing_after(1h)));
      if (!slept) break;
    }
    co_return *held;
  };
  auto main = [&]() -> task<int> {
    auto [a, b] = co_await when_all(stubborn(guard), fails_after(1ms, "root"));
    co_return a + b;
  };
  EXPECT_EQ(executor.run(main()).error().message, "root");
  EXPECT_LE(elapsed(), 1ms + kChildGrace);
  EXPECT_EQ(guard.use_count(), 1);
}

TEST_F(When, AnyReturnsTheFirstAndCallsOffTheOthers) {
  std::vector<std::string> notes;
  auto main = [&notes]() -> task<std::size_t> {
    std::vector<task<int>> many;
    many.push_back(noted(50ms, notes));
    many.push_back(noted(10ms, notes));
    const AnyOf<int> first = co_await when_any(std::move(many));
    co_return first.index;
  };
  EXPECT_EQ(executor.run(main()).value(), 1U);
  EXPECT_EQ(notes, (std::vector<std::string>{"done", "cancelled"}));
  EXPECT_EQ(elapsed(), 10ms);
}

TEST_F(When, AnyOfNothingIsAnError) {
  auto main = []() -> task<std::size_t> {
    const AnyOf<int> first = co_await when_any(std::vector<task<int>>{});
    co_return first.index;
  };
  EXPECT_EQ(executor.run(main()).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(When, FirstReadyLeavesTheOthersToBeAwaitedLater) {
  auto main = [this]() -> task<std::string> {
    std::vector<pending<int>> running;
    for (int i = 0; i < 4; ++i) running.push_back(executor.spawn(after((4 - i) * 10ms, i)));
    std::string order;
    while (!running.empty()) {
      const std::size_t index = co_await first_ready(running);
      order += std::to_string(co_await std::move(running[index]));
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(index));
    }
    co_return order;
  };
  EXPECT_EQ(executor.run(main()).value(), "3210");
  EXPECT_EQ(elapsed(), 40ms);
}

TEST_F(When, DeadlineBoundsATaskAndCallsItOff) {
  std::vector<std::string> notes;
  auto main = [this, &notes](Duration bound) -> task<int> {
    co_return co_await with_deadline(noted(100ms, notes), Deadline{clock.now() + bound});
  };
  EXPECT_EQ(executor.run(main(200ms)).value(), 1);
  EXPECT_EQ(executor.run(main(30ms)).error().code, ErrorCode::kDeadline);
  EXPECT_EQ(notes, (std::vector<std::string>{"done", "deadline"}));
  EXPECT_EQ(elapsed(), 130ms);
}

TEST_F(When, DeadlineBoundsAPendingWhoseProducerNeverAnswers) {
  auto ends = make_pending<int>();
  auto main = [this](pending<int> other) -> task<int> {
    co_return co_await with_deadline(std::move(other), Deadline{clock.now() + 1s});
  };
  EXPECT_EQ(executor.run(main(std::move(ends.first))).error().code, ErrorCode::kDeadline);
  EXPECT_TRUE(ends.second.done());
}

TEST_F(When, ADeadlineInThePastStillGivesAReadyValue) {
  auto main = [this]() -> task<int> {
    const int value = co_await with_deadline(pending<int>::of(3), Deadline{clock.now() - 1s});
    co_return value;
  };
  EXPECT_EQ(executor.run(main()).value(), 3);
}

TEST_F(When, ReadyWithinOnlyLooks) {
  auto main = [this]() -> task<std::string> {
    auto slow = executor.spawn(after(50ms, 8));
    const bool early = co_await ready_within(slow, Deadline{clock.now() + 10ms});
    const bool late = co_await ready_within(slow, Deadline{clock.now() + 1s});
    co_return std::to_string(early) + std::to_string(late) + std::to_string(co_await slow);
  };
  EXPECT_EQ(executor.run(main()).value(), "018");
}

TEST_F(When, ACancelledScopeEndsEveryWaitInIt) {
  std::vector<std::string> notes;
  CancelSource source;
  auto work = [&notes]() -> task<int> {
    auto [a, b] = co_await when_all(noted(1h, notes), noted(2h, notes));
    co_return a + b;
  };
  auto main = [&]() -> task<int> {
    auto running = executor.spawn(with_cancel(work(), source.token()));
    co_await sleep_for(1s);
    source.cancel(cancelled("the user pressed stop"));
    co_return co_await std::move(running);
  };
  const auto outcome = executor.run(main());
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(outcome.error().message, "the user pressed stop");
  EXPECT_EQ(notes, (std::vector<std::string>{"cancelled", "cancelled"}));
  EXPECT_LT(elapsed(), 2s);
}

TEST_F(When, RunUnderACancelledTokenEndsAtTheFirstWait) {
  CancelSource source;
  source.cancel();
  EXPECT_EQ(executor.run(after(1h, 1), source.token()).error().code, ErrorCode::kCancelled);
  auto no_wait = []() -> task<int> { co_return co_await pending<int>::of(2); };
  EXPECT_EQ(executor.run(no_wait(), source.token()).value(), 2) << "what is there is delivered";
}

TEST_F(When, ShieldedWorkEndsAlthoughTheCallerIsCancelled) {
  CancelSource source;
  int cleaned = 0;
  auto work = [&cleaned]() -> task<int> {
    const result<int> body = co_await as_result(after(1h, 1));
    cleaned += co_await shielded(after(10ms, 7));
    co_return body.value_or(-1);
  };
  auto main = [&]() -> task<int> {
    auto running = executor.spawn(work(), source.token());
    co_await sleep_for(1ms);
    source.cancel();
    co_return co_await std::move(running);
  };
  EXPECT_EQ(executor.run(main()).value(), -1);
  EXPECT_EQ(cleaned, 7);
}

TEST_F(When, CancellingASpawnedPendingCancelsTheWork) {
  std::vector<std::string> notes;
  auto main = [&]() -> task<int> {
    auto running = executor.spawn(noted(1h, notes));
    co_await sleep_for(1ms);
    running.cancel();
    co_await sleep_for(1ms);
    co_return static_cast<int>(notes.size());
  };
  EXPECT_EQ(executor.run(main()).value(), 1);
}

/// A random tree of combinators with a value that can be computed directly.
struct Tree {
  Rng rng;
  VirtualClock& clock;
  int leaves = 0;

  task<int> build(int depth) {
    const auto kind = depth == 0 ? 0 : rng.below(4);
    if (kind == 0) return leaf();
    if (kind == 1) return bounded(build(depth - 1));
    std::vector<task<int>> children;
    const auto count = 1 + rng.below(4);
    for (std::uint64_t i = 0; i < count; ++i) children.push_back(build(depth - 1));
    return kind == 2 ? sum(std::move(children)) : spawned(std::move(children));
  }
  task<int> leaf() {
    ++leaves;
    return after(rng.below(50) * 1ms, 1);
  }
  static task<int> sum(std::vector<task<int>> children) {
    int total = 0;
    for (const int value : co_await when_all(std::move(children))) total += value;
    co_return total;
  }
  static task<int> spawned(std::vector<task<int>> children) {
    int total = 0;
    for (auto& child : children) total += co_await std::move(child);
    co_return total;
  }
  task<int> bounded(task<int> child) {
    return with_deadline(std::move(child), Deadline{clock.now() + 1h});
  }
};

TEST_F(When, RandomTreesOfCombinatorsCountTheirLeaves) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Tree tree{Rng(seed), clock};
    task<int> root = tree.build(5);
    ASSERT_EQ(executor.run(std::move(root)).value(), tree.leaves);
  }
}

TEST_F(When, RandomTreesCancelledAtARandomTimeEndAndLeaveNothing) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Tree tree{Rng(seed), clock};
    CancelSource source;
    auto main = [&](task<int> root) -> task<bool> {
      auto running = executor.spawn(std::move(root), source.token());
      co_await sleep_for(tree.rng.below(60) * 1ms);
      source.cancel();
      const TimePoint at = clock.now();
      const result<int> outcome = co_await as_result(std::move(running));
      co_return (outcome || outcome.error().code == ErrorCode::kCancelled) &&
          clock.now() - at <= kChildGrace;
    };
    ASSERT_TRUE(executor.run(main(tree.build(5))).value());
  }
}

TEST(WhenOnThreads, AllOfManyPendingsCompletedByOtherThreads) {
  Executor executor;
  for (int round = 0; round < 50; ++round) {
    std::vector<pending<int>> many;
    std::vector<completer<int>> outs;
    for (int i = 0; i < 40; ++i) {
      auto ends = make_pending<int>();
      many.push_back(std::move(ends.first));
      outs.push_back(std::move(ends.second));
    }
    const bool fails = round % 2 == 1;
    std::thread one([&outs] {
      for (std::size_t i = 0; i < outs.size(); i += 2) outs[i].complete(1);
    });
    std::thread two([&outs, fails] {
      for (std::size_t i = 1; i < outs.size(); i += 2) {
        if (fails && i == 21) outs[i].fail(cancelled("the odd one"));
        outs[i].complete(1);
      }
    });
    auto main = [](std::vector<pending<int>> all) -> task<int> {
      int sum = 0;
      for (const int value : co_await when_all(std::move(all))) sum += value;
      co_return sum;
    };
    const auto outcome = executor.run(main(std::move(many)));
    one.join();
    two.join();
    if (fails) {
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().message, "the odd one");
    } else {
      EXPECT_EQ(outcome.value(), 40);
    }
  }
}

}  // namespace
}  // namespace troupe::runtime

// Proves that tasks start lazily, pass values and failures, use a flat stack at any depth, and free
// everything when they are destroyed at any suspension point. Frames and locals are counted, so a
// leak or a double destruction fails here and not only under ASan.

#include "runtime/task/task.hpp"

#include "runtime/base/check.hpp"
#include "runtime/task/executor.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::runtime {
namespace {

/// Counts live instances.
struct Counted {
  explicit Counted(int& live) : live_(&live) { ++*live_; }
  Counted(const Counted& other) : live_(other.live_) { ++*live_; }
  Counted(Counted&& other) noexcept : live_(other.live_) { ++*live_; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --*live_; }
  int* live_;
};

task<int> just(int value) { co_return value; }

task<int> failing(std::string message) {
  throw Failure(Error{.code = ErrorCode::kIo, .message = message, .origin = {}, .causes = {}});
  co_return 0;
}

TEST(Task, RunsOnlyWhenAwaited) {
  bool ran = false;
  auto lazy = [](bool& flag) -> task<void> {
    flag = true;
    co_return;
  };
  Executor executor;
  {
    task<void> never = lazy(ran);
    EXPECT_TRUE(never.valid());
  }
  EXPECT_FALSE(ran);
  EXPECT_TRUE(executor.run(lazy(ran)));
  EXPECT_TRUE(ran);
}

TEST(Task, PassesValuesThroughNestedAwaits) {
  auto sum = [](int depth, auto&& self) -> task<int> {
    if (depth == 0) co_return 0;
    const int below = co_await self(depth - 1, self);
    co_return below + depth;
  };
  Executor executor;
  EXPECT_EQ(executor.run(sum(100, sum)).value(), 5050);
}

TEST(Task, MovesMoveOnlyValues) {
  auto make = []() -> task<std::unique_ptr<int>> { co_return std::make_unique<int>(7); };
  auto outer = [](auto inner) -> task<std::unique_ptr<int>> {
    auto value = co_await inner();
    *value += 1;
    co_return value;
  };
  Executor executor;
  EXPECT_EQ(**executor.run(outer(make)), 8);
}

TEST(Task, ThrowsFailureToTheAwaiterAndReturnsItFromRun) {
  Executor executor;
  const auto lost = executor.run(failing("disk"));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kIo);
  EXPECT_EQ(lost.error().message, "disk");
  auto catching = []() -> task<std::string> {
    std::string seen;
    try {
      co_await failing("again");
    } catch (const Failure& failure) {
      seen = failure.error().message;
    }
    co_return seen + "!";
  };
  EXPECT_EQ(executor.run(catching()).value(), "again!");
}

TEST(Task, AsResultDoesNotThrowFailureButLetsFailedChecksPass) {
  Executor executor;
  auto quiet = []() -> task<std::string> {
    result<int> good = co_await as_result(just(3));
    result<int> bad = co_await as_result(failing("gone"));
    co_return std::to_string(good.value()) + bad.error().message;
  };
  EXPECT_EQ(executor.run(quiet()).value(), "3gone");
  auto broken = []() -> task<int> {
    TROUPE_CHECK(false, "a bug");
    co_return 1;
  };
  auto outer = [broken]() -> task<int> {
    auto inner = broken();
    result<int> seen = co_await as_result(std::move(inner));
    co_return seen.value_or(0);
  };
  EXPECT_THROW((void)executor.run(outer()), CheckFailure);
  EXPECT_EQ(executor.run(just(4)).value(), 4) << "the executor must survive an escaped exception";
}

TEST(Task, ForeignExceptionsEscapeRunUnchanged) {
  Executor executor;
  auto foreign = []() -> task<int> {
    throw std::runtime_error("from a library");
    co_return 1;
  };
  EXPECT_THROW((void)executor.run(foreign()), std::runtime_error);
}

TEST(Task, DeepChainsDoNotOverflowTheStack) {
  // 300,000 nested awaits, each a frame on the heap: with a stack frame per level this would need
  // far more than the 8 MiB that a thread has.
  auto down = [](int depth, auto&& self) -> task<int> {
    if (depth == 0) {
      co_await yield_now();
      co_return 0;
    }
    co_return co_await self(depth - 1, self) + 1;
  };
  Executor executor;
  EXPECT_EQ(executor.run(down(300'000, down)).value(), 300'000);
}

TEST(Task, LongLoopsOverTasksThatNeverSuspendDoNotOverflowTheStack) {
  auto loop = []() -> task<std::int64_t> {
    std::int64_t sum = 0;
    for (int i = 0; i < 500'000; ++i) sum += co_await just(1);
    co_return sum;
  };
  Executor executor;
  EXPECT_EQ(executor.run(loop()).value(), 500'000);
}

TEST(Task, ConditionalAwaitsWithTemporariesDestroyThemOnce) {
  // g++ 12 has had bugs with temporaries in co_await inside conditions and conditionals.
  int live = 0;
  auto take = [](Counted counted, int value) -> task<int> {
    co_await yield_now();
    co_return value + (counted.live_ == nullptr ? 1 : 0);
  };
  auto outer = [&live, take](bool yes) -> task<int> {
    int sum = 0;
    if (co_await take(Counted(live), 1) == 1 && co_await take(Counted(live), 2) == 2) sum += 10;
    sum += yes ? co_await take(Counted(live), 3) : co_await take(Counted(live), 4);
    while (co_await take(Counted(live), sum) < 15) ++sum;
    co_return sum;
  };
  Executor executor;
  EXPECT_EQ(executor.run(outer(true)).value(), 15);
  EXPECT_EQ(executor.run(outer(false)).value(), 15);
  EXPECT_EQ(live, 0);
}

struct Report {
  std::string name;
  std::vector<int> values;
};

TEST(Task, AggregatesByValueSurviveSuspension) {
  auto describe = [](Report report) -> task<std::size_t> {
    co_await yield_now();
    co_return report.name.size() + report.values.size();
  };
  auto outer = [describe]() -> task<std::size_t> {
    const Report report{.name = std::string(100, 'x'), .values = {1, 2, 3}};
    const std::size_t one = co_await describe(report);
    // By name, see task.hpp: g++ 12 destroys the members of a braced temporary twice here.
    Report other{.name = std::string(50, 'y'), .values = {1}};
    const std::size_t two = co_await describe(std::move(other));
    co_return one + two;
  };
  Executor executor;
  EXPECT_EQ(executor.run(outer()).value(), 154U);
}

TEST(Task, DestructionAtAnySuspensionFreesAllFrames) {
  int live = 0;
  auto leaf = [](Counted counted, completer<int>& out) -> task<int> {
    auto ends = make_pending<int>();
    out = ends.second;
    const Counted local = counted;
    co_return co_await std::move(ends.first);
  };
  auto middle = [leaf](Counted counted, completer<int>& out) -> task<int> {
    const Counted local = counted;
    co_return co_await leaf(counted, out) + 1;
  };
  completer<int> out;
  {
    Executor executor;
    auto work = executor.spawn(middle(Counted(live), out));
    executor.run_ready();
    EXPECT_GT(live, 0);
    EXPECT_FALSE(work.ready());
  }
  EXPECT_EQ(live, 0) << "destroying the executor must destroy suspended frames";
  EXPECT_TRUE(out.complete(5)) << "the producer may still complete what nobody waits for";
}

TEST(Task, DestructionOfUnstartedTasksFreesTheirArguments) {
  int live = 0;
  auto work = [](Counted counted) -> task<int> { co_return counted.live_ != nullptr ? 1 : 0; };
  {
    task<int> one = work(Counted(live));
    task<int> two = std::move(one);
    one = work(Counted(live));
    EXPECT_EQ(live, 2);
  }
  EXPECT_EQ(live, 0);
}

TEST(Task, AwaitingTwiceIsAProgrammerError) {
  auto twice = []() -> task<int> {
    task<int> one = just(1);
    co_await one;
    co_return co_await one;
  };
  Executor executor;
  EXPECT_THROW((void)executor.run(twice()), CheckFailure);
}

}  // namespace
}  // namespace troupe::runtime

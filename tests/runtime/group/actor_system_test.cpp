// Proves the call timer: order, removal, racing removal, destruction with entries; and that the actor
// system says which CAF it was built with and ends while groups of it come and go.

#include "runtime/group/actor_system.hpp"

#include "runtime/base/clock.hpp"
#include "runtime/group/group_options.hpp"
#include "runtime/task/pending.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;

TimePoint in(Duration span) { return SteadyClock().now() + span; }

TEST(CallTimer, FiresInOrderOfTimeWhateverTheOrderOfAdding) {
  CallTimer timer;
  std::vector<int> order;
  auto ends = make_pending<void>();
  const TimePoint base = in(20ms);
  for (const int id : {3, 1, 4, 2}) timer.add(base + id * 1ms, [&order, id] { order.push_back(id); });
  timer.add(base + 6ms, [out = ends.second] { out.complete({}); });
  ASSERT_TRUE(ends.first.wait(Deadline::in(10s)));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST(CallTimer, RemovedCallbacksDoNotRunAndAreDestroyed) {
  CallTimer timer;
  auto held = std::make_shared<int>(0);
  const auto id = timer.add(in(1h), [held] { *held = 1; });
  EXPECT_EQ(held.use_count(), 2);
  EXPECT_TRUE(timer.remove(id));
  EXPECT_FALSE(timer.remove(id));
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 0);
}

TEST(CallTimer, EachCallbackEitherRunsOrIsRemoved) {
  CallTimer timer;
  std::atomic<int> ran{0};
  int removed = 0;
  constexpr int kEntries = 2000;
  for (int i = 0; i < kEntries; ++i) {
    const auto id = timer.add(in(std::chrono::microseconds(i % 7)), [&ran] { ++ran; });
    if (i % 2 == 0 && timer.remove(id)) ++removed;
  }
  for (int i = 0; i < 5000 && ran.load() + removed < kEntries; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(ran.load() + removed, kEntries);
}

TEST(CallTimer, DestructionDropsWhatIsLeft) {
  auto held = std::make_shared<int>(0);
  {
    CallTimer timer;
    timer.add(in(1h), [held] { *held = 1; });
  }
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 0);
}

TEST(ActorSystem, StartsSeveralTimesAndSaysItsVersion) {
  for (int i = 0; i < 3; ++i) ActorSystem system({.threads = static_cast<std::size_t>(i + 1)});
  const std::string version = ActorSystem::caf_version();
  EXPECT_TRUE(version.starts_with("0.17.") || version.starts_with("1.")) << version;
  RecordProperty("caf", version);
}

TEST(RankStatus, PrintsOneLineForPeople) {
  RankStatus status;
  status.rank = RankId{3};
  status.calls_done = 5;
  EXPECT_EQ(status.to_string(), "rank 3: idle after 5 calls");
  status.busy = true;
  status.method = "update";
  status.busy_seconds = 1.25;
  EXPECT_EQ(status.to_string(), "rank 3: update for 1.2 s");
  status.waits_for = "lane turn";
  status.waiting_seconds = 1;
  EXPECT_EQ(status.to_string(), "rank 3: update for 1.2 s, waits for lane turn for 1.0 s");
  status.dead = true;
  status.cause = "crash";
  EXPECT_EQ(status.to_string(), "rank 3: dead: crash");
}

}  // namespace
}  // namespace troupe::runtime

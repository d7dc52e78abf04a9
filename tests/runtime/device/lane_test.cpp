// Proves that a device lane gives turns one at a time, first come first served, and that every
// wait ends. The pure queue is checked against a plain list in random programs (seed printed).

#include "runtime/device/lane.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

namespace troupe::runtime {
namespace {

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }
Deadline in_ms(int count) { return Deadline::in(std::chrono::milliseconds(count)); }

TEST(LaneQueue, EqualsAPlainListInRandomPrograms) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const int waiting_max = static_cast<int>(rng.below(6));
    LaneQueue queue(waiting_max);
    std::deque<std::uint64_t> line;  // front holds
    TimePoint now{};
    for (int step = 0; step < 200; ++step) {
      now += Duration(1);
      if (rng.below(2) == 0) {
        const auto ticket = queue.enter({"train", "policy"}, now);
        const bool full = static_cast<int>(line.size()) > waiting_max;
        ASSERT_EQ(ticket.has_value(), !full) << "seed " << seed;
        if (ticket) line.push_back(*ticket);
      } else if (!line.empty()) {
        const auto at = rng.below(line.size());
        const std::uint64_t ticket = line[at];
        const auto next = queue.leave(ticket, now);
        line.erase(line.begin() + static_cast<std::ptrdiff_t>(at));
        const bool hands_on = at == 0 && !line.empty();
        ASSERT_EQ(next, hands_on ? std::optional(line.front()) : std::nullopt) << "seed " << seed;
      }
      const LaneStatus status = queue.status();
      ASSERT_EQ(status.holder.has_value(), !line.empty()) << "seed " << seed;
      if (line.empty()) continue;
      ASSERT_EQ(status.holder->ticket, line.front()) << "seed " << seed;
      ASSERT_EQ(status.waiting.size(), line.size() - 1);
      for (std::size_t i = 1; i < line.size(); ++i)
        ASSERT_EQ(status.waiting[i - 1].ticket, line[i]);
    }
  }
}

TEST(DeviceLane, GivesTurnsInTheOrderOfAsking) {
  DeviceLane lane({.device = DeviceId{0}});
  auto first = lane.acquire({"rollout", "rollout"}, soon());
  ASSERT_TRUE(first);
  std::vector<int> order;
  std::mutex order_mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) {
    threads.emplace_back([&, i] {
      auto turn = lane.acquire({"train", "rank " + std::to_string(i)}, soon());
      ASSERT_TRUE(turn);
      const std::scoped_lock lock(order_mutex);
      order.push_back(i);
    });
    while (lane.status().waiting.size() != static_cast<std::size_t>(i + 1)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(lane.status().holder->request.phase, "rollout");
  first->release();
  first->release();  // a second call does nothing
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_FALSE(lane.status().holder);
  EXPECT_EQ(lane.status().turns_taken, 6);
}

TEST(DeviceLane, NeverHasTwoHolders) {
  DeviceLane lane({});
  std::atomic<int> inside{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        auto turn = lane.acquire({"p", "o"}, soon());
        ASSERT_TRUE(turn);
        EXPECT_EQ(++inside, 1);
        --inside;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(lane.status().turns_taken, 1200);
}

TEST(DeviceLane, DeadlineNamesHolderPhaseAndHowLong) {
  DeviceLane lane({.device = DeviceId{3}});
  auto holder = lane.acquire({"train", "policy rank 1"}, soon());
  const auto late = lane.acquire({"rollout", "rollout rank 0"}, in_ms(20));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  for (const char* part : {"device 3", "rollout rank 0", "policy rank 1", "phase train"}) {
    EXPECT_NE(late.error().message.find(part), std::string::npos) << late.error().message;
  }
  EXPECT_TRUE(lane.status().waiting.empty());  // it left the line
  holder->release();
  EXPECT_TRUE(lane.acquire({"rollout", "r"}, in_ms(0)));  // free: no wait, an old deadline is fine
}

TEST(DeviceLane, AFullLineIsRefusedAtOnce) {
  DeviceLane lane({.device = DeviceId{0}, .waiting_max = 0});
  auto holder = lane.acquire({"train", "a"}, soon());
  EXPECT_EQ(lane.acquire({"train", "b"}, soon()).error().code, ErrorCode::kResourceExhausted);
}

TEST(DeviceLane, CloseWakesWaitersWithItsReason) {
  DeviceLane lane({});
  auto holder = lane.acquire({"train", "a"}, soon());
  std::thread waiter([&] {
    const auto turn = lane.acquire({"train", "b"}, soon());
    ASSERT_FALSE(turn);
    EXPECT_EQ(turn.error().message, "run is over");
  });
  while (lane.status().waiting.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  lane.close(Error{ErrorCode::kCancelled, "run is over", {}, {}});
  waiter.join();
  EXPECT_EQ(lane.status().holder->request.owner, "a");
  EXPECT_FALSE(lane.acquire({"train", "c"}, soon()));
}

TEST(DeviceLane, MovedTurnHoldsAndReleasesOnce) {
  DeviceLane lane({});
  {
    auto turn = lane.acquire({"train", "a"}, soon());
    DeviceLane::Turn kept = std::move(*turn);
    EXPECT_TRUE(lane.status().holder);
    DeviceLane other({});
    auto second = other.acquire({"x", "y"}, soon());
    kept = std::move(*second);  // gives the first lane back
    EXPECT_FALSE(lane.status().holder);
    EXPECT_TRUE(other.status().holder);
  }
}

TEST(AcquireAll, OppositeOrdersDoNotLockEachOtherOut) {
  DeviceLane a({.device = DeviceId{0}});
  DeviceLane b({.device = DeviceId{1}});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::vector<DeviceLane*> lanes{&a, &b};
      if (i % 2 == 1) std::swap(lanes[0], lanes[1]);
      for (int k = 0; k < 200; ++k) ASSERT_TRUE(acquire_all(lanes, {"p", "o"}, soon()));
    });
  }
  for (auto& thread : threads) thread.join();
  auto held = b.acquire({"train", "x"}, soon());
  const std::vector<DeviceLane*> lanes{&a, &b};
  EXPECT_FALSE(acquire_all(lanes, {"p", "o"}, in_ms(10)));
  EXPECT_FALSE(a.status().holder);  // all or none
  const std::vector<DeviceLane*> twice{&a, &a};
  EXPECT_THROW((void)acquire_all(twice, {"p", "o"}, soon()), CheckFailure);
}

}  // namespace
}  // namespace troupe::runtime

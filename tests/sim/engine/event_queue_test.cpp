// Proves that events leave in order of time, class and scheduling whatever is cancelled in between:
// thousands of random operations against a sorted list, seeds printed.

#include "sim/engine/event_queue.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace troupe::sim {
namespace {

TimePoint at(std::int64_t ns) { return TimePoint(Duration(ns)); }

TEST(EventQueue, OrdersEqualTimesByClassAndThenByScheduling) {
  EventQueue<int> queue;
  queue.push(at(5), EventClass::kObserve, 4);
  queue.push(at(5), EventClass::kDefault, 2);
  queue.push(at(5), EventClass::kDefault, 3);
  queue.push(at(5), EventClass::kRelease, 1);
  queue.push(at(4), EventClass::kObserve, 0);
  for (int wanted = 0; wanted < 5; ++wanted) {
    const auto popped = queue.pop();
    ASSERT_TRUE(popped);
    EXPECT_EQ(popped->event, wanted);
  }
  EXPECT_FALSE(queue.pop());
}

TEST(EventQueue, CancelsOnceAndNeverAnotherEvent) {
  EventQueue<int> queue;
  const EventId gone = queue.push(at(1), EventClass::kDefault, 1);
  EXPECT_TRUE(queue.cancel(gone));
  EXPECT_FALSE(queue.cancel(gone));
  const EventId next = queue.push(at(1), EventClass::kDefault, 2);  // takes the same slot
  EXPECT_FALSE(queue.cancel(gone));
  EXPECT_TRUE(queue.pending(next));
  EXPECT_EQ(queue.pop()->event, 2);
  EXPECT_FALSE(queue.cancel(next));
  EXPECT_FALSE(queue.cancel(EventId{}));
}

TEST(EventQueue, KeepsCancelledEntriesBounded) {
  EventQueue<int> queue;
  queue.push(at(1'000'000), EventClass::kDefault, 0);
  for (int i = 0; i < 100'000; ++i) {
    const EventId id = queue.push(at(500'000 + i), EventClass::kDefault, i);
    ASSERT_TRUE(queue.cancel(id));
  }
  EXPECT_EQ(queue.size(), 1U);
  EXPECT_EQ(queue.pop()->at, at(1'000'000));
}

TEST(EventQueue, EqualsASortedListUnderRandomOperations) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    EventQueue<std::uint64_t> queue;
    struct Known {
      std::int64_t time;
      int event_class;
      std::uint64_t number;
      EventId id;
    };
    std::vector<Known> known;
    const auto order = [](const Known& a, const Known& b) {
      return std::tie(a.time, a.event_class, a.number) < std::tie(b.time, b.event_class, b.number);
    };
    std::uint64_t number = 0;
    for (int step = 0; step < 2'000; ++step) {
      const std::uint64_t what = rng.below(10);
      if (what < 5 || known.empty()) {
        const auto time = static_cast<std::int64_t>(rng.below(50));
        const auto cls = static_cast<int>(rng.below(4));
        const EventId id = queue.push(at(time), static_cast<EventClass>(cls), number);
        known.push_back({time, cls, number++, id});
      } else if (what < 7) {
        const std::size_t which = rng.below(known.size());
        ASSERT_TRUE(queue.cancel(known[which].id));
        known.erase(known.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        const auto least = std::min_element(known.begin(), known.end(), order);
        const auto popped = queue.pop();
        ASSERT_TRUE(popped);
        ASSERT_EQ(popped->event, least->number);
        ASSERT_EQ(popped->at, at(least->time));
        ASSERT_EQ(static_cast<int>(popped->event_class), least->event_class);
        known.erase(least);
      }
      ASSERT_EQ(queue.size(), known.size());
    }
  }
}

}  // namespace
}  // namespace troupe::sim

// Proves device lanes with groups: one method per device at a time, in the order of submission over
// all groups that share it, no lock-out between groups with collectives, and that skipped calls hand
// their place on.

#include "runtime/group/lane_gate.hpp"

#include "runtime/comm/collective.hpp"
#include "runtime/group/worker_group.hpp"

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

/// What happens on one device, in order.
struct Device {
  OrderedLane lane;
  std::atomic<int> inside{0};
  std::mutex mutex;  // guards order
  std::vector<int> order;
};

struct Phased {
  Phased(WorkerContext& own, std::vector<std::unique_ptr<Device>>& all_devices)
      : context(own), device(*all_devices[static_cast<std::size_t>(own.rank().value)]) {}
  result<void> step(int id) {
    EXPECT_EQ(device.inside.fetch_add(1), 0) << "two methods on one device";
    {
      const std::lock_guard lock(device.mutex);
      device.order.push_back(id);
    }
    auto met = context.collective().barrier(context.deadline());
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    --device.inside;
    return met;
  }
  void block(int milliseconds) { std::this_thread::sleep_for(milliseconds * 1ms); }
  int aside(int value) { return value; }
  static constexpr auto methods() {
    return std::tuple{
        method<&Phased::step>("step", args(broadcast), returns(none)).phase("train"),
        method<&Phased::block>("block", args(broadcast), returns(none)).phase("train"),
        method<&Phased::aside>("aside", args(broadcast), returns(first)),
    };
  }
  WorkerContext& context;
  Device& device;
};

struct Lanes : ::testing::Test {
  ActorSystem system;
  std::vector<std::unique_ptr<Device>> devices;

  WorkerGroup<Phased> make(const std::string& name) {
    if (devices.empty()) {
      for (int i = 0; i < 3; ++i) devices.push_back(std::make_unique<Device>());
    }
    GroupOptions options;
    options.name = name;
    options.mesh = Mesh::data_parallel(3);
    options.call_deadline = 20s;
    for (const auto& device : devices) options.lanes.push_back(&device->lane);
    return WorkerGroup<Phased>::create(system, options, [this](WorkerContext& context) {
             return std::make_unique<Phased>(context, devices);
           }).value();
  }
};

TEST_F(Lanes, GroupsOnOneDeviceTakeTurnsInSubmissionOrder) {
  auto policy = make("policy");
  auto critic = make("critic");
  std::vector<pending<void>> running;
  std::vector<int> expected;
  for (int i = 0; i < 60; ++i) {
    auto& group = (i * 7) % 3 == 0 ? policy : critic;
    running.push_back(group.call<&Phased::step>(i));
    expected.push_back(i);
  }
  for (auto& one : running) ASSERT_TRUE(one.wait());
  for (const auto& device : devices) EXPECT_EQ(device->order, expected);
}

TEST_F(Lanes, GroupsCalledFromTwoThreadsDoNotLockEachOtherOut) {
  auto policy = make("policy");
  auto critic = make("critic");
  const auto drive = [](WorkerGroup<Phased>& group, int base) {
    std::vector<pending<void>> running;
    for (int i = 0; i < 100; ++i) running.push_back(group.call<&Phased::step>(base + i));
    for (auto& one : running) ASSERT_TRUE(one.wait());
  };
  std::thread other([&] { drive(critic, 1000); });
  drive(policy, 0);
  other.join();
  for (const auto& device : devices) EXPECT_EQ(device->order, devices.front()->order);
}

TEST_F(Lanes, AMethodWithoutPhaseDoesNotWaitForTheLane) {
  auto policy = make("policy");
  auto critic = make("critic");
  auto blocked = policy.call<&Phased::block>(300);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(critic.call<&Phased::aside>(5).wait(Deadline::in(10s)).value(), 5);
  EXPECT_FALSE(blocked.ready());
  EXPECT_TRUE(blocked.wait());
}

TEST_F(Lanes, ADeadlineWhileWaitingForTheLaneNamesTheHolder) {
  auto policy = make("policy");
  auto critic = make("critic");
  auto blocked = policy.call<&Phased::block>(400);
  std::this_thread::sleep_for(20ms);
  const auto late = critic.call_with<&Phased::step>(CallOptions().within(50ms), 1).wait();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadline);
  EXPECT_TRUE(late.error().message.find("lane turn") != std::string::npos ||
              late.error().message.find("policy rank") != std::string::npos)
      << late.error().message;
  EXPECT_TRUE(blocked.wait());
  EXPECT_TRUE(critic.call<&Phased::step>(2).wait());
}

TEST_F(Lanes, CancelledCallsHandTheirPlaceOn) {
  auto policy = make("policy");
  auto critic = make("critic");
  auto blocked = policy.call<&Phased::block>(30);
  for (int i = 0; i < 20; ++i) policy.call<&Phased::step>(i).cancel();
  EXPECT_TRUE(critic.call<&Phased::step>(99).wait());
  EXPECT_TRUE(blocked.wait());
  for (const auto& device : devices) {
    for (int i = 0; i < 500 && device->lane.status().holder; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(device->lane.status().holder);
    EXPECT_TRUE(device->lane.status().waiting.empty());
  }
}

TEST_F(Lanes, DestroyedGroupsFreeTheirPlaces) {
  auto critic = make("critic");
  {
    auto policy = make("policy");
    for (int i = 0; i < 10; ++i) policy.call<&Phased::block>(5).forget();
  }
  EXPECT_TRUE(critic.call<&Phased::step>(1).wait());
}

TEST(OrderedLane, ServesInOrderOfReservationWhateverTheOrderOfWaiting) {
  OrderedLane lane;
  std::vector<int> order;
  std::vector<std::unique_ptr<LaneGate::Turn>> turns;
  for (int i = 0; i < 4; ++i)
    turns.push_back(lane.reserve({.phase = "p", .owner = std::to_string(i)}).value());
  std::vector<std::thread> threads;
  for (int i = 3; i >= 0; --i) {
    threads.emplace_back([&order, i, turn = std::move(turns[static_cast<std::size_t>(i)])]() mutable {
      ASSERT_TRUE(turn->wait(Deadline::in(10s)));
      order.push_back(i);
      turn.reset();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(lane.status().turns_taken, 4);
}

TEST(OrderedLane, RefusesWhenTheLineIsFull) {
  OrderedLane lane(1);
  auto holder = lane.reserve({.phase = "p", .owner = "a"});
  auto waiting = lane.reserve({.phase = "p", .owner = "b"});
  const auto refused = lane.reserve({.phase = "p", .owner = "c"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace troupe::runtime

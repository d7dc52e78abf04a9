// What it proves: a name that takes long to look up delays no other attempt, nor its own deadline,
// nor the dialler's end.
// How: look-ups that wait until the test lets them go, sockets of this process.

#include "runtime/link/dialler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::runtime {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// Shared with look-ups, which may outlive the test.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards open_
  std::condition_variable opened_;
  bool open_ = false;
};

class DiallerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = open_listener({"127.0.0.1", 0}, true).value();
    port_ = port_of(listener_).value();
    dialler_ = std::make_unique<Dialler>([gate = gate_](const std::string& host) {
      if (host != "localhost") gate->wait();
    });
  }
  void TearDown() override {
    gate_->open();
    ::close(listener_);
  }
  std::future<result<int>> dial(const std::string& host, Duration within) {
    auto promise = std::make_shared<std::promise<result<int>>>();
    dialler_->dial({host, port_}, Deadline::in(within),
                   [promise](result<int> outcome) { promise->set_value(std::move(outcome)); });
    return promise->get_future();
  }
  static void expect_connected(std::future<result<int>> outcome) {
    ASSERT_EQ(outcome.wait_for(5s), std::future_status::ready);
    const result<int> descriptor = outcome.get();
    ASSERT_TRUE(descriptor) << descriptor.error().to_string();
    ::close(*descriptor);
  }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::unique_ptr<Dialler> dialler_;
};

TEST_F(DiallerTest, ASlowNameDelaysNobodyElse) {
  auto slow = dial("slow.invalid", 60s);
  expect_connected(dial("127.0.0.1", 5s));
  expect_connected(dial("localhost", 5s));
  EXPECT_EQ(slow.wait_for(0s), std::future_status::timeout);
  gate_->open();
  ASSERT_EQ(slow.wait_for(20s), std::future_status::ready);
  EXPECT_THAT(slow.get().error().message, HasSubstr("unknown host"));
}

TEST_F(DiallerTest, ASlowNameEndsAtItsDeadline) {
  auto slow = dial("slow.invalid", 100ms);
  ASSERT_EQ(slow.wait_for(5s), std::future_status::ready);
  const Error error = slow.get().error();
  EXPECT_EQ(error.code, ErrorCode::kDeadline);
  EXPECT_THAT(error.message, HasSubstr("slow.invalid"));
  EXPECT_THAT(error.message, HasSubstr("name not looked up by the deadline"));
}

TEST_F(DiallerTest, EndsWithoutWaitingForLookUps) {
  auto slow = dial("slow.invalid", 60s);
  std::this_thread::sleep_for(20ms);
  dialler_.reset();
  ASSERT_EQ(slow.wait_for(0s), std::future_status::ready);
  EXPECT_EQ(slow.get().error().code, ErrorCode::kCancelled);
}

TEST_F(DiallerTest, LooksUpABoundedNumberOfNames) {
  std::vector<std::future<result<int>>> held;
  for (int i = 0; i < Dialler::kLookUpsMax; ++i) held.push_back(dial("slow.invalid", 60s));
  auto refused = dial("one.more", 60s);
  ASSERT_EQ(refused.wait_for(5s), std::future_status::ready);
  EXPECT_EQ(refused.get().error().code, ErrorCode::kResourceExhausted);
  gate_->open();
}

}  // namespace
}  // namespace troupe::runtime

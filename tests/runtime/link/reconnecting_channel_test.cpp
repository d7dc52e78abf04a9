// A channel that is dialled again: up and down alternate, waiting is bounded, and stopping it at
// any time leaves nothing behind.

#include "runtime/link/reconnecting_channel.hpp"

#include "tests/runtime/link/hub_support.hpp"

#include <gmock/gmock.h>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests

struct Told {
  void note(char what) {
    const std::lock_guard lock(mutex);
    text += what;
  }
  std::string seen() {
    const std::lock_guard lock(mutex);
    return text;
  }
  std::mutex mutex;  // guards text
  std::string text;
};

ReconnectOptions options_for(const std::string& address, Told& told) {
  ReconnectOptions options;
  options.address = address;
  options.service = std::make_shared<EchoService>();
  options.backoff_first = milliseconds(20);
  options.backoff_max = milliseconds(100);
  options.on_up = [&told](const Ref<Channel>&) { told.note('u'); };
  options.on_down = [&told](const Error&) { told.note('d'); };
  options.on_refused = [&told](const Error&) { told.note('r'); };
  return options;
}

TEST(ReconnectingChannel, ComesUpAgainWhenTheHeadIsBack) {
  ActorSystem system;
  const auto node = open_hub(system, named(PeerRole::kNode, "gpu-1", kToken));
  const auto service = std::make_shared<EchoService>();
  const auto accept = [&](const PeerName&, const Ref<Channel>&) { return service; };
  auto head = open_hub(system, named(PeerRole::kHead, "main", kToken));
  const auto at = head->listen("127.0.0.1", 0, accept);
  ASSERT_TRUE(at);
  Told told;
  ReconnectingChannel channel(*node, options_for(at->to_string(), told));
  const auto first = channel.wait_up(Deadline::in(seconds(5)));
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_TRUE((*first)->request("echo", {}, Deadline::in(seconds(5))).wait());
  head.reset();
  EXPECT_TRUE(soon([&] { return !channel.current(); }));
  EXPECT_TRUE(soon([&] { return told.seen().find("udr") == 0; })) << told.seen();
  head = open_hub(system, named(PeerRole::kHead, "main", kToken));
  ASSERT_TRUE(head->listen("127.0.0.1", at->port, accept));
  const auto second = channel.wait_up(Deadline::in(seconds(5)));
  ASSERT_TRUE(second) << second.error().to_string();
  EXPECT_NE(first->get(), second->get());
  EXPECT_TRUE((*second)->request("echo", {}, Deadline::in(seconds(5))).wait());
  EXPECT_TRUE(soon([&] { return told.seen().back() == 'u'; }));
}

TEST(ReconnectingChannel, SaysWhyItIsNotUpAtTheDeadline) {
  ActorSystem system;
  const auto node = open_hub(system, named(PeerRole::kNode, "gpu-1"));
  Told told;
  ReconnectingChannel channel(*node, options_for("127.0.0.1:1", told));
  const auto up = channel.wait_up(Deadline::in(milliseconds(300)));
  ASSERT_FALSE(up);
  EXPECT_EQ(up.error().code, ErrorCode::kDeadline);
  EXPECT_EQ(up.error().root_cause().code, ErrorCode::kIo);
  const auto tries = told.seen();
  EXPECT_GE(tries.size(), 3U);
  EXPECT_LE(tries.size(), 10U);  // it backs off
  EXPECT_EQ(tries.find_first_not_of('r'), std::string::npos);
}

TEST(ReconnectingChannel, StopsWhileItDialsAndWhileItIsUp) {
  ActorSystem system;
  const auto node = open_hub(system, named(PeerRole::kNode, "gpu-1"));
  const RawListener mute;
  Told told;
  {
    ReconnectingChannel dialling(*node, options_for(mute.address(), told));
    std::this_thread::sleep_for(milliseconds(50));
    const auto begin = SteadyClock().now();
    dialling.stop();
    EXPECT_LT(SteadyClock().now() - begin, seconds(1));
    EXPECT_EQ(dialling.wait_up(Deadline::in(seconds(1))).error().code, ErrorCode::kCancelled);
  }
  EXPECT_EQ(told.seen(), "");
  Two two;
  {
    ReconnectOptions options = options_for(two.address, told);
    options.service = two.client;
    ReconnectingChannel up(*two.node, std::move(options));
    ASSERT_TRUE(up.wait_up(Deadline::in(seconds(5))));
    EXPECT_TRUE(soon([&] { return told.seen() == "u"; }));
  }
  EXPECT_TRUE(soon([&] { return two.served->downs == 1 && two.client->downs == 1; }));
  EXPECT_EQ(told.seen(), "u");
}

TEST(ReconnectingChannel, MayBeStoppedByItsOwnCallback) {
  Two two;
  Told told;
  ReconnectingChannel* self = nullptr;
  std::atomic<bool> ready{false};
  ReconnectOptions options = options_for(two.address, told);
  options.on_up = [&](const Ref<Channel>&) {
    soon([&] { return ready.load(); });
    self->stop();
    told.note('s');
  };
  ReconnectingChannel channel(*two.node, std::move(options));
  self = &channel;
  ready = true;
  EXPECT_TRUE(soon([&] { return told.seen() == "s"; }));
  EXPECT_TRUE(soon([&] { return two.served->downs == 1; }));
  EXPECT_FALSE(channel.current());
}

}  // namespace
}  // namespace troupe::runtime

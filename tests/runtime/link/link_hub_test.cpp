// Channels over sockets of this machine: who may come in, what each end is told, that nothing is
// lost or repeated, and that a hub can be destroyed at any time.

#include "runtime/link/link_hub.hpp"

#include "runtime/base/rng.hpp"
#include "runtime/link/certificate.hpp"
#include "tests/runtime/link/hub_support.hpp"

#include <gmock/gmock.h>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests
using ::testing::HasSubstr;

TEST(LinkHub, ConnectsNamesBothEndsAndCarriesRequestsBothWays) {
  for (const std::string token : {"", kToken}) {
    Two two(token);
    const auto channel = two.dial();
    ASSERT_TRUE(channel) << channel.error().to_string();
    EXPECT_EQ((*channel)->peer(), (PeerName{PeerRole::kHead, "main"}));
    EXPECT_EQ((*channel)->address(), two.address);
    ASSERT_EQ(two.peers.size(), 1U);
    EXPECT_EQ(two.peers[0], (PeerName{PeerRole::kNode, "gpu-1"}));
    EXPECT_EQ(text_of((*channel)
                          ->request("echo", bytes_of("there"), Deadline::in(seconds(5)))
                          .wait()
                          .value()),
              "there");
    EXPECT_EQ(text_of(two.accepted->request("echo", bytes_of("back"), Deadline::in(seconds(5)))
                          .wait()
                          .value()),
              "back");
    (*channel)->close(an_error("done here"));
    EXPECT_TRUE(soon([&] { return two.served->downs == 1 && two.client->downs == 1; }));
    EXPECT_EQ(two.served->cause().root_cause().message, "done here");
    EXPECT_EQ(two.served->cause().code, ErrorCode::kRankDead);
    EXPECT_EQ(two.client->cause().message, "done here");
  }
}

TEST(LinkHub, SaysWhyNobodyAnswers) {
  ActorSystem system;
  const auto hub = open_hub(system, named(PeerRole::kNode, "gpu-1"));
  const auto code_of = [&](const std::string& address, Duration within) {
    const auto channel = hub->connect(address, nullptr, Deadline::in(within)).wait();
    EXPECT_FALSE(channel);
    return channel ? Error{} : channel.error();
  };
  EXPECT_EQ(code_of("nonsense", seconds(5)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of("127.0.0.1:0", seconds(5)).code, ErrorCode::kInvalidArgument);
  const Error refused = code_of("127.0.0.1:1", seconds(5));
  EXPECT_EQ(refused.code, ErrorCode::kIo);
  EXPECT_THAT(refused.message, HasSubstr("127.0.0.1:1: "));
  // Somebody who accepts and then says nothing.
  const RawListener mute;
  const auto begin = SteadyClock().now();
  const Error late = code_of(mute.address(), milliseconds(300));
  EXPECT_EQ(late.code, ErrorCode::kDeadline);
  EXPECT_LT(SteadyClock().now() - begin, seconds(3));
}

TEST(LinkHub, TellsTheDiallerOfAWrongTokenAndHarmsNobody) {
  Two two(kToken);
  const auto good = two.dial();
  ASSERT_TRUE(good);
  const auto stranger = open_hub(two.system, named(PeerRole::kNode, "gpu-2", std::string(64, 'f')));
  const auto bad = stranger->connect(two.address, two.client, Deadline::in(seconds(5))).wait();
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kConflict);
  EXPECT_THAT(bad.error().message, HasSubstr("join token of node gpu-2 is not that of head main"));
  EXPECT_EQ(two.peers.size(), 1U);
  EXPECT_TRUE((*good)->request("echo", {}, Deadline::in(seconds(5))).wait());
}

TEST(LinkHub, RefusesASecondPeerOfOneNameUntilTheFirstIsGone) {
  Two two(kToken, ListenOptions{.unique_names = true});
  const auto first = two.dial();
  ASSERT_TRUE(first);
  const auto second = two.dial();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(second.error().message, HasSubstr("node gpu-1 is connected already"));
  (*first)->close(an_error("going"));
  ASSERT_TRUE(soon([&] { return two.served->downs == 1; }));
  EXPECT_TRUE(two.dial());
}

TEST(LinkHub, HandsTheReasonOfTheAcceptorToTheDialler) {
  ActorSystem system;
  const auto head = open_hub(system, named(PeerRole::kHead, "main"));
  const auto node = open_hub(system, named(PeerRole::kNode, "gpu-1"));
  std::mutex mutex;
  Ref<Channel> kept;
  const auto refusing =
      head->listen("127.0.0.1", 0,
                   [&](const PeerName& peer,
                       const Ref<Channel>& channel) -> result<std::shared_ptr<ChannelService>> {
                     const std::lock_guard lock(mutex);
                     kept = channel;
                     return fail(ErrorCode::kUnsupported, "no place for {}", peer.to_string());
                   });
  const auto refused =
      node->connect(refusing->to_string(), nullptr, Deadline::in(seconds(5))).wait();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("no place for node gpu-1"));
  EXPECT_TRUE(soon([&] {
    const std::lock_guard lock(mutex);
    return kept->failure().has_value();
  }));
  EXPECT_FALSE(kept->request("echo", {}, Deadline::in(seconds(5))).wait());
  const auto throwing = head->listen(
      "127.0.0.1", 0,
      [](const PeerName&, const Ref<Channel>&) -> result<std::shared_ptr<ChannelService>> {
        throw std::runtime_error("broken acceptor");
      });
  const auto thrown =
      node->connect(throwing->to_string(), nullptr, Deadline::in(seconds(5))).wait();
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().code, ErrorCode::kInternal);
}

TEST(LinkHub, DialsWhomItWasToldTo) {
  Two two(kToken);
  const auto other = two.node
                         ->connect(two.address, two.client, Deadline::in(seconds(5)),
                                   PeerName{PeerRole::kNode, "gpu-9"})
                         .wait();
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("head main answered, wanted node gpu-9"));
  EXPECT_TRUE(two.node
                  ->connect(two.address, two.client, Deadline::in(seconds(5)),
                            PeerName{PeerRole::kHead, "main"})
                  .wait());
}

TEST(LinkHub, ListensBeyondLoopbackOnlyWithTokenAndTls) {
  const Folder folder;
  ASSERT_TRUE(make_authority(folder.path));
  const auto files = make_certificate(folder.path, "main", {"localhost"});
  ASSERT_TRUE(files);
  ActorSystem system;
  const auto listen = [&](bool token, bool tls, bool insecure) -> result<ListenAddress> {
    LinkOptions options = named(PeerRole::kHead, "main", token ? kToken : "");
    if (tls) options.tls = *files;
    options.insecure = insecure;
    const auto hub = open_hub(system, options);
    return hub->listen("0.0.0.0", 0, nullptr);
  };
  for (const bool token : {false, true}) {
    for (const bool tls : {false, true}) {
      const auto at = listen(token, tls, false);
      EXPECT_EQ(at.has_value(), token && tls);
      if (!at) {
        EXPECT_EQ(at.error().code, ErrorCode::kConfig);
        EXPECT_THAT(at.error().message, HasSubstr("0.0.0.0:0"));
      }
    }
  }
  EXPECT_TRUE(listen(false, false, true));
  const auto hub = open_hub(system, named(PeerRole::kHead, "main"));
  EXPECT_TRUE(hub->listen("localhost", 0, nullptr));
  const auto taken = hub->listen("127.0.0.1", 0, nullptr);
  ASSERT_TRUE(taken);
  EXPECT_EQ(hub->listen("127.0.0.1", taken->port, nullptr).error().code, ErrorCode::kIo);
}

TEST(LinkHub, RefusesOptionsThatMakeNoSense) {
  ActorSystem system;
  const auto refused = [&](const std::function<void(LinkOptions&)>& change) {
    LinkOptions options = named(PeerRole::kHead, "main");
    change(options);
    const auto hub = LinkHub::open(system, options);
    return !hub && hub.error().code == ErrorCode::kConfig;
  };
  EXPECT_TRUE(refused([](LinkOptions& options) { options.self.name = "two words"; }));
  EXPECT_TRUE(refused([](LinkOptions& options) { options.dead_after = options.heartbeat; }));
  EXPECT_TRUE(refused([](LinkOptions& options) { options.frame_bytes_max = 2 << 20; }));
  EXPECT_TRUE(refused([](LinkOptions& options) { options.queue_bytes_max = 10; }));
  EXPECT_TRUE(refused([](LinkOptions& options) { options.tls.key = "/nowhere.key"; }));
}

TEST(LinkHub, CarriesLargeFramesBothWaysAtOnceUnchanged) {
  const Folder folder;
  ASSERT_TRUE(make_authority(folder.path));
  const auto files = make_certificate(folder.path, "both", {"127.0.0.1"});
  for (const bool tls : {false, true}) {
    LinkOptions head = named(PeerRole::kHead, "main", kToken);
    LinkOptions node = named(PeerRole::kNode, "gpu-1", kToken);
    if (tls) head.tls = node.tls = *files;
    Two two(head, node);
    const auto channel = two.dial();
    ASSERT_TRUE(channel) << channel.error().to_string();
    constexpr std::size_t kLarge = (std::size_t{1} << 20) - 400;
    Rng rng(5);
    std::vector<std::vector<std::byte>> sent;
    std::vector<pending<std::vector<std::byte>>> back;
    for (int i = 0; i < 10; ++i) {
      std::vector<std::byte> bytes(kLarge - rng.below(1000));
      for (std::size_t at = 0; at < bytes.size(); at += 97) bytes[at] = std::byte(rng.below(256));
      const Ref<Channel>& from = i % 2 == 0 ? *channel : two.accepted;
      back.push_back(from->request("echo", bytes, Deadline::in(seconds(60))));
      sent.push_back(std::move(bytes));
    }
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const auto answer = back[i].wait();
      ASSERT_TRUE(answer) << answer.error().to_string();
      ASSERT_TRUE(*answer == sent[i]) << "frame " << i;
    }
  }
}

TEST(LinkHub, RefusesMoreThanItsQueueHoldsAndNamesThePeer) {
  LinkOptions node = named(PeerRole::kNode, "gpu-1");
  node.queue_bytes_max = std::size_t{1} << 20;
  Two two(named(PeerRole::kHead, "main"), node);
  two.served->gate();  // the I/O thread of the head stands still
  const auto channel = two.dial();
  ASSERT_TRUE(channel);
  result<void> last;
  int taken = 0;
  while (taken < 4000) {
    last = (*channel)->notify("note", std::vector<std::byte>(16 << 10));
    if (!last) break;
    ++taken;
  }
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(last.error().message, HasSubstr("head main (127.0.0.1:"));
  EXPECT_THAT(last.error().message, HasSubstr("at most 1048576"));
  EXPECT_LE((*channel)->bytes_queued(), node.queue_bytes_max);
  two.served->open_gate();
  EXPECT_TRUE(soon([&] { return two.served->notices == taken; }));
  EXPECT_TRUE((*channel)->request("echo", {}, Deadline::in(seconds(5))).wait());
}

TEST(LinkHub, SendsWhatWasQueuedBeforeItCloses) {
  Two two(kToken);
  const auto channel = two.dial();
  ASSERT_TRUE(channel);
  for (int i = 0; i < 200; ++i)
    ASSERT_TRUE((*channel)->notify("note", std::vector<std::byte>(10'000)));
  (*channel)->close(an_error("that was all"));
  EXPECT_FALSE((*channel)->notify("note", {}));
  ASSERT_TRUE(soon([&] { return two.served->downs == 1; }));
  EXPECT_EQ(two.served->notices, 200);
  EXPECT_EQ(two.served->cause().root_cause().message, "that was all");
}

TEST(LinkHub, TakesNoMorePeersThanItsBound) {
  LinkOptions head = named(PeerRole::kHead, "main");
  head.connections_max = 2;
  Two two(head, named(PeerRole::kNode, "gpu-1"));
  const auto first = two.dial();
  const auto second = two.dial();
  ASSERT_TRUE(first && second);
  const auto third = two.dial();
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kResourceExhausted);
  (*first)->close(an_error("room"));
  ASSERT_TRUE(soon([&] { return two.served->downs == 1; }));
  EXPECT_TRUE(two.dial());
}

TEST(LinkHub, CanBeDestroyedDuringTraffic) {
  for (int round = 0; round < 6; ++round) {
    Two two(round % 2 == 0 ? kToken : "");
    const auto channel = two.dial();
    ASSERT_TRUE(channel);
    std::atomic<bool> over{false};
    std::atomic<int> ended{0};
    std::thread traffic([&] {
      while (!over) {
        std::vector<pending<std::vector<std::byte>>> open;
        for (int i = 0; i < 32; ++i)
          open.push_back((*channel)->request(i % 8 == 0 ? "hold" : "echo",
                                             std::vector<std::byte>(500),
                                             Deadline::in(seconds(10))));
        for (auto& one : open) {
          if (!one.wait()) over = true;
          ++ended;
        }
      }
    });
    std::this_thread::sleep_for(milliseconds(15));
    if (round < 3) {
      two.node.reset();
    } else {
      two.head.reset();
    }
    traffic.join();
    EXPECT_EQ(ended % 32, 0);
    EXPECT_TRUE(soon([&] { return two.served->downs == 1 && two.client->downs == 1; }));
    EXPECT_TRUE((*channel)->failure());
    EXPECT_FALSE((*channel)->notify("note", {}));
    EXPECT_FALSE((*channel)->request("echo", {}, Deadline::in(seconds(1))).wait());
    two.served->release("nobody hears this");
  }
}

TEST(LinkHub, KeepsAChannelThatNobodyRefersTo) {
  Two two;
  {
    const auto channel = two.dial();
    ASSERT_TRUE(channel);
  }
  const std::lock_guard lock(two.mutex);
  EXPECT_TRUE(two.accepted->request("echo", {}, Deadline::in(seconds(5))).wait());
}

TEST(LinkHub, GivesUpADialThatNobodyWaitsFor) {
  ActorSystem system;
  const auto hub = open_hub(system, named(PeerRole::kNode, "gpu-1"));
  const RawListener mute;
  auto dial = hub->connect(mute.address(), nullptr, Deadline::in(seconds(30)));
  std::this_thread::sleep_for(milliseconds(50));
  dial.cancel();
  EXPECT_EQ(dial.wait().error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(mute.peer_hangs_up(seconds(2)));
}

/// Every request of many threads ends exactly once and as it must, whatever is cancelled.
TEST(LinkHub, GivesEachOfManyRequestsItsOwnOutcome) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Two two(seed % 2 == 0 ? "" : kToken);
    const auto channel = two.dial();
    ASSERT_TRUE(channel);
    std::atomic<int> wrong{0};
    const auto work = [&](std::uint64_t number) {
      Rng rng(mix_seed(seed, number));
      const Ref<Channel>& from = number % 2 == 0 ? *channel : two.accepted;
      for (int i = 0; i < 200; ++i) {
        const std::string text = std::to_string(number) + "/" + std::to_string(i) +
                                 std::string(rng.below(rng.below(20) == 0 ? 100'000 : 300), 'x');
        const auto kind = rng.below(10);
        const char* method = kind == 0 ? "fail" : kind == 1 ? "drop" : kind == 2 ? "hold" : "echo";
        const Duration within = kind == 2 ? Duration(milliseconds(rng.below(4))) : seconds(20);
        auto one = from->request(method, bytes_of(text), Deadline::in(within));
        if (kind == 3) one.cancel();
        const auto answer = one.wait();
        const bool good = kind == 0   ? !answer && answer.error().code == ErrorCode::kNotFound
                          : kind == 1 ? !answer && answer.error().code == ErrorCode::kInternal
                          : kind == 2 ? !answer && answer.error().code == ErrorCode::kDeadline
                          : kind == 3 ? true
                                      : answer && text_of(*answer) == text;
        if (!good) ++wrong;
      }
    };
    std::vector<std::thread> threads;
    for (std::uint64_t number = 0; number < 4; ++number) threads.emplace_back(work, number);
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
    two.served->release("late");
    two.client->release("late");
    EXPECT_TRUE((*channel)->request("echo", {}, Deadline::in(seconds(5))).wait());
  }
}

}  // namespace
}  // namespace troupe::runtime

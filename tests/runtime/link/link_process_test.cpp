// Peers in processes of their own: killed ones are noticed at once, stopped ones within three
// seconds and a little, busy ones not at all; what waited for them fails with the cause.

#include "tests/runtime/link/hub_support.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <spawn.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests
using ::testing::HasSubstr;

/// link_peer, killed at the end at the latest.
class Peer {
 public:
  Peer(const std::string& address, const std::string& name, bool spin = false) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    EXPECT_EQ(::pipe2(in.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<std::string> words{TROUPE_BINARY_DIR "/tests/link_peer", address, name, kToken};
    if (spin) words.emplace_back("spin");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&child_, words[0].c_str(), &actions, nullptr, pointers.data(), environ),
              0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    control_ = in[1];
    std::string line;
    char c = 0;
    while (::read(out[0], &c, 1) == 1 && c != '\n') line += c;
    ::close(out[0]);
    EXPECT_EQ(line, "up");
  }
  ~Peer() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    ::close(control_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  void signal(int number) const { ::kill(child_, number); }

 private:
  pid_t child_ = 0;
  int control_ = -1;
};

/// A head to which the peers dial.
struct Head {
  explicit Head(Duration dead_after = seconds(3)) : hub(open_hub(system, options(dead_after))) {
    const auto at =
        hub->listen("127.0.0.1", 0, [this](const PeerName&, const Ref<Channel>& channel) {
          const std::lock_guard lock(mutex);
          accepted = channel;
          return served;
        });
    EXPECT_TRUE(at);
    address = at->to_string();
  }
  static LinkOptions options(Duration dead_after) {
    LinkOptions made = named(PeerRole::kHead, "main", kToken);
    made.dead_after = dead_after;
    return made;
  }
  ActorSystem system;
  std::mutex mutex;  // guards accepted
  Ref<Channel> accepted;
  std::shared_ptr<EchoService> served = std::make_shared<EchoService>();
  std::string address;
  std::unique_ptr<LinkHub> hub;
};

TEST(LinkProcess, NoticesAKilledPeerAtOnce) {
  Head head;
  const Peer peer(head.address, "gpu-1");
  auto held = head.accepted->request("hold", {}, Deadline::in(seconds(20)));
  ASSERT_TRUE(head.accepted->request("echo", {}, Deadline::in(seconds(5))).wait());
  const auto begin = SteadyClock().now();
  peer.signal(SIGKILL);
  const auto outcome = held.wait();
  EXPECT_LT(SteadyClock().now() - begin, seconds(1));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kRankDead);
  EXPECT_THAT(outcome.error().message, HasSubstr("node gpu-1 (127.0.0.1:"));
  EXPECT_TRUE(soon([&] { return head.served->downs == 1; }));
}

TEST(LinkProcess, FindsAStoppedPeerDeadWithinThreeSeconds) {
  Head head;
  const Peer peer(head.address, "gpu-1");
  auto held = head.accepted->request("hold", {}, Deadline::in(seconds(20)));
  ASSERT_TRUE(head.accepted->request("echo", {}, Deadline::in(seconds(5))).wait());
  const auto begin = SteadyClock().now();
  peer.signal(SIGSTOP);
  const auto outcome = held.wait();
  const Duration took = SteadyClock().now() - begin;
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kRankDead);
  EXPECT_THAT(outcome.error().message, HasSubstr("silent for 3."));
  EXPECT_GT(took, milliseconds(2300));
  EXPECT_LT(took, milliseconds(3700));
  EXPECT_TRUE(soon([&] { return head.served->downs == 1; }));
}

TEST(LinkProcess, ForgivesAShortStopAndABusyPeer) {
  Head head(milliseconds(1500));
  const Peer peer(head.address, "gpu-1", true);
  peer.signal(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(700));
  peer.signal(SIGCONT);
  const auto answer =
      head.accepted->request("echo", bytes_of("back"), Deadline::in(seconds(5))).wait();
  ASSERT_TRUE(answer) << answer.error().to_string();
  std::this_thread::sleep_for(milliseconds(2000));  // computing, and alive
  EXPECT_EQ(head.served->downs, 0);
  EXPECT_TRUE(head.accepted->request("echo", {}, Deadline::in(seconds(5))).wait());
}

TEST(LinkProcess, FailsAFullQueueWhenThePeerIsStoppedInTraffic) {
  Head head(milliseconds(1500));
  const Peer peer(head.address, "gpu-1");
  peer.signal(SIGSTOP);
  std::vector<pending<std::vector<std::byte>>> open;
  for (int i = 0; i < 60; ++i)
    open.push_back(head.accepted->request("echo", std::vector<std::byte>(1'000'000),
                                          Deadline::in(seconds(20))));
  const auto begin = SteadyClock().now();
  for (auto& one : open) {
    const auto outcome = one.wait();
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ErrorCode::kRankDead);
  }
  EXPECT_LT(SteadyClock().now() - begin, milliseconds(2600));
  EXPECT_TRUE(soon([&] { return head.accepted->bytes_queued() == 0; }));
}

}  // namespace
}  // namespace troupe::runtime

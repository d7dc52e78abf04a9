// Channels over sockets of this machine: who may come in, what each end is told, that nothing is
// lost or repeated, and that a hub can be destroyed at any time.

#include "runtime/link/link_hub.hpp"

#include "runtime/group/actor_system.hpp"
#include "tests/runtime/link/link_support.hpp"

#include <gmock/gmock.h>

namespace troupe::runtime {
namespace {

using namespace link_test;  // NOLINT: the support of these tests
using ::testing::HasSubstr;

LinkOptions named(PeerRole role, const std::string& name, const std::string& token = "") {
  LinkOptions options;
  options.self = {role, name};
  options.token = token;
  return options;
}

std::unique_ptr<LinkHub> open_hub(ActorSystem& system, LinkOptions options) {
  auto hub = LinkHub::open(system, std::move(options));
  EXPECT_TRUE(hub) << hub.error().to_string();
  return std::move(*hub);
}

/// A head that takes everybody, and a node.
struct Two {
  explicit Two(const std::string& token = "", ListenOptions listening = {})
      : Two(named(PeerRole::kHead, "main", token), named(PeerRole::kNode, "gpu-1", token),
            listening) {}
  Two(LinkOptions head_options, LinkOptions node_options, ListenOptions listening = {})
      : head(open_hub(system, std::move(head_options))),
        node(open_hub(system, std::move(node_options))) {
    auto at = head->listen(
        "127.0.0.1", 0,
        [this](const PeerName& peer, const Ref<Channel>& channel) {
          const std::lock_guard lock(mutex);
          peers.push_back(peer);
          accepted = channel;
          return served;
        },
        listening);
    EXPECT_TRUE(at) << at.error().to_string();
    address = at->to_string();
  }
  result<Ref<Channel>> dial(Duration within = seconds(10)) {
    return node->connect(address, client, Deadline::in(within)).wait();
  }

  ActorSystem system;
  std::mutex mutex;  // guards peers and accepted
  std::vector<PeerName> peers;
  Ref<Channel> accepted;
  std::shared_ptr<EchoService> served = std::make_shared<EchoService>();
  std::shared_ptr<EchoService> client = std::make_shared<EchoService>();
  std::string address;
  std::unique_ptr<LinkHub> head;
  std::unique_ptr<LinkHub> node;
};

constexpr const char* kToken = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

TEST(LinkHub, ConnectsNamesBothEndsAndCarriesRequestsBothWays) {
  for (const std::string token : {"", kToken}) {
    Two two(token);
    const auto channel = two.dial();
    ASSERT_TRUE(channel) << channel.error().to_string();
    EXPECT_EQ((*channel)->peer(), (PeerName{PeerRole::kHead, "main"}));
    EXPECT_EQ((*channel)->address(), two.address);
    ASSERT_EQ(two.peers.size(), 1U);
    EXPECT_EQ(two.peers[0], (PeerName{PeerRole::kNode, "gpu-1"}));
    const auto there = (*channel)->request("echo", bytes_of("there"), Deadline::in(seconds(5)));
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

}  // namespace
}  // namespace troupe::runtime

#pragma once

// Hubs for the tests of links: options, and a head with a node that dials it.
//
// **Threads:** as LinkHub; `Two` guards what its accept callback writes.

#include "runtime/group/actor_system.hpp"
#include "runtime/link/link_hub.hpp"
#include "tests/runtime/link/raw_socket.hpp"

namespace troupe::runtime::link_test {

inline LinkOptions named(PeerRole role, const std::string& name, const std::string& token = "") {
  LinkOptions options;
  options.self = {role, name};
  options.token = token;
  return options;
}

inline std::unique_ptr<LinkHub> open_hub(ActorSystem& system, LinkOptions options) {
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

inline constexpr const char* kToken =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

}  // namespace troupe::runtime::link_test

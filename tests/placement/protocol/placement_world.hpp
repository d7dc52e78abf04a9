#pragma once

// A head, node agents and controllers in one process, connected by channel pairs; for the tests of
// the services. Lines can be cut, and the head restarted over its ledger.
//
// **Threads:** one for the test; the services have their own.
// **Invariants:** channels are closed before what serves them goes.

#include "placement/node_reservation_service.hpp"
#include "placement/placement_client.hpp"
#include "placement/placement_service.hpp"
#include "runtime/link/channel_pair.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::placement {

using Line = std::pair<runtime::Ref<runtime::Channel>, runtime::Ref<runtime::Channel>>;

inline NodeSpec node_spec(const std::string& name, int devices = 4) {
  NodeSpec spec;
  spec.name = name;
  spec.devices.resize(static_cast<std::size_t>(devices));
  spec.cores = 4 * std::max(devices, 1);
  spec.memory = gibibytes(64);
  return spec;
}

inline GroupRequest gpu_group(const std::string& name, int bundles, double gpus = 1,
                              Strategy strategy = Strategy::kPack) {
  GroupRequest request;
  request.name = name;
  request.strategy = strategy;
  Bundle bundle;
  bundle.resources.gpu = *parse_amount(gpus, "gpu");
  bundle.resources.cpu = Amount::whole(1);
  request.bundles.assign(static_cast<std::size_t>(bundles), bundle);
  return request;
}

/// Notes what it is told.
class Listener final : public ReservationListener {
 public:
  void on_committed(const HeldBundle&) override { ++committed; }
  void on_released(const HeldBundle&) override { ++released; }
  std::atomic<int> committed{0};
  std::atomic<int> released{0};
};

class World {
 public:
  explicit World(CoreOptions core = {}) : core_(std::move(core)) {
    static std::atomic<int> count{0};
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("troupe-placement-{}-{}", ::getpid(), ++count);
    start_head();
  }
  ~World() {
    for (auto& [name, line] : lines_) cut_line(line);
    head.reset();
    std::filesystem::remove_all(folder_);
  }

  static CoreOptions quick() {
    CoreOptions core;
    core.settle = std::chrono::milliseconds(0);
    core.reattach_within = std::chrono::milliseconds(100);
    core.owner_lease = std::chrono::milliseconds(300);
    return core;
  }

  void start_head() {
    auto opened = PlacementService::open(
        {.ledger = folder_ / "ledger", .core = core_, .inbox_max = 1024, .seed = 1});
    ASSERT_TRUE(opened) << opened.error().to_string();
    head = *opened;
  }
  /// As after a crash: every line is cut and the ledger is read again.
  void restart_head() {
    for (auto& [name, line] : lines_) cut_line(line);
    lines_.clear();
    head.reset();
    start_head();
    for (auto& [name, node] : nodes) attach(name);
    for (auto& [name, client] : clients) attach_client(name);
  }

  void add_node(const NodeSpec& spec) {
    auto node = NodeReservationService::create(
        {.spec = spec, .incarnation = ++incarnation_, .listener = &listener});
    ASSERT_TRUE(node) << node.error().to_string();
    nodes[spec.name] = *node;
    attach(spec.name);
    const Deadline deadline = Deadline::in(std::chrono::seconds(10));
    eventually([&] {
      const auto views = head->nodes(deadline);
      return views && std::any_of(views->begin(), views->end(), [&](const NodeView& view) {
               return view.name == spec.name && view.attached;
             });
    });
  }
  void attach(const std::string& name) {
    Line line = runtime::make_channel_pair(
        nodes.at(name), head,
        {.first = {runtime::PeerRole::kNode, name}, .second = {runtime::PeerRole::kHead, "head"}});
    lines_["node " + name] = line;
    nodes.at(name)->attach(line.first);
  }
  /// The agent and all that it holds are gone.
  void kill_node(const std::string& name) {
    cut("node " + name);
    nodes.erase(name);
  }

  std::shared_ptr<PlacementClient> add_client(const std::string& name) {
    auto client = PlacementClient::create({.owner = name, .instance = 1});
    EXPECT_TRUE(client);
    clients[name] = *client;
    attach_client(name);
    return *client;
  }
  void attach_client(const std::string& name) {
    Line line = runtime::make_channel_pair(clients.at(name), head,
                                           {.first = {runtime::PeerRole::kController, name},
                                            .second = {runtime::PeerRole::kHead, "head"}});
    lines_["client " + name] = line;
    clients.at(name)->attach(line.first);
  }
  void cut(const std::string& line) {
    cut_line(lines_.at(line));
    lines_.erase(line);
  }
  const Line& line(const std::string& name) const { return lines_.at(name); }

  /// Waits, at most 10 s, until it holds.
  template <class Condition>
  static void eventually(Condition condition) {
    const Deadline end = Deadline::in(std::chrono::seconds(10));
    while (!condition()) {
      ASSERT_FALSE(end.passed()) << "it never came true";
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  std::size_t held() const {
    std::size_t count = 0;
    for (const auto& [name, node] : nodes) count += node->held().size();
    return count;
  }

  std::shared_ptr<PlacementService> head;
  std::map<std::string, std::shared_ptr<NodeReservationService>> nodes;
  std::map<std::string, std::shared_ptr<PlacementClient>> clients;
  Listener listener;

 private:
  static void cut_line(const Line& line) {
    line.first->close(Error{
        .code = ErrorCode::kAborted, .message = "cut by the test", .origin = {}, .causes = {}});
    // The other end follows on a thread of the pair.
    eventually([&line] { return line.second->failure().has_value(); });
  }

  CoreOptions core_;
  std::filesystem::path folder_;
  std::map<std::string, Line> lines_;
  std::uint64_t incarnation_ = 0;
};

}  // namespace troupe::placement

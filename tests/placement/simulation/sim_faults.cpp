#include "tests/placement/simulation/sim_world.hpp"

#include <algorithm>

namespace troupe::placement::simulation {

/// Strikes at random moments, `rate` times a second on average, while chaos lasts.
void SimWorld::each_second(double rate, const std::function<void()>& strike) {
  if (rate <= 0) return;
  const double pause = 2 * fault_rng_.uniform() / rate;
  after(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(pause)),
        [this, rate, strike] {
          if (!chaos_) return;
          strike();
          each_second(rate, strike);
        });
}

std::size_t SimWorld::some_node() { return fault_rng_.below(nodes_.size()); }

/// Any but the one that cleans up in the end.
Endpoint& SimWorld::some_endpoint() { return endpoints_[fault_rng_.below(endpoints_.size() - 1)]; }

Duration SimWorld::some_time() { return random_span(fault_rng_, std::chrono::seconds(6)); }

void SimWorld::schedule_faults() {
  const FaultRates& faults = plan_.faults;
  each_second(faults.node_death, [this] { kill_node(some_node(), false); });
  each_second(faults.node_silent_death, [this] { kill_node(some_node(), true); });
  each_second(faults.block_one_way, [this] {
    const bool to_head = chance(fault_rng_, 0.5);
    block(some_endpoint(), to_head, !to_head, some_time());
  });
  each_second(faults.block_two_way, [this] { block(some_endpoint(), true, true, some_time()); });
  each_second(faults.swizzle, [this] { swizzle(); });
  each_second(faults.head_crash, [this] { crash_head(); });
  each_second(faults.client_death, [this] { replace_client(fault_rng_.below(plan_.clients)); });
  each_second(faults.slow_disk, [this] {
    slow_disk_ = !slow_disk_;
    note(slow_disk_ ? "the disk is slow" : "the disk is quick");
  });
  each_second(faults.clock_jump, [this] {
    // Forward by as much as a machine may sleep; backward, which a core must ignore.
    const Duration jump = random_span(fault_rng_, std::chrono::seconds(12));
    if (chance(fault_rng_, 0.5)) {
      head_ahead_ += chance(fault_rng_, 0.7) ? jump : -jump / 4;
      schedule_step(now_);
    } else {
      nodes_[some_node()].clock_ahead += jump;
    }
  });
  each_second(faults.drain, [this] { drain_node(); });
  each_second(faults.device_failure, [this] { fail_device(); });
}

void SimWorld::swizzle() {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i + 1 < endpoints_.size(); ++i) {
    if (chance(fault_rng_, 0.5)) order.push_back(i);
  }
  note(fmt::format("{} endpoints are clogged one by one", order.size()));
  Duration when{0};
  for (const std::size_t index : order) {
    when += random_span(fault_rng_, std::chrono::milliseconds(400));
    const Duration span = random_span(fault_rng_, std::chrono::seconds(5));
    after(when, [this, index, span] {
      if (chaos_) block(endpoints_[index], true, true, span);
    });
  }
}

void SimWorld::drain_node() {
  SimNode& node = nodes_[fault_rng_.below(nodes_.size())];
  if (!node.core) return;
  node.spec.draining = !node.spec.draining;
  note(fmt::format("node {} {}", node.endpoint->index,
                   node.spec.draining ? "drains" : "takes bundles again"));
  node.core->set_draining(node.spec.draining);
  if (node.endpoint->connection != 0) node_up(node.endpoint->index, node.endpoint->connection);
}

void SimWorld::fail_device() {
  SimNode& node = nodes_[fault_rng_.below(nodes_.size())];
  if (!node.core || node.spec.devices.empty()) return;
  const std::size_t device = fault_rng_.below(node.spec.devices.size());
  const bool failed = !node.spec.devices[device].failed;
  node.spec.devices[device].failed = failed;
  note(fmt::format("node {}: device {} {}", node.endpoint->index, device,
                   failed ? "fails" : "works again"));
  const auto done = node.core->set_device_failed(static_cast<std::int32_t>(device), failed);
  require(done.has_value(), "a device that is not there");
  if (node.endpoint->connection != 0) node_up(node.endpoint->index, node.endpoint->connection);
}

/// No more faults, no more requests; what is broken is mended, but for some nodes.
void SimWorld::heal() {
  chaos_ = false;
  note("the faults end");
  slow_disk_ = false;
  for (Endpoint& endpoint : endpoints_) {
    if (endpoint.to_head.blocked) unblock_line(endpoint, true);
    if (endpoint.from_head.blocked) unblock_line(endpoint, false);
  }
  for (SimNode& node : nodes_) {
    if (!node.core) continue;
    node.spec.draining = false;
    node.core->set_draining(false);
    for (std::size_t i = 0; i < node.spec.devices.size(); ++i) {
      node.spec.devices[i].failed = false;
      require(node.core->set_device_failed(static_cast<std::int32_t>(i), false).has_value(),
              "a device that is not there");
    }
    if (node.endpoint->connection != 0) node_up(node.endpoint->index, node.endpoint->connection);
  }
}

}  // namespace troupe::placement::simulation

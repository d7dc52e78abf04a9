#include "runtime/batch/checksum.hpp"
#include "tests/placement/simulation/sim_world.hpp"

#include <algorithm>

namespace troupe::placement::simulation {
namespace {

constexpr Duration kDeadAfter = std::chrono::seconds(3);
constexpr std::size_t kLogLines = 400;

}  // namespace

void SimWorld::at(TimePoint when, std::function<void()> run) {
  events_.push({.at = std::max(when, now_),
                .order = ++event_order_,
                .run = std::make_shared<std::function<void()>>(std::move(run))});
}

bool SimWorld::run_one() {
  if (events_.empty()) return false;
  const Event event = events_.top();
  events_.pop();
  now_ = event.at;
  ++counts_.events;
  mix(static_cast<std::uint64_t>(now_.time_since_epoch().count()));
  (*event.run)();
  check_all();
  return true;
}

void SimWorld::run_until(TimePoint end) {
  while (!events_.empty() && events_.top().at <= end) run_one();
  now_ = std::max(now_, end);
}

void SimWorld::mix(const Bytes& bytes) { mix(runtime::crc32c(bytes) + (bytes.size() << 32)); }

void SimWorld::note(std::string line) {
  mix(runtime::crc32c(std::as_bytes(std::span(line))));
  log_.push_back(fmt::format("{:10.6f} {}", seconds(now_.time_since_epoch()), line));
  if (!options_.keep_log && log_.size() > kLogLines) log_.pop_front();
}

void SimWorld::detail(const std::string& line) {
  if (options_.keep_log)
    log_.push_back(fmt::format("{:10.6f}   {}", seconds(now_.time_since_epoch()), line));
}

// ---- connections ---------------------------------------------------------------------------

void SimWorld::dial_soon(Endpoint& endpoint) {
  if (endpoint.dialling) return;
  endpoint.dialling = true;
  after(std::chrono::milliseconds(5) + random_span(network_rng_, std::chrono::milliseconds(300)),
        [this, &endpoint] {
          endpoint.dialling = false;
          dial(endpoint);
        });
}

void SimWorld::dial(Endpoint& endpoint) {
  if (!endpoint.alive || endpoint.connection != 0) return;
  if (!head_ || endpoint.to_head.blocked || endpoint.from_head.blocked) {
    dial_soon(endpoint);
    return;
  }
  const ConnectionId id = ++last_connection_;
  connections_[id] = Connection{.endpoint = endpoint.index};
  endpoint.connection = id;
  note(fmt::format("endpoint {} connects as {}", endpoint.index, id));
  if (endpoint.index < nodes_.size()) {
    node_up(endpoint.index, id);
  } else {
    client_up(clients_[endpoint.index - nodes_.size()], id);
  }
}

/// Sends over a connection. In order, as a channel does, unless it may be lost, repeated and
/// overtaken: the protocol between head and nodes promises to live with that.
void SimWorld::post(ConnectionId id, bool to_head, bool may_reorder,
                    std::function<void()> deliver) {
  Connection& connection = connections_.at(id);
  TimePoint when =
      now_ + std::chrono::microseconds(50) + random_span(network_rng_, plan_.latency_max);
  int copies = 1;
  if (may_reorder) {
    const FaultRates& faults = plan_.faults;
    if (chaos_ && chance(network_rng_, faults.lose_message)) copies = 0;
    if (chaos_ && chance(network_rng_, faults.repeat_message)) ++copies;
    if (chaos_ && chance(network_rng_, faults.delay_message))
      when += random_span(network_rng_, std::chrono::seconds(4));
  } else {
    TimePoint& last = to_head ? connection.last_to_head : connection.last_from_head;
    when = last = std::max(when, last + Duration{1});
  }
  for (int i = 0; i < copies; ++i) {
    const TimePoint copy_at =
        i == 0 ? when : when + random_span(network_rng_, plan_.latency_max * 3);
    at(copy_at, [this, id, to_head, deliver] { arrive(id, to_head, deliver); });
  }
}

void SimWorld::arrive(ConnectionId id, bool to_head, const std::function<void()>& deliver) {
  const Connection& connection = connections_.at(id);
  Endpoint& endpoint = endpoints_[connection.endpoint];
  Line& line = to_head ? endpoint.to_head : endpoint.from_head;
  if (line.blocked) {
    line.held.push_back([this, id, to_head, deliver] { arrive(id, to_head, deliver); });
    return;
  }
  if (to_head ? (!connection.head_open || !head_) : (!connection.peer_open || !endpoint.alive))
    return;
  deliver();
}

/// One end learns that the connection is over; the other end follows.
void SimWorld::side_down(ConnectionId id, bool head_side, bool silent) {
  Connection& connection = connections_.at(id);
  bool& open = head_side ? connection.head_open : connection.peer_open;
  if (!open) return;
  open = false;
  Endpoint& endpoint = endpoints_[connection.endpoint];
  note(fmt::format("connection {} of endpoint {} is down at {}{}", id, endpoint.index,
                   head_side ? "the head" : "its end", silent ? ", silent" : ""));
  if (head_side) {
    if (head_) to_inbox(ConnectionLost{.connection = id, .silent = silent});
  } else if (endpoint.connection == id) {
    endpoint.connection = 0;
    if (endpoint.index < nodes_.size()) {
      if (nodes_[endpoint.index].core) nodes_[endpoint.index].core->session_over();
    } else {
      client_down(clients_[endpoint.index - nodes_.size()]);
    }
    if (endpoint.alive) dial_soon(endpoint);
  }
  const Line& line = head_side ? endpoint.from_head : endpoint.to_head;
  if (!line.blocked) {
    after(std::chrono::microseconds(100),
          [this, id, head_side] { side_down(id, !head_side, false); });
  } else {
    after(kDeadAfter, [this, id, head_side] { side_down(id, !head_side, true); });
  }
}

// ---- partitions ----------------------------------------------------------------------------

void SimWorld::block(Endpoint& endpoint, bool to_head, bool from_head, Duration span) {
  if (to_head) block_line(endpoint, true, span);
  if (from_head) block_line(endpoint, false, span);
}

void SimWorld::block_line(Endpoint& endpoint, bool to_head, Duration span) {
  Line& line = to_head ? endpoint.to_head : endpoint.from_head;
  if (line.blocked) return;
  line.blocked = true;
  const std::uint64_t generation = ++line.generation;
  note(fmt::format("line {} head of endpoint {} is blocked for {:.2f} s", to_head ? "to" : "from",
                   endpoint.index, seconds(span)));
  const auto still = [&line, generation] { return line.blocked && line.generation == generation; };
  after(span, [this, &endpoint, to_head, still] {
    if (still()) unblock_line(endpoint, to_head);
  });
  after(kDeadAfter, [this, &endpoint, to_head, still] {
    if (!still()) return;
    for (const auto& [id, connection] : connections_) {
      const bool open = to_head ? connection.head_open : connection.peer_open;
      if (connection.endpoint == endpoint.index && open) side_down(id, to_head, true);
    }
  });
}

void SimWorld::unblock_line(Endpoint& endpoint, bool to_head) {
  Line& line = to_head ? endpoint.to_head : endpoint.from_head;
  line.blocked = false;
  note(fmt::format("line {} head of endpoint {} is free", to_head ? "to" : "from", endpoint.index));
  for (const auto& held : std::exchange(line.held, {})) held();
}

}  // namespace troupe::placement::simulation

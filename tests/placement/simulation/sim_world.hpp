#pragma once

// The inside of `simulate`: the world of one run. Network and event queue in sim_network.cpp, head
// and nodes in sim_world.cpp, owners and what they ask in sim_clients.cpp, faults in
// sim_faults.cpp, what must hold in sim_checks.cpp.
//
// **Threads:** one.
// **Invariants:** events run in order of time, then of creation; every random choice comes from one
// of the seeded streams.

#include "tests/placement/simulation/sim_ledger.hpp"
#include "tests/placement/simulation/sim_plan.hpp"
#include "tests/placement/simulation/simulate.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::placement::simulation {

using Bytes = std::vector<std::byte>;

/// A broken invariant.
class SimFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw SimFailure(fmt::format(format, std::forward<Args>(args)...));
}

/// One direction of the line between an endpoint and the head.
struct Line {
  bool blocked = false;
  std::uint64_t generation = 0;  ///< of the block
  std::deque<std::function<void()>> held{};
};

/// A node or an owner; it dials the head.
struct Endpoint {
  std::size_t index = 0;
  bool alive = true;
  Line to_head{};
  Line from_head{};
  ConnectionId connection = 0;  ///< as this end sees it
  bool dialling = false;
};

struct Connection {
  std::size_t endpoint = 0;
  bool head_open = true;
  bool peer_open = true;
  TimePoint last_to_head{};
  TimePoint last_from_head{};
};

struct SimNode {
  Endpoint* endpoint = nullptr;
  NodeSpec spec{};
  std::optional<NodeReservations> core{};
  std::uint64_t incarnation = 0;
  Duration clock_ahead{0};
  // The newest pass applied, for the check that none is older.
  std::uint64_t term = 0;
  std::uint64_t session = 0;
  std::uint64_t number = 0;
};

struct SimRequest {
  enum class Kind { kCreate, kRemove, kResize } kind = Kind::kCreate;
  CreateGroup create{};
  GroupId remove{};
  ResizeGroup resize{};
  std::uint32_t asked = 0;
};

struct KnownGroup {
  std::string name{};
  GroupStatus status = GroupStatus::kPending;
  Epoch epoch{};
  std::size_t bundles = 0;
};

struct SimClient {
  Endpoint* endpoint = nullptr;
  Owner owner{};
  bool session = false;
  std::uint64_t next_number = 1;
  std::map<std::uint64_t, SimRequest> open{};
  std::map<GroupId, KnownGroup> groups{};
};

struct SimToken {
  std::size_t endpoint = 0;
  ConnectionId connection = 0;
  std::uint64_t number = 0;  ///< of a client's request; 0: hello or session
};

class SimWorld {
 public:
  explicit SimWorld(const SimOptions& options);
  SimReport run();

 private:
  // sim_network.cpp
  void at(TimePoint when, std::function<void()> run);
  void after(Duration span, std::function<void()> run) { at(now_ + span, std::move(run)); }
  bool run_one();
  void run_until(TimePoint end);
  void dial_soon(Endpoint& endpoint);
  void dial(Endpoint& endpoint);
  void post(ConnectionId id, bool to_head, bool may_reorder, std::function<void()> deliver);
  void arrive(ConnectionId id, bool to_head, const std::function<void()>& deliver);
  void side_down(ConnectionId id, bool head_side, bool silent);
  void block(Endpoint& endpoint, bool to_head, bool from_head, Duration span);
  void block_line(Endpoint& endpoint, bool to_head, Duration span);
  void unblock_line(Endpoint& endpoint, bool to_head);
  void mix(std::uint64_t value) { hash_ = mix_seed(hash_ ^ value, 7); }
  void mix(const Bytes& bytes);
  void note(std::string line);
  /// For replays only: no part of the hash.
  void detail(const std::string& line);

  // sim_world.cpp
  void start_head();
  void crash_head();
  void to_inbox(CoreEvent event);
  void schedule_step(TimePoint when);
  void step_head();
  void carry_out(CoreEffects effects);
  void append(CoreEffects& effects);
  void flush_soon();
  void send_pass(const SendPass& sent);
  void pass_arrives(std::size_t node, ConnectionId connection, const Bytes& bytes);
  void node_up(std::size_t node, ConnectionId connection);
  void start_node(std::size_t node);
  void kill_node(std::size_t node, bool silent);
  void answer_arrives(const SimToken& token, const AnswerBody& body);
  std::size_t node_of(const Endpoint& endpoint) const { return endpoint.index; }
  TimePoint head_now() const { return now_ + head_ahead_; }

  // sim_clients.cpp
  void client_up(SimClient& client, ConnectionId connection);
  void client_down(SimClient& client);
  void ask(SimClient& client, std::uint64_t number);
  void act(SimClient& client);
  void create_one(SimClient& client);
  void resize_one(SimClient& client);
  void outcome(SimClient& client, std::uint64_t number, const AnswerBody& body);
  void changes_arrive(std::size_t client, const Bytes& bytes);
  void replace_client(std::size_t client);
  void work();

  // sim_faults.cpp
  void schedule_faults();
  void each_second(double rate, const std::function<void()>& strike);
  std::size_t some_node();
  Endpoint& some_endpoint();
  Duration some_time();
  void swizzle();
  void fail_device();
  void drain_node();
  void heal();

  // sim_checks.cpp
  void check_all();
  void check_nodes();
  void check_groups();
  void check_outward(const CoreEffects& effects);
  void check_removed(GroupId id);
  void check_pass_order(SimNode& node, const NodePass& pass);
  void check_quiescent();
  void check_clients();
  void drain_groups();
  void check_empty();
  Duration patience() const;

  struct Event {
    TimePoint at;
    std::uint64_t order = 0;
    std::shared_ptr<std::function<void()>> run{};
    bool operator<(const Event& other) const {
      return std::pair(other.at, other.order) < std::pair(at, order);
    }
  };

  SimOptions options_;
  SimPlan plan_;
  Rng network_rng_;
  Rng fault_rng_;
  Rng work_rng_;
  Rng core_rng_;
  TimePoint now_{};
  std::priority_queue<Event> events_;
  std::uint64_t event_order_ = 0;
  std::uint64_t hash_ = 0;
  SimCounts counts_{};
  std::deque<std::string> log_{};

  std::deque<Endpoint> endpoints_{};  // nodes first, then clients, then the one that cleans up
  std::map<ConnectionId, Connection> connections_{};
  ConnectionId last_connection_ = 0;
  std::vector<SimNode> nodes_{};
  std::deque<SimClient> clients_{};
  std::uint64_t last_incarnation_ = 0;
  /// Where and by which agent process each slot was committed.
  std::map<std::tuple<GroupId, std::uint32_t, Epoch>, std::pair<std::size_t, std::uint64_t>>
      committed_{};

  std::optional<PlacementCore> head_{};
  std::uint64_t head_life_ = 0;
  Duration head_ahead_{0};
  std::vector<CoreEvent> inbox_{};
  std::optional<TimePoint> step_at_{};
  SimLedger ledger_;
  LedgerState appended_;  // of all records, durable or not
  bool slow_disk_ = false;
  // What the present event touched; the rest is as it was checked before.
  bool head_touched_ = false;
  bool nodes_touched_ = false;
  std::uint64_t head_checks_ = 0;
  bool chaos_ = true;
  RequestToken last_token_ = 0;
  std::map<RequestToken, SimToken> tokens_{};
  std::set<RequestToken> answered_;
};

}  // namespace troupe::placement::simulation

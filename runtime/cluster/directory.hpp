#pragma once

// `DirectoryCore`: the head's pure record of nodes and jobs: who is here, in which instance, since
// when, and who is lost.
//
// It is rebuilt from registrations after the head restarts; nothing here is kept on disk.
// **Threads:** belongs to one owner, which locks.
// **Invariants:** one instance per name is up at a time; a channel speaks for the instance that
// registered on it and for nothing after its end; a node or job is lost exactly once, `away_for`
// after its connection closed or at once when it went silent, and each NodeUp is followed by one
// NodeDown; histories are bounded.
// **Cost:** logarithmic per event; lists are linear in what they pass over.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/cluster/head_messages.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// Names a connection to the head, for its life.
using ConnectionId = StrongId<struct ConnectionTag, std::uint64_t>;

struct NodeArrived {
  NodeRegister node;
  ConnectionId connection;
};
struct NodeSnapshot {
  ConnectionId connection;
  NodeState state;
};
struct NodeParted {
  ConnectionId connection;
  std::string reason;
};
struct NodeDrainWanted {
  std::string name;
};
struct JobArrived {
  JobAnnouncement job;
  ConnectionId connection;
};
struct JobParted {
  ConnectionId connection;
  std::string reason;
};
/// `silent`: its heartbeats stopped, so it has been gone for a while already.
struct ConnectionDown {
  ConnectionId connection;
  bool silent = false;
  std::string cause;
};
/// Time has passed; due at `DirectoryCore::next_due`.
struct DirectoryTick {};
using DirectoryEvent = std::variant<NodeArrived, NodeSnapshot, NodeParted, NodeDrainWanted,
                                    JobArrived, JobParted, ConnectionDown, DirectoryTick>;

struct NodeUp {
  std::string name;
  std::uint64_t epoch = 0;
  ConnectionId connection;
  bool returned = false;  ///< the same instance was here before, under this head
};
struct NodeDown {
  std::string name;
  std::uint64_t epoch = 0;
  Error cause;        ///< kRankDead when lost, kCancelled when it left
  bool left = false;  ///< said farewell
};
/// No new groups for this node.
struct NodeDraining {
  std::string name;
};
struct JobUp {
  std::string name;
  std::uint64_t epoch = 0;
  ConnectionId connection;
  bool returned = false;
};
struct JobDown {
  std::string name;
  std::uint64_t epoch = 0;
  Error cause;
  bool ended = false;  ///< said farewell
};
using DirectoryEffect = std::variant<NodeUp, NodeDown, NodeDraining, JobUp, JobDown>;

struct DirectoryOptions {
  Duration away_for = std::chrono::seconds(2);  ///< a closed connection may come back
  std::size_t nodes_max = 10'000;
  std::size_t jobs_max = 10'000;
  std::size_t gone_kept = 256;  ///< lost and left nodes, and ended jobs, kept for the lists
};

class DirectoryCore {
 public:
  explicit DirectoryCore(DirectoryOptions options = {}) : options_(options) {}

  /// What the event changes. An error is the refusal of this event, and changes nothing.
  result<std::vector<DirectoryEffect>> step(const DirectoryEvent& event, TimePoint now);
  /// When the next tick is due; empty when nothing waits for time.
  std::optional<TimePoint> next_due() const;

  HeadStatus status() const;  ///< the counts; what is the head's own is left empty
  result<Page<NodeEntry>> nodes(const PageRequest& request, TimePoint now) const;
  result<Page<JobEntry>> jobs(const PageRequest& request, TimePoint now) const;
  result<Page<RankEntry>> ranks(const PageRequest& request, TimePoint now) const;
  result<NodeEntry> find_node(const std::string& name, TimePoint now) const;
  /// The registration with its inventory; null for an unknown name.
  const NodeRegister* registration(const std::string& name) const;
  const JobAnnouncement* announcement(const std::string& name) const;
  /// Connections of what is up or draining, by name.
  std::map<std::string, ConnectionId> node_connections() const;
  std::map<std::string, ConnectionId> job_connections() const;

 private:
  enum class State : std::uint8_t { kUp, kAway, kDraining, kLost, kLeft };
  static std::string_view node_state_name(State state);
  static std::string_view job_state_name(State state);
  /// What a node and a job have in common.
  struct Presence {
    State state = State::kUp;
    ConnectionId connection;  ///< 0: none
    TimePoint since;          ///< in this state
    std::string cause;        ///< why it is not up
    bool live() const { return state == State::kUp || state == State::kDraining; }
    bool gone() const { return state == State::kLost || state == State::kLeft; }
    void go(State to, std::string why, TimePoint when);
  };
  struct Node : Presence {
    NodeRegister about;
    bool draining = false;  ///< also while it is away
    TimePoint heard;
    std::uint64_t instance() const { return about.state.instance; }
  };
  struct Job : Presence {
    JobAnnouncement about;
  };
  using Effects = std::vector<DirectoryEffect>;

  result<Effects> on(const NodeArrived& event, TimePoint now);
  result<Effects> on(const NodeSnapshot& event, TimePoint now);
  result<Effects> on(const NodeParted& event, TimePoint now);
  result<Effects> on(const NodeDrainWanted& event, TimePoint now);
  result<Effects> on(const JobArrived& event, TimePoint now);
  result<Effects> on(const JobParted& event, TimePoint now);
  result<Effects> on(const ConnectionDown& event, TimePoint now);
  result<Effects> on(const DirectoryTick& event, TimePoint now);

  static NodeEntry entry_of(const std::string& name, const Node& node, TimePoint now);
  /// What is lost or has left beyond `gone_kept`, oldest first, is forgotten.
  void forget();

  DirectoryOptions options_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, Job> jobs_;
  std::map<ConnectionId, std::string> node_of_;  ///< live connections
  std::map<ConnectionId, std::string> job_of_;
};

}  // namespace troupe::runtime

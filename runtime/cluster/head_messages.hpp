#pragma once

// What controllers and commands say to the head, and the head to them. What agents say to it is in
// node_protocol.hpp: `node.register`, `node.state`.
//
// node → head:        `node.leave`, beside node_protocol.hpp
// controller → head:  `head.announce_job`, `head.end_job`
// anyone → head:      `head.status`, `head.list_nodes`, `head.list_jobs`, `head.list_ranks`,
//                     `head.find_node`, `head.lanes`, `head.drain_node`, `head.stop`
// head → node:        `agent.drain`, `job.end`           head → controller:  `job.stop`
// Each is one struct, encoded with runtime/wire. Times are ages in seconds, since clocks of hosts
// need not agree.
// **Threads:** value types.

#include "runtime/cluster/lane_messages.hpp"
#include "runtime/cluster/node_protocol.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::runtime {

/// `node.leave`, `head.end_job`, `job.stop`: why.
struct Farewell {
  std::string reason;
  static constexpr auto fields() { return std::tuple{field("reason", &Farewell::reason)}; }
};

/// `head.announce_job`, first thing on a controller's channel (peer kController of `name`).
struct JobAnnouncement {
  std::string name;
  std::uint64_t epoch = 0;  ///< instance of the controller process
  std::string host;
  std::int64_t pid = 0;
  std::string command;  ///< for people
  static constexpr auto fields() {
    return std::tuple{field("name", &JobAnnouncement::name),
                      field("epoch", &JobAnnouncement::epoch),
                      field("host", &JobAnnouncement::host), field("pid", &JobAnnouncement::pid),
                      field("command", &JobAnnouncement::command)};
  }
};
struct JobAnnounced {
  std::uint64_t head_epoch = 0;
  bool returned = false;
  static constexpr auto fields() {
    return std::tuple{field("head_epoch", &JobAnnounced::head_epoch),
                      field("returned", &JobAnnounced::returned)};
  }
};

/// A node as the directory knows it.
struct NodeEntry {
  std::string name;
  std::string state;    ///< up, away, draining, lost, left
  double since_s = 0;   ///< in this state
  double heard_s = 0;   ///< since its last snapshot or registration
  std::string cause;    ///< why it is lost, left or away
  std::string address;  ///< `host:port` of the agent's listener
  std::string host;
  std::int64_t pid = 0;
  std::uint64_t instance = 0;
  std::string version;
  double cpus = 0;
  std::int64_t memory_bytes = 0;
  std::int32_t devices = 0;
  std::string device_model;  ///< of the first; `simulated` for declared ones
  std::string rack;
  std::int32_t ranks = 0;  ///< that run
  static constexpr auto fields() {
    return std::tuple{
        field("name", &NodeEntry::name),         field("state", &NodeEntry::state),
        field("since_s", &NodeEntry::since_s),   field("heard_s", &NodeEntry::heard_s),
        field("cause", &NodeEntry::cause),       field("address", &NodeEntry::address),
        field("host", &NodeEntry::host),         field("pid", &NodeEntry::pid),
        field("instance", &NodeEntry::instance), field("version", &NodeEntry::version),
        field("cpus", &NodeEntry::cpus),         field("memory_bytes", &NodeEntry::memory_bytes),
        field("devices", &NodeEntry::devices),   field("device_model", &NodeEntry::device_model),
        field("rack", &NodeEntry::rack),         field("ranks", &NodeEntry::ranks)};
  }
};

struct JobEntry {
  JobAnnouncement job;
  std::string state;  ///< running, away, lost, ended
  double since_s = 0;
  std::string cause;
  std::int32_t ranks = 0;
  static constexpr auto fields() {
    return std::tuple{field("job", &JobEntry::job), field("state", &JobEntry::state),
                      field("since_s", &JobEntry::since_s), field("cause", &JobEntry::cause),
                      field("ranks", &JobEntry::ranks)};
  }
};

struct RankEntry {
  std::string node;
  RankState rank;
  static constexpr auto fields() {
    return std::tuple{field("node", &RankEntry::node), field("rank", &RankEntry::rank)};
  }
};

/// `head.list_*`: at most `limit` entries after the one named `after`, in order of names.
struct PageRequest {
  std::string after;
  std::int32_t limit = 100;  ///< 1..kPageMax
  std::string job;           ///< only of this job; ranks
  std::string state;         ///< only in this state
  static constexpr auto fields() {
    return std::tuple{field("after", &PageRequest::after), field("limit", &PageRequest::limit),
                      field("job", &PageRequest::job), field("state", &PageRequest::state)};
  }
};
inline constexpr std::int32_t kPageMax = 1000;

template <class Entry>
struct Page {
  std::vector<Entry> entries;
  std::string next;         ///< `after` of the next page; empty: this was the last
  std::uint64_t total = 0;  ///< that match, on all pages

  /// For who makes a page: entries that match, in order of their keys.
  template <class Make>
  void add(const std::string& key, const PageRequest& request, const Make& make) {
    ++total;
    if (key <= request.after || !next.empty()) return;
    if (entries.size() >= static_cast<std::size_t>(request.limit)) {
      next = last;
      return;
    }
    entries.push_back(make());
    last = key;
  }
  std::string last;  ///< key of the last entry; not sent
  static constexpr auto fields() {
    return std::tuple{field("entries", &Page::entries), field("next", &Page::next),
                      field("total", &Page::total)};
  }
};

/// `head.status`.
struct HeadStatus {
  std::uint64_t head_epoch = 0;
  std::string address;
  std::int64_t pid = 0;
  double up_s = 0;
  std::int32_t nodes_up = 0;
  std::int32_t nodes_away = 0;
  std::int32_t nodes_draining = 0;
  std::int32_t nodes_lost = 0;
  std::int32_t devices_up = 0;
  std::int32_t jobs_running = 0;
  std::int32_t ranks_running = 0;
  std::int32_t ranks_stuck = 0;
  static constexpr auto fields() {
    return std::tuple{field("head_epoch", &HeadStatus::head_epoch),
                      field("address", &HeadStatus::address),
                      field("pid", &HeadStatus::pid),
                      field("up_s", &HeadStatus::up_s),
                      field("nodes_up", &HeadStatus::nodes_up),
                      field("nodes_away", &HeadStatus::nodes_away),
                      field("nodes_draining", &HeadStatus::nodes_draining),
                      field("nodes_lost", &HeadStatus::nodes_lost),
                      field("devices_up", &HeadStatus::devices_up),
                      field("jobs_running", &HeadStatus::jobs_running),
                      field("ranks_running", &HeadStatus::ranks_running),
                      field("ranks_stuck", &HeadStatus::ranks_stuck)};
  }
};

/// `head.find_node`, `head.drain_node`: by name; answered with a NodeEntry. kNotFound.
/// `head.lanes`: asks the node; answered with a vector of LaneReport.
struct NodeQuery {
  std::string name;
  static constexpr auto fields() { return std::tuple{field("name", &NodeQuery::name)}; }
};

/// `head.stop`: one job, one node, or everything with the head.
struct StopRequest {
  std::string job;
  std::string node;
  bool all = false;
  bool force = false;  ///< jobs: end the ranks now, whatever the controller does
  std::string reason;
  static constexpr auto fields() {
    return std::tuple{field("job", &StopRequest::job), field("node", &StopRequest::node),
                      field("all", &StopRequest::all), field("force", &StopRequest::force),
                      field("reason", &StopRequest::reason)};
  }
};
/// Whom the head told to stop. It answers before they have stopped; watch the lists for the end.
struct StopAnswer {
  std::vector<std::string> jobs;
  std::vector<std::string> nodes;
  bool head = false;
  static constexpr auto fields() {
    return std::tuple{field("jobs", &StopAnswer::jobs), field("nodes", &StopAnswer::nodes),
                      field("head", &StopAnswer::head)};
  }
};

}  // namespace troupe::runtime

#pragma once

// What agents, controllers and commands say to the head, and the head to them.
//
// node → head:        `head.register_node`, `head.report` (notice), `head.leave_node`
// controller → head:  `head.announce_job`, `head.end_job`
// anyone → head:      `head.status`, `head.list_nodes`, `head.list_jobs`, `head.list_ranks`,
//                     `head.find_node`, `head.stop`, `head.drain_node`
// head → node:        `node.stop`, `node.stop_job`           head → controller:  `job.stop`
// Each is one struct, encoded with runtime/wire. Times are ages in seconds, since clocks of hosts
// need not agree.
// **Threads:** value types.

#include "runtime/cluster/lane_messages.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::runtime {

/// `head.register_node`, first thing on an agent's channel; the channel's peer is kNode of `name`.
struct NodeRegistration {
  std::string name;
  std::uint64_t epoch = 0;  ///< instance of the agent process: another number means a new node
  std::string address;      ///< `host:port` of the agent's listener
  std::string host;
  std::int64_t pid = 0;
  std::int32_t devices = 0;
  bool simulated = false;  ///< the devices are only declared (`--devices N`)
  std::int32_t cores = 0;
  std::int64_t memory_bytes = 0;
  std::string device_kind;           ///< e.g. `NVIDIA H200`, `cpu`
  std::vector<std::byte> inventory;  ///< of the agent, for placement; opaque to the head
  static constexpr auto fields() {
    return std::tuple{field("name", &NodeRegistration::name),
                      field("epoch", &NodeRegistration::epoch),
                      field("address", &NodeRegistration::address),
                      field("host", &NodeRegistration::host),
                      field("pid", &NodeRegistration::pid),
                      field("devices", &NodeRegistration::devices),
                      field("simulated", &NodeRegistration::simulated),
                      field("cores", &NodeRegistration::cores),
                      field("memory_bytes", &NodeRegistration::memory_bytes),
                      field("device_kind", &NodeRegistration::device_kind),
                      field("inventory", &NodeRegistration::inventory)};
  }
};

/// Answer to a registration. Refused with kAlreadyExists while another instance of that name is up
/// (try again: it may be found dead), kConflict for a name that is not the channel's.
struct NodeWelcome {
  std::uint64_t head_epoch = 0;  ///< instance of the head
  bool returned = false;         ///< this instance was known to this head before
  static constexpr auto fields() {
    return std::tuple{field("head_epoch", &NodeWelcome::head_epoch),
                      field("returned", &NodeWelcome::returned)};
  }
};

/// A rank process as its agent sees it.
struct RankReport {
  std::string job;
  std::string group;
  std::int32_t rank = 0;
  std::int64_t pid = 0;
  std::vector<std::int32_t> devices;
  std::string state;  ///< starting, running, stuck, ended
  double since_s = 0;
  std::string method;     ///< that runs now, if the rank said so
  std::string waits_for;  ///< e.g. `lane turn`
  double waiting_s = 0;
  static constexpr auto fields() {
    return std::tuple{field("job", &RankReport::job),
                      field("group", &RankReport::group),
                      field("rank", &RankReport::rank),
                      field("pid", &RankReport::pid),
                      field("devices", &RankReport::devices),
                      field("state", &RankReport::state),
                      field("since_s", &RankReport::since_s),
                      field("method", &RankReport::method),
                      field("waits_for", &RankReport::waits_for),
                      field("waiting_s", &RankReport::waiting_s)};
  }
};

/// `head.report`: a notice, on change and at most once a second. At most kRanksPerNodeMax ranks.
struct NodeReport {
  std::vector<RankReport> ranks;
  std::vector<LaneReport> lanes;
  static constexpr auto fields() {
    return std::tuple{field("ranks", &NodeReport::ranks), field("lanes", &NodeReport::lanes)};
  }
};
inline constexpr std::size_t kRanksPerNodeMax = 1024;
inline constexpr std::size_t kLanesPerNodeMax = 1024;

/// `head.leave_node`, `head.end_job`, `node.stop`, `job.stop`: why.
struct Farewell {
  std::string reason;
  static constexpr auto fields() { return std::tuple{field("reason", &Farewell::reason)}; }
};

/// `node.stop_job`: the agent ends the ranks of a job.
struct JobStopOrder {
  std::string job;
  std::string reason;
  static constexpr auto fields() {
    return std::tuple{field("job", &JobStopOrder::job), field("reason", &JobStopOrder::reason)};
  }
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
struct JobWelcome {
  std::uint64_t head_epoch = 0;
  bool returned = false;
  static constexpr auto fields() {
    return std::tuple{field("head_epoch", &JobWelcome::head_epoch),
                      field("returned", &JobWelcome::returned)};
  }
};

/// A node as the directory knows it.
struct NodeEntry {
  NodeRegistration node;  ///< without its inventory
  std::string state;      ///< up, away, draining, lost, left
  double since_s = 0;     ///< in this state
  double heard_s = 0;     ///< since its last report or registration
  std::string cause;      ///< why it is lost, left or away
  std::int32_t ranks = 0;
  std::vector<LaneReport> lanes;  ///< only in `head.list_nodes` with `lanes`
  static constexpr auto fields() {
    return std::tuple{field("node", &NodeEntry::node),       field("state", &NodeEntry::state),
                      field("since_s", &NodeEntry::since_s), field("heard_s", &NodeEntry::heard_s),
                      field("cause", &NodeEntry::cause),     field("ranks", &NodeEntry::ranks),
                      field("lanes", &NodeEntry::lanes)};
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
  RankReport rank;
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
  bool lanes = false;        ///< nodes: with lanes
  static constexpr auto fields() {
    return std::tuple{field("after", &PageRequest::after), field("limit", &PageRequest::limit),
                      field("job", &PageRequest::job), field("state", &PageRequest::state),
                      field("lanes", &PageRequest::lanes)};
  }
};
inline constexpr std::int32_t kPageMax = 1000;

template <class Entry>
struct Page {
  std::vector<Entry> entries;
  std::string next;         ///< `after` of the next page; empty: this was the last
  std::uint64_t total = 0;  ///< that match, on all pages
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
struct NodeQuery {
  std::string name;
  static constexpr auto fields() { return std::tuple{field("name", &NodeQuery::name)}; }
};

/// `head.stop`: one job, one node, or everything with the head.
struct StopRequest {
  std::string job;
  std::string node;
  bool all = false;
  std::string reason;
  static constexpr auto fields() {
    return std::tuple{field("job", &StopRequest::job), field("node", &StopRequest::node),
                      field("all", &StopRequest::all), field("reason", &StopRequest::reason)};
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

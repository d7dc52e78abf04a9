#pragma once

// What node agents say to the head, to controllers and to ranks, and are told by them: the names of
// the methods and their payloads (docs/node_agent.md).
//
// agent → head      `node.register` request NodeRegister → NodeRegistered; `node.state` notice
// controller → agent `job.hello`, `job.end`, `rank.start`, `rank.stop` requests
// agent → controller `rank.exit`, `log.lines` notices
// rank → agent      `rank.progress` notice
// anybody → agent   `agent.status`, `agent.drain` requests
// **Threads:** value types.
// **Invariants:** every text and list is bounded by kind before it is sent; see NodeAgentOptions.

#include "runtime/base/clock.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/cluster/host_inventory.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace troupe::runtime {

inline constexpr std::string_view kNodeRegister = "node.register";
inline constexpr std::string_view kNodeState = "node.state";
inline constexpr std::string_view kJobHello = "job.hello";
inline constexpr std::string_view kJobEnd = "job.end";
inline constexpr std::string_view kRankStart = "rank.start";
inline constexpr std::string_view kRankStop = "rank.stop";
inline constexpr std::string_view kRankExit = "rank.exit";
inline constexpr std::string_view kRankProgress = "rank.progress";
inline constexpr std::string_view kLogLines = "log.lines";
inline constexpr std::string_view kAgentStatus = "agent.status";
inline constexpr std::string_view kAgentDrain = "agent.drain";

enum class RankPhase : std::uint8_t {
  kStarting,  ///< forked, not yet seen
  kRunning,   ///< its program runs
  kStopping,  ///< asked to end
  kEnded,
};
/// `starting`, `running`, `stopping`, `ended`.
std::string_view rank_phase_name(RankPhase phase);

/// One rank process of an agent, for status tables.
struct RankState {
  std::string job;
  std::string group;
  RankId rank;
  int pid = 0;
  RankPhase phase = RankPhase::kStarting;
  Duration age{};                    ///< since it was started
  std::string doing;                 ///< what it says it waits for or works on; may be empty
  Duration quiet{};                  ///< since it last made progress
  bool stuck = false;                ///< quiet for longer than the watchdog's time
  std::vector<int> cores;            ///< pinned to these; empty: to none
  std::vector<std::string> devices;  ///< as in CUDA_VISIBLE_DEVICES
  std::string reservation;           ///< what it was started under
  std::string ending;                ///< first line of its death report, once ended
  static constexpr auto fields() {
    return std::tuple{
        field("job", &RankState::job),         field("group", &RankState::group),
        field("rank", &RankState::rank),       field("pid", &RankState::pid),
        field("phase", &RankState::phase),     field("age", &RankState::age),
        field("doing", &RankState::doing),     field("quiet", &RankState::quiet),
        field("stuck", &RankState::stuck),     field("cores", &RankState::cores),
        field("devices", &RankState::devices), field("reservation", &RankState::reservation),
        field("ending", &RankState::ending)};
  }
};

/// A snapshot, sent whole: the newest replaces all before it.
struct NodeState {
  std::uint64_t instance = 0;  ///< of the agent process
  std::uint64_t version = 0;   ///< counts up within an instance
  bool draining = false;
  std::vector<std::string> jobs;  ///< whose controllers are connected, or were within the grace
  std::vector<RankState> ranks;   ///< and the last few that ended
  static constexpr auto fields() {
    return std::tuple{field("instance", &NodeState::instance),
                      field("version", &NodeState::version),
                      field("draining", &NodeState::draining), field("jobs", &NodeState::jobs),
                      field("ranks", &NodeState::ranks)};
  }
};

struct NodeRegister {
  std::string name;     ///< of the node, unique in the cluster
  std::string address;  ///< host:port under which controllers reach the agent
  int pid = 0;
  std::string version;  ///< of Troupe
  HostInventory inventory;
  NodeState state;
  static constexpr auto fields() {
    return std::tuple{field("name", &NodeRegister::name),
                      field("address", &NodeRegister::address),
                      field("pid", &NodeRegister::pid),
                      field("version", &NodeRegister::version),
                      field("inventory", &NodeRegister::inventory),
                      field("state", &NodeRegister::state)};
  }
};

struct NodeRegistered {
  std::uint64_t head_instance = 0;  ///< another number means that the head has restarted
  std::string cluster;              ///< name, for messages
  static constexpr auto fields() {
    return std::tuple{field("head_instance", &NodeRegistered::head_instance),
                      field("cluster", &NodeRegistered::cluster)};
  }
};

/// First request of a controller; `job` must be the name under which it connected.
struct JobHello {
  std::string job;
  std::uint64_t instance = 0;  ///< of the controller process; a reconnection says the same
  static constexpr auto fields() {
    return std::tuple{field("job", &JobHello::job), field("instance", &JobHello::instance)};
  }
};

struct RankExit {
  std::string job;
  std::string group;
  RankId rank;
  Error cause;            ///< DeathReport::to_error
  bool expected = false;  ///< code 0, or asked to end
  static constexpr auto fields() {
    return std::tuple{field("job", &RankExit::job), field("group", &RankExit::group),
                      field("rank", &RankExit::rank), field("cause", &RankExit::cause),
                      field("expected", &RankExit::expected)};
  }
};

struct ControllerWelcome {
  std::string node;
  std::uint64_t instance = 0;    ///< of the agent process; another number: all ranks are gone
  std::vector<RankState> ranks;  ///< of this job
  /// Told lately, perhaps over a channel that broke: those of one rank in order.
  std::vector<RankExit> told;
  static constexpr auto fields() {
    return std::tuple{
        field("node", &ControllerWelcome::node), field("instance", &ControllerWelcome::instance),
        field("ranks", &ControllerWelcome::ranks), field("told", &ControllerWelcome::told)};
  }
};

struct JobEnd {
  std::string job;
  Duration grace{};  ///< between SIGTERM and SIGKILL
  static constexpr auto fields() {
    return std::tuple{field("job", &JobEnd::job), field("grace", &JobEnd::grace)};
  }
};

struct RankStart {
  std::string job;
  std::string group;
  RankId rank;
  std::string reservation;  ///< placement group under which it runs
  int bundle = 0;           ///< its bundle there
  std::string controller;   ///< host:port that the rank dials
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;
  static constexpr auto fields() {
    return std::tuple{
        field("job", &RankStart::job),         field("group", &RankStart::group),
        field("rank", &RankStart::rank),       field("reservation", &RankStart::reservation),
        field("bundle", &RankStart::bundle),   field("controller", &RankStart::controller),
        field("command", &RankStart::command), field("environment", &RankStart::environment)};
  }
};

/// The answer to `rank.start`, once the program runs.
struct RankStarted {
  int pid = 0;
  std::vector<int> cores;
  std::vector<std::string> devices;
  static constexpr auto fields() {
    return std::tuple{field("pid", &RankStarted::pid), field("cores", &RankStarted::cores),
                      field("devices", &RankStarted::devices)};
  }
};

struct RankStop {
  std::string job;
  std::string group;
  RankId rank;
  Duration grace{};
  std::string reason;
  static constexpr auto fields() {
    return std::tuple{field("job", &RankStop::job), field("group", &RankStop::group),
                      field("rank", &RankStop::rank), field("grace", &RankStop::grace),
                      field("reason", &RankStop::reason)};
  }
};

/// A rank says that it is getting on; sent at most twice a second and when `doing` changes.
struct RankProgress {
  std::uint64_t steps = 0;  ///< any count that grows with progress: calls ended, progress() calls
  std::string doing;        ///< method or collective it is in; empty: idle, which is never stuck
  static constexpr auto fields() {
    return std::tuple{field("steps", &RankProgress::steps), field("doing", &RankProgress::doing)};
  }
};

struct LogLine {
  std::string group;
  RankId rank;
  std::string text;
  static constexpr auto fields() {
    return std::tuple{field("group", &LogLine::group), field("rank", &LogLine::rank),
                      field("text", &LogLine::text)};
  }
};

struct LogBatch {
  std::string node;
  std::vector<LogLine> lines;
  std::uint64_t lines_dropped = 0;  ///< before these, because the queue to the controller was full
  static constexpr auto fields() {
    return std::tuple{field("node", &LogBatch::node), field("lines", &LogBatch::lines),
                      field("lines_dropped", &LogBatch::lines_dropped)};
  }
};

struct AgentDrain {
  Duration grace{};
  std::string reason;
  static constexpr auto fields() {
    return std::tuple{field("grace", &AgentDrain::grace), field("reason", &AgentDrain::reason)};
  }
};

}  // namespace troupe::runtime

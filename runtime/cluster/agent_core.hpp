#pragma once

// `AgentCore`: what a node agent decides. Pure: events in, effects out.
//
// It knows jobs (a controller's connection and how long it has been away), ranks (their processes,
// connections and progress) and whether the node drains. NodeAgent drives it with real channels and
// processes, tests with events.
// **Threads:** one owner.
// **Invariants:** every accepted start ends in one AnswerStart, and in one RankExit for the job
// once its process is over; no rank outlives its job's controller by more than `controller_grace`;
// a draining agent starts nothing; numbers of jobs, ranks and kept exits are bounded.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/cluster/death_report.hpp"
#include "runtime/cluster/node_protocol.hpp"

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// Where on this node a rank may run, as its reservation says.
struct RankPlace {
  std::vector<int> cores;            ///< empty: not pinned
  std::vector<int> devices;          ///< indexes in the inventory, for lanes and memory
  std::vector<std::string> visible;  ///< for CUDA_VISIBLE_DEVICES, in order
  std::optional<Bytes> memory_max;
  bool operator==(const RankPlace&) const = default;
};

struct AgentPolicy {
  Duration controller_grace = std::chrono::seconds(3);  ///< for a lost controller to come back
  /// Between a rank's channel closing and SIGKILL: time to end by itself and say why.
  Duration lost_rank_grace = std::chrono::milliseconds(500);
  /// A rank that has not dialled its agent by then is killed; zero: ranks need not dial.
  Duration rank_connects_within = std::chrono::seconds(60);
  /// A rank that has not dialled yet is silent anyway, so its process is looked at this often, and
  /// killed when every look for so long found it stopped (SIGSTOP).
  Duration look_every = std::chrono::milliseconds(500);
  Duration stopped_start_after = std::chrono::seconds(2);
  Duration stuck_after = std::chrono::minutes(5);  ///< without progress while doing something
  bool kill_stuck = false;
  std::size_t jobs_max = 64;
  std::size_t ranks_max = 256;
  std::size_t ended_kept = 16;    ///< for status tables
  std::size_t exits_kept = 1024;  ///< for a controller that is away
  /// Exits are told again to a controller that comes back so soon: the channel may have been broken
  /// before anybody knew.
  Duration told_kept = std::chrono::seconds(10);
  std::size_t told_kept_max = 64;
};

/// Longer texts of RankProgress::doing are cut.
inline constexpr std::size_t kDoingBytesMax = 256;

class AgentCore {
 public:
  using Serial = std::uint64_t;      ///< one start of one rank; never used twice
  using Connection = std::uint64_t;  ///< one channel; never used twice

  struct StartProcess {
    Serial serial;
    RankStart start;
    RankPlace place;
  };
  /// Grace zero kills. `asked` is what the death report says of it.
  struct StopProcess {
    Serial serial;
    Duration grace;
    std::string reason;
    bool asked;
  };
  struct AnswerStart {
    Serial serial;
    result<RankStarted> outcome;
  };
  struct TellExit {
    Connection controller;
    RankExit exit;
  };
  /// Whether the process of a rank that has not dialled is stopped; `seen` takes the answer.
  struct LookAtStart {
    Serial serial;
  };
  /// A rank has made no progress for long: look at its threads, say so once.
  struct LookAtStuck {
    Serial serial;
    std::string what;  ///< `policy rank 3 has been in update for 312 s`
  };
  /// Its ranks are gone and its controller is too, or said so.
  struct JobOver {
    std::string job;
  };
  using Effect = std::variant<StartProcess, StopProcess, AnswerStart, TellExit, LookAtStart,
                              LookAtStuck, JobOver>;
  using Effects = std::vector<Effect>;

  AgentCore(std::string node, std::uint64_t instance, AgentPolicy policy);

  result<ControllerWelcome> hello(const JobHello& hello, Connection controller, TimePoint now,
                                  Effects& effects);
  /// `from` is the connection that asks; empty when the head or this process does.
  result<void> end_job(const std::string& job, std::optional<Connection> from, Duration grace,
                       const std::string& reason, Effects& effects);
  result<Serial> start(const RankStart& start, const RankPlace& place, Connection from,
                       TimePoint now, Effects& effects);
  result<void> stop(const RankStop& stop, Connection from, Effects& effects);
  void started(Serial serial, int pid, TimePoint now, Effects& effects);
  void exited(Serial serial, const DeathReport& report, TimePoint now, Effects& effects);

  /// What a LookAtStart found.
  void seen(Serial serial, bool stopped, TimePoint now, Effects& effects);
  /// A rank has dialled in; `name` is its peer name, `job/group/rank`.
  result<void> rank_up(const std::string& name, Connection rank, TimePoint now);
  void progress(Connection rank, const RankProgress& progress, TimePoint now);
  /// Any connection has gone down; `silent`: its peer said nothing for as long as makes it dead.
  void down(Connection connection, const Error& cause, bool silent, TimePoint now,
            Effects& effects);

  /// The reservation, or one bundle of it, is over: its ranks are killed.
  void revoke(const std::string& reservation, std::optional<int> bundle, const std::string& reason,
              Effects& effects);
  void drain(Duration grace, const std::string& reason, Effects& effects);
  bool draining() const { return draining_.has_value(); }
  std::size_t ranks_alive() const { return ranks_.size(); }

  void tick(TimePoint now, Effects& effects);
  /// When `tick` has something to do; TimePoint::max() when never.
  TimePoint next_tick() const;

  NodeState state(TimePoint now) const;
  /// Grows with every change that `state` shows, but for times.
  std::uint64_t version() const { return version_; }

 private:
  struct Job {
    std::uint64_t instance = 0;
    std::optional<Connection> controller;
    TimePoint away_since{};
    TimePoint away_until{};  ///< without a controller: when its ranks are killed
    std::string away_why;
    std::size_t ranks = 0;
    std::deque<RankExit> exits;                         ///< not yet told
    std::deque<std::pair<TimePoint, RankExit>> told{};  ///< lately
    bool ending = false;
  };
  struct Rank {
    RankStart start;
    RankPlace place;
    RankPhase phase = RankPhase::kStarting;
    bool answered = false;
    int pid = 0;
    std::optional<Connection> connection;
    bool connected_once = false;
    TimePoint lost_at = TimePoint::max();  ///< its channel went down: killed at this time
    std::string lost_why;
    TimePoint started_at{};
    TimePoint look_at = TimePoint::max();        ///< while it has not dialled: the next look
    TimePoint stopped_since = TimePoint::max();  ///< seen so at every look since
    std::uint64_t steps = 0;
    std::string doing;
    TimePoint progress_at{};
    bool stuck = false;
  };
  void stop_rank(Serial serial, Rank& rank, Duration grace, const std::string& reason, bool asked,
                 Effects& effects);
  void stop_job(const std::string& job, Duration grace, const std::string& reason, bool asked,
                Effects& effects);
  /// Call only while the job has a controller.
  void tell(Job& job, RankExit exit, TimePoint now, Effects& effects);
  void forget_job_if_over(const std::string& job, Effects& effects);
  result<Job*> job_of(const std::string& job, Connection from);
  TimePoint stuck_at(const Rank& rank) const;
  TimePoint connect_by(const Rank& rank) const;
  RankState state_of(const Rank& rank, TimePoint now) const;

  std::string node_;
  std::uint64_t instance_;
  AgentPolicy policy_;
  std::map<std::string, Job> jobs_;
  std::map<Serial, Rank> ranks_;
  std::deque<RankState> ended_;
  std::optional<std::string> draining_;  ///< why
  Serial last_serial_ = 0;
  std::uint64_t version_ = 1;
};

}  // namespace troupe::runtime

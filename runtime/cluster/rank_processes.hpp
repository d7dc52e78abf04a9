#pragma once

// `RankProcesses`: rank processes on this host, with their environment, their log lines and their
// death reports. What NodeAgent and ProcessLauncher share.
//
// Ownership: owned by either; destroying it kills every rank.
// **Threads:** any thread may call; callbacks run on the process table's thread and must not block.
// **Invariants:** a rank gets its record, its token and its devices by environment and nothing
// else of its launcher's secrets; each accepted start ends in exactly one `on_exit`, after its last
// lines were handed to the log sink.

#include "runtime/cluster/agent_core.hpp"
#include "runtime/cluster/death_report.hpp"
#include "runtime/cluster/log_forwarder.hpp"
#include "runtime/cluster/process.hpp"
#include "runtime/group/rank_launcher.hpp"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::runtime {

struct RankProcessesOptions {
  std::string node;                                ///< name for messages; empty: not under an agent
  std::string agent;                               ///< host:port that ranks dial; may be empty
  std::string token;                               ///< join token; empty: none
  std::map<std::string, std::string> environment;  ///< of every rank, e.g. TROUPE_TLS_FOLDER
  std::string cgroup_parent;                       ///< see ProcessSpec
  /// A place says all that a rank may see: one without devices sees none. Otherwise such a rank
  /// inherits CUDA_VISIBLE_DEVICES.
  bool devices_by_place = false;
  /// Without a cgroup: RankPlace::memory_max becomes RLIMIT_AS. Off by default, since CUDA and
  /// large libraries reserve far more address space than they use.
  bool limit_address_space = false;
  ProcessTableOptions processes;
  LogForwarderOptions logs;
};

class RankProcesses {
 public:
  using Key = ProcessTable::Key;
  struct Events {
    std::function<void(int pid)> on_started;
    std::function<void(const DeathReport&)> on_exit;
  };

  static result<std::unique_ptr<RankProcesses>> open(RankProcessesOptions options,
                                                     LogForwarder::Sink sink);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  result<Key> start(const RankLaunch& launch, const RankPlace& place, Events events);
  /// As ProcessTable::stop; `asked` goes into the report with the first reason.
  void stop(Key key, Duration grace, const std::string& reason, bool asked);
  /// A line for the death report, if it comes to that; at most a few are kept.
  void add_detail(Key key, std::string line);
  /// Forgets what a job's log has queued.
  void drop_log(const std::string& job) { logs_->drop_job(job); }
  std::size_t size() const { return table_->size(); }

 private:
  struct Entry {
    DeathReport report;  ///< filled in as things become known
    LogForwarder::Id log = 0;
    bool stopping = false;
  };
  RankProcesses(RankProcessesOptions options, LogForwarder::Sink sink);
  ProcessSpec spec_of(const RankLaunch& launch, const RankPlace& place) const;

  RankProcessesOptions options_;
  std::unique_ptr<LogForwarder> logs_;
  std::mutex mutex_;  // guards entries_
  std::map<Key, std::shared_ptr<Entry>> entries_;
  std::unique_ptr<ProcessTable> table_;  // last: its callbacks use the rest
};

/// Whether the process is stopped, by a signal or a tracer; false when there is none.
bool is_stopped(int pid, const std::string& proc_folder = "/proc");

/// What the kernel says of a process's threads: name, state, where they wait, kernel stack if it
/// may be read. At most `threads_max` lines.
std::vector<std::string> describe_threads(int pid, std::size_t threads_max = 8,
                                          const std::string& proc_folder = "/proc");

}  // namespace troupe::runtime

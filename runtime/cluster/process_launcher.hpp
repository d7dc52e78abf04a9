#pragma once

// `ProcessLauncher`: rank processes as children of this one; for tests and for one host without an
// agent.
//
// What the ranks print is printed here with their names in front. When this process ends, however,
// its ranks are killed.
// Ownership: outlives the job that uses it; destroying it kills its ranks, whose `on_exit` are
// called meanwhile.
// **Threads:** as RankLauncher.
// **Invariants:** as RankLauncher; at most `processes.processes_max` ranks.

#include "runtime/cluster/rank_processes.hpp"
#include "runtime/group/rank_launcher.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::runtime {

struct ProcessLauncherOptions {
  std::string token;                               ///< join token; empty: none
  std::map<std::string, std::string> environment;  ///< of every rank, e.g. TROUPE_TLS_FOLDER
  Duration stop_grace = std::chrono::seconds(5);   ///< between SIGTERM and SIGKILL
  LogLimits log_limits;
  /// Takes whole lines, `[policy/3] text\n`; standard error by default.
  std::function<void(std::string_view)> print;
  /// Where ranks run; by default they are not pinned and see no devices of their own.
  std::function<result<RankPlace>(const RankLaunch&)> place;
  bool limit_address_space = false;  ///< see RankProcessesOptions
  ProcessTableOptions processes;
};

class ProcessLauncher final : public RankLauncher {
 public:
  static result<std::unique_ptr<ProcessLauncher>> open(ProcessLauncherOptions options = {});
  ~ProcessLauncher() override;

  pending<void> launch(const RankLaunch& launch, std::function<void(Error)> on_exit) override;
  void stop(const std::string& group, RankId rank) override;

  /// Process id of a rank that runs; 0 when there is none. For tests that kill it.
  int pid_of(const std::string& group, RankId rank) const;
  std::size_t size() const { return processes_->size(); }

 private:
  struct Entry {
    std::uint64_t launch = 0;    ///< which launch of that name this is
    RankProcesses::Key key = 0;  ///< 0 while it is being started
    int pid = 0;
    bool stop_asked = false;
  };
  using Name = std::pair<std::string, RankId>;
  explicit ProcessLauncher(ProcessLauncherOptions options) : options_(std::move(options)) {}

  ProcessLauncherOptions options_;
  mutable std::mutex mutex_;  // guards the following two
  std::uint64_t launches_ = 0;
  std::map<Name, Entry> ranks_;
  std::unique_ptr<RankProcesses> processes_;  // last: its callbacks use the rest
};

}  // namespace troupe::runtime

#pragma once

// `RankLauncher`: how the rank processes of a group come to life, and how their ends are told.
//
// `ProcessLauncher` (runtime/cluster) forks them on this host, `AgentLauncher` asks node agents.
// What a rank process must know to find its controller reaches it as JSON in `TROUPE_RANK`.
// Ownership: a launcher outlives the job that uses it, and all callbacks that it was given.
// **Threads:** every method from any thread; `on_exit` on a thread of the launcher's, and must not
// block.
// **Invariants:** `on_exit` is called exactly once for each launch that succeeded, also when the
// process ends because it was told to, and never before the launch's pending is over. One process
// per (group, rank) at a time.

#include "runtime/base/error.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"
#include "runtime/task/pending.hpp"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

struct RankLaunch {
  std::string job;
  std::string group;
  RankId rank;
  std::string reservation = {};  ///< placement group that the rank runs under; empty: none
  int bundle = 0;                ///< of the reservation
  std::string controller;        ///< host:port that the rank dials
  std::vector<std::string> command;
  std::map<std::string, std::string> environment = {};
};

class RankLauncher {
 public:
  virtual ~RankLauncher() = default;
  /// Starts the process; over once its program runs. Afterwards `on_exit` is told the root cause
  /// (exit code, signal, out of memory, last lines) when it ends.
  virtual pending<void> launch(const RankLaunch& launch, std::function<void(Error)> on_exit) = 0;
  /// Ends it, at last with SIGKILL. Nothing happens when there is no such process.
  virtual void stop(const std::string& group, RankId rank) = 0;
};

/// Environment variables of a rank process. The join token's file is named by the second; the token
/// itself is never an argument. TLS files lie in the folder that the third names, as NAME.pem …
/// with the name that the fourth says, `rank` by default.
inline constexpr std::string_view kRankRecordVariable = "TROUPE_RANK";
inline constexpr std::string_view kTokenFileVariable = "TROUPE_TOKEN_FILE";
inline constexpr std::string_view kTlsFolderVariable = "TROUPE_TLS_FOLDER";
inline constexpr std::string_view kTlsNameVariable = "TROUPE_TLS_NAME";

/// What a rank process is told when it starts; the rest comes from its controller.
struct RankRecord {
  std::string job;
  std::string group;
  RankId rank;
  int bundle = 0;
  std::string controller;  ///< host:port
  std::string agent = {};  ///< host:port of its node's agent; empty: none
  std::string node = {};   ///< name of the node, for messages
  /// Indexes of its devices as the agent counts them; the first one is that of its lane.
  std::vector<int> devices = {};
  bool operator==(const RankRecord&) const = default;

  /// `job/group/rank`, the name under which it dials.
  std::string peer_name() const;
  std::string to_json() const;
  /// kConfig names the key that is missing or wrong.
  static result<RankRecord> from_json(const std::string& json);
  static RankRecord of(const RankLaunch& launch);
};

/// The longest name of a job or group; with `/` in neither.
inline constexpr std::size_t kJobNameMax = 128;
/// kInvalidArgument unless `name` is 1..kJobNameMax of letters, digits, `.`, `_`, `-`.
result<void> check_job_name(std::string_view what, std::string_view name);

}  // namespace troupe::runtime

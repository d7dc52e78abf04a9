#pragma once

// `ProcessTable`: child processes of this one, from spawn to the reaping of the last of them.
//
// One thread does it all: it forks (so that PR_SET_PDEATHSIG, which is tied to the forking thread,
// means "when the table is gone"), reads the output pipes, watches pidfds and kills. A child gets
// default signal handlers, no descriptor but those named here, its own process group, null as
// standard input and pipes as output. When the child ends, what is left of its group is killed
// before its id can be used again; output is read until the pipes close or `drain` has passed, so
// grandchildren that hold a pipe open delay nothing.
// Ownership: made by the agent or a launcher; destroying it kills and reaps every child.
// **Threads:** any thread may call; all callbacks run on the table's thread and must not block.
// **Invariants:** each accepted spawn ends in exactly one `on_exit`, after all its output; no
// zombie, no descriptor and no thread is left behind. Grandchildren that leave the process group
// are out of reach unless the child lives in a cgroup of its own.
// **Cost:** fork + exec, ~1 ms; idle children cost nothing. Needs Linux ≥ 5.4 (pidfd).

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

struct ProcessSpec {
  std::string name;                  ///< for messages, e.g. `policy rank 3`
  std::vector<std::string> command;  ///< the program, looked up in PATH, and its arguments
  std::map<std::string, std::string> environment;  ///< added to, or over, this process's own
  std::vector<std::string> environment_removed;    ///< names that the child must not inherit
  std::string working_directory;                   ///< empty: this process's own
  std::vector<int> cores;                          ///< allowed cores; empty: this process's own
  std::optional<Bytes> address_space_max;          ///< RLIMIT_AS
  /// Folder of a writable cgroup v2; the child gets a cgroup of its own below it.
  std::string cgroup_parent;
  std::optional<Bytes> memory_max;  ///< `memory.max` of that cgroup
  int oom_score_adjust = 500;       ///< so that the kernel takes ranks before their agent
  /// Bytes that the child finds in a file whose path is in this variable; never in argv or on disk.
  std::string secret_variable;
  std::string secret;
};

enum class OutputStream : std::uint8_t { kOut, kError };

/// How a child ended: the facts, for DeathReport to put into words.
struct ProcessExit {
  enum class Kind : std::uint8_t {
    kExited,      ///< by itself, with `code`
    kSignalled,   ///< by `signal`
    kNotStarted,  ///< see `start_error`
  };
  Kind kind = Kind::kExited;
  int code = 0;
  int signal = 0;
  bool core_dumped = false;
  std::string start_error;     ///< `exec /bin/x: No such file or directory`
  bool we_killed = false;      ///< SIGKILL was sent from here
  std::string stop_reason;     ///< why we stopped it; empty when nobody did
  std::int64_t oom_kills = 0;  ///< more kills by the kernel in its cgroup than when it started
  std::optional<Bytes> memory_limit;  ///< the smallest that applied to it alone
  Duration wall{};
  Duration cpu{};
  Bytes peak_memory;  ///< largest resident size
};

struct ProcessEvents {
  std::function<void(int pid)> on_started = {};  ///< exec succeeded
  std::function<void(OutputStream, std::string_view)> on_output = {};
  std::function<void(const ProcessExit&)> on_exit = {};  ///< once, the last
};

struct ProcessTableOptions {
  std::size_t processes_max = 1024;
  Duration drain = std::chrono::milliseconds(200);  ///< for open pipes after the child's end
  std::string proc_folder = "/proc";                ///< where out-of-memory counters are looked up
};

class ProcessTable {
 public:
  using Key = std::uint64_t;  ///< counts from 1, never used twice

  static result<std::unique_ptr<ProcessTable>> open(ProcessTableOptions options = {});
  ~ProcessTable();
  ProcessTable(const ProcessTable&) = delete;
  ProcessTable& operator=(const ProcessTable&) = delete;

  /// Accepts the child or refuses (table full, no command); the rest comes through `events`.
  result<Key> spawn(ProcessSpec spec, ProcessEvents events);
  /// SIGTERM to its group, SIGKILL after `grace`. The first reason is kept. Unknown keys: nothing.
  void stop(Key key, Duration grace, std::string reason);
  /// SIGKILL to its group now.
  void kill(Key key, std::string reason) { stop(key, Duration::zero(), std::move(reason)); }
  /// Sends `signal` to the child alone.
  void signal(Key key, int signal);
  /// Children accepted and not yet over.
  std::size_t size() const;

 private:
  class Loop;
  explicit ProcessTable(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace troupe::runtime

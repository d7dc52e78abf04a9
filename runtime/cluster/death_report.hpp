#pragma once

// `DeathReport`: how a rank's process ended, in words a person can act on.
//
// Pure formatting: the facts come from ProcessTable and LogLines, the first line is the root cause
// in one sentence, e.g. `policy rank 3 on gpu-1 was killed by signal 9 (SIGKILL) after 12.3 s`.
// **Threads:** plain values and pure functions.
// **Invariants:** the same facts give the same text; no more than `lines_max` last lines.

#include "runtime/base/error.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/cluster/process.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace troupe::runtime {

struct DeathReport {
  std::string job;
  std::string group;
  RankId rank;
  std::string node;  ///< the agent's name; empty when the process was not started by an agent
  int pid = 0;
  ProcessExit exit;
  bool asked = false;  ///< `exit.stop_reason` is the wish of its controller, not a fault
  std::vector<std::string> last_lines;  ///< oldest first
  std::vector<std::string> details;     ///< e.g. the state of its threads when it was given up

  /// Ended by itself with code 0, or because it was asked to.
  bool expected() const;
  /// The root cause in one sentence.
  std::string first_line() const;
  /// First line, numbers, details, last lines.
  std::string to_text() const;
  /// kRankDead with the origin filled in; the message is `to_text()`.
  Error to_error() const;
};

/// `SIGKILL`; `signal 64` for those without a name.
std::string signal_name(int signal);

/// Why the facts say that memory ran out; empty when they do not.
std::string out_of_memory_reason(const ProcessExit& exit, const std::vector<std::string>& lines);

}  // namespace troupe::runtime

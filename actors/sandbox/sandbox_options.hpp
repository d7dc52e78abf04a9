#pragma once

// What a sandbox runs and what its processes may use.
//
// **Threads:** plain values; `check` and `absolute_command` are pure but for looking at files.
// **Invariants:** every limit is finite. What each of them stops, and what none of them stops, is
// said in docs/sandbox.md.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors {

struct SandboxLimits {
  Duration sample_wall = std::chrono::seconds(10);  ///< from its turn to its answer
  /// CPU of all processes of a worker for one sample; lines that were sent ahead add up.
  Duration sample_cpu = std::chrono::seconds(10);
  /// A fresh process may take this much longer over its first answer: interpreters start slowly.
  Duration start = std::chrono::seconds(30);
  Bytes memory{std::int64_t{1} << 30};    ///< address space of one process; resident bytes of all
  Bytes scratch{std::int64_t{64} << 20};  ///< one file; with isolation, all of the temporary folder
  Bytes answer{std::int64_t{64} << 10};   ///< one line of output
  std::int64_t open_files = 64;           ///< of one process
  std::int64_t processes = 32;            ///< and threads, of one worker

  bool operator==(const SandboxLimits&) const = default;
  /// kInvalidArgument naming `place` and the limit.
  result<void> check(const std::string& place) const;
};

struct SandboxOptions {
  std::string name = "sandbox";           ///< for messages and metrics
  std::vector<std::string> command = {};  ///< program and arguments; no shell reads them
  /// All that the command finds beside PATH, HOME, TMPDIR, LANG and what keeps Python from writing
  /// byte code and buffering, and maths libraries from starting a thread a core.
  std::map<std::string, std::string> environment = {};
  /// Covered by nothing: the command cannot see what lies below. Needs isolation.
  std::vector<std::string> hidden_folders = {"/run"};
  std::string scratch_root = {};  ///< where temporary folders are made; empty: the system's
  SandboxLimits limits = {};
  /// Refuse to run where the kernel gives no namespaces; otherwise warn once and run without.
  bool require_isolation = false;
  bool network = false;                      ///< leave the host's network reachable
  int workers = 2;                           ///< warm processes, and samples under way at once
  std::int64_t samples_per_worker = 10'000;  ///< then it is replaced by a fresh one
  int samples_ahead = 8;                     ///< lines that a worker gets before it has answered
  /// One fresh process a batch, that reads its input to the end before it answers.
  bool whole_batches = false;
  /// A command that never answered is broken after so many processes: an error, not zeros.
  int failures_at_start_max = 3;

  bool operator==(const SandboxOptions&) const = default;
  result<void> check() const;
};

/// Arguments that name existing files seen from `folder` become absolute: a sandbox has a working
/// folder of its own. A program without a slash is looked up in PATH, unless `folder` has it.
std::vector<std::string> absolute_command(std::vector<std::string> command,
                                          const std::filesystem::path& folder);

}  // namespace troupe::actors

#pragma once

// Warm processes that run somebody else's command: a line in, a line out, and nothing that the
// command does harms more than its own samples.
//
// A worker is a small tree: a helper of ours in namespaces of its own (user, mount, pid, network,
// ipc), which watches over the command and ends when this process ends, and the command with
// limits, a clean environment and a temporary folder. It answers samples until it has had its
// number of them or misbehaves; then the whole tree is killed and a fresh one takes its place.
//
// Failures are of two kinds. A sample that is not answered as agreed has a `SandboxFailure`; others
// are answered all the same. That no process can be made, that the command cannot be started, or
// never answered anything, is an `Error` of the call.
// **Ownership:** owns its processes and their temporary folders; destroying it ends both.
// **Threads:** `run` from any thread at once: calls share the workers, each has one at least.
// **Invariants:** a call ends by its deadline, give or take the 2 s that killing may take; answer i
// is of line i; buffers hold at most `samples_ahead` lines and one answer a worker.
// **Cost:** on 2 cores, bench/sandbox, a Python rule: 9 µs a sample in batches (2.6 µs of them the
// sandbox's, over the same program behind bare pipes), 33 µs one at a time, 21 ms in a fresh
// process.

#include "actors/sandbox/sandbox_options.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

enum class SandboxFailure : std::uint8_t {
  kWallTime,   ///< no answer in time
  kCpuTime,    ///< used more than `sample_cpu`
  kMemory,     ///< all processes together held more than `memory`
  kProcesses,  ///< more than `processes` of them
  kScratch,    ///< wrote a file beyond its limit
  kOutput,     ///< a line longer than `answer`
  kCrashed,    ///< ended by a signal
  kExited,     ///< ended, or closed its output, before it answered
  kAnswer,     ///< answered something that is no answer; set by who reads the line
};
inline constexpr std::size_t kSandboxFailures = 9;

/// `wall_time`, `cpu_time`, `memory`, `processes`, `scratch`, `output`, `crashed`, `exited`,
/// `answer`.
std::string_view sandbox_failure_name(SandboxFailure failure);

/// One line of the command, or why there is none.
struct SandboxAnswer {
  std::string line{};  ///< without its line end
  std::optional<SandboxFailure> failure{};
  std::string detail{};  ///< for people: signal, status, the end of its standard error
};

struct SandboxStats {
  std::int64_t samples = 0;
  std::int64_t processes_started = 0;
  std::int64_t workers_killed = 0;    ///< because of a failure
  std::int64_t workers_recycled = 0;  ///< because they had their number of samples
  std::array<std::int64_t, kSandboxFailures> failures{};
  bool isolated = false;   ///< user, mount, pid, ipc (and network) namespaces
  std::string weakness{};  ///< why not; empty when isolated
};

class SandboxPool {
 public:
  /// Starts the workers. kUnsupported when isolation is required and the kernel refuses it,
  /// kNotFound when the command does not exist, kInvalidArgument for options.
  static result<std::unique_ptr<SandboxPool>> open(SandboxOptions options);
  ~SandboxPool();
  SandboxPool(const SandboxPool&) = delete;
  SandboxPool& operator=(const SandboxPool&) = delete;

  /// One answer a line, in their order. Lines must not contain line ends.
  /// kDeadline when not all were answered by then; other errors mean that the sandbox itself fails.
  result<std::vector<SandboxAnswer>> run(std::span<const std::string> lines, Deadline deadline);

  const SandboxOptions& options() const;
  SandboxStats stats() const;

 private:
  class Impl;
  explicit SandboxPool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::actors

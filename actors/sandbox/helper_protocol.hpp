#pragma once

// What a sandbox's helper and the process that started it say to each other: plain records over a
// socket of packets.
//
// **Threads:** plain values.
// **Invariants:** both sides are built from this header in one build and run on one host, so
// records travel as they lie in memory.

#include <cstdint>
#include <type_traits>

namespace troupe::actors::sandbox {

inline constexpr int kControlDescriptor = 3;

/// From the helper.
enum class Notice : std::int32_t {
  kReady,      ///< the command is about to start; `value`: bits of `Isolation`
  kRefused,    ///< could not set up; `value`: errno, `stage` says what
  kNoCommand,  ///< exec failed; `value`: errno
  kOverLimit,  ///< the tree is being killed; `value`: a `Limit`
  kEnded,      ///< the command ended; `value`: its wait status
};

enum Isolation : std::int64_t {
  kIsolated = 1,   ///< user, mount, pid and ipc namespaces; a network of its own unless allowed
  kOwnProc = 2,    ///< /proc shows this worker's processes only
  kNoNesting = 4,  ///< no user namespaces inside
};

enum class Limit : std::int64_t { kCpu, kMemory, kProcesses };

struct NoticeRecord {
  Notice notice = Notice::kReady;
  std::int32_t stage = 0;
  std::int64_t value = 0;
};

/// What could not be done, for `kRefused`.
enum class Stage : std::int32_t {
  kArguments,
  kUnshare,
  kUserMap,
  kMounts,
  kScratch,
  kFork,
  kLimits,
  kPrivileges,
};

/// To the helper: `budget` ns of CPU from now on for the whole tree.
struct BudgetRecord {
  std::int64_t cpu_budget_ns = 0;
  std::int64_t busy = 0;  ///< 1: samples are under way; watch closely
};

/// Arguments of the helper, in decimal, before the scratch folder, the hidden folders (joined by
/// line ends) and the command.
enum Argument : int {
  kFlags = 1,
  kMemoryBytes,
  kScratchBytes,
  kOpenFiles,
  kProcesses,
  kCpuSeconds,  ///< of one process over its whole life; 0: no limit
  kScratchFolder,
  kHiddenFolders,
  kCommand,
};
enum Flag : std::int64_t { kIsolate = 1, kNetwork = 2 };

static_assert(std::is_trivially_copyable_v<NoticeRecord> &&
              std::is_trivially_copyable_v<BudgetRecord>);

}  // namespace troupe::actors::sandbox

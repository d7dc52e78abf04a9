#pragma once

// Building the walls around a command: namespaces, mounts, limits, privileges.
//
// Part of the helper program: no exceptions, no C++ library, one thread.
// **Threads:** one.
// **Invariants:** each step says what failed; nothing is half done silently: a step that may fail
// without harm says so by its bit of `Isolation`.

#include "actors/sandbox/helper_protocol.hpp"

#include <cstdint>

namespace troupe::actors::sandbox {

struct Settings {
  bool isolate = false;
  bool network = false;
  std::int64_t memory_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t open_files = 0;
  std::int64_t processes = 0;
  std::int64_t cpu_seconds = 0;
  const char* scratch = nullptr;
  char* hidden = nullptr;    ///< folders joined by line ends; is cut up
  char** command = nullptr;  ///< ends with null
};

/// `ok`, or what failed and errno.
struct Outcome {
  bool ok = true;
  Stage stage = Stage::kArguments;
  int error = 0;
};

/// New user, mount, pid, ipc and (unless allowed) network namespaces; this process is its own user
/// in them. Children are in the new pid namespace.
Outcome leave_namespaces(const Settings& settings);

/// In the first process of the pid namespace: everything read-only but the scratch folder and
/// /dev/shm, which are memory; hidden folders empty; /proc of its own. `bits` gets what was had.
Outcome arrange_mounts(Settings& settings, std::int64_t& bits);

/// Limits of the command, in its own process.
Outcome set_limits(const Settings& settings);
/// No new privileges, and none of the old ones.
Outcome drop_privileges();

}  // namespace troupe::actors::sandbox

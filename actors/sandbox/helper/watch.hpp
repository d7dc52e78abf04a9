#pragma once

// Counting what the processes below this one use, and ending them all.
//
// Part of the helper program: no exceptions, no C++ library, one thread.
// **Threads:** one.
// **Invariants:** memory of the count is fixed; processes beyond the table count as too many.
// **Cost:** one pass over /proc, tens of microseconds when it is the sandbox's own.

#include <sys/types.h>

#include <cstdint>

namespace troupe::actors::sandbox {

struct Usage {
  std::int64_t processes = 0;  ///< and threads
  std::int64_t resident_bytes = 0;
  std::int64_t cpu_ns = 0;  ///< of the living and of those that this process has reaped
  bool overflow = false;    ///< more processes than the table holds
};

/// Everything that descends from this process.
Usage count_tree();

/// Kills everything that descends from this process until nothing is left of it, or about a second
/// has passed. `whole_namespace`: this is the first process of a pid namespace.
void kill_tree(bool whole_namespace);

}  // namespace troupe::actors::sandbox

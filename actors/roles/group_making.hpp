#pragma once

// Which of a role's groups is made: the first, or one that takes the place of a dead one.
//
// **Threads:** plain values.
// **Invariants:** a group's name is never used twice in a job, so that columns of a dead rank are
// not looked for at its successor.

#include "runtime/base/clock.hpp"

#include <string>

namespace troupe::actors {

struct GroupMaking {
  int generation = 1;
  Duration within{};  ///< for all its workers to be constructed
};

/// `rollout-1`, then `rollout-1.2`, `rollout-1.3`, …
inline std::string group_name(const std::string& name, int generation) {
  return generation == 1 ? name : name + "." + std::to_string(generation);
}

}  // namespace troupe::actors

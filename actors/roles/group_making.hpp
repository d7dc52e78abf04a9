#pragma once

// Which of a role's groups is made: the first, or one that takes the place of a dead one.
//
// **Threads:** plain values; `make_anew` as BackgroundJob::run.
// **Invariants:** a group's name is never used twice in a job, so that columns of a dead rank are
// not looked for at its successor.

#include "actors/roles/background_job.hpp"
#include "runtime/base/clock.hpp"

#include <memory>
#include <string>
#include <utility>

namespace troupe::actors {

struct GroupMaking {
  int generation = 1;
  Duration within{};  ///< for all its workers to be constructed
};

/// `rollout-1`, then `rollout-1.2`, `rollout-1.3`, …
inline std::string group_name(const std::string& name, int generation) {
  return generation == 1 ? name : name + "." + std::to_string(generation);
}

/// Makes a group by `make()`, a result of it, in the background, once its predecessor is gone: what
/// that still holds must be free.
template <class Group, class Make>
runtime::pending<std::unique_ptr<Group>> make_anew(BackgroundJob& job,
                                                   std::unique_ptr<Group> predecessor, Make make) {
  return job.run<std::unique_ptr<Group>>(
      [make = std::move(make),
       predecessor = std::move(predecessor)]() mutable -> result<std::unique_ptr<Group>> {
        predecessor.reset();
        TROUPE_TRY(Group group, make());
        return std::make_unique<Group>(std::move(group));
      });
}

}  // namespace troupe::actors

#pragma once

// The environment role over worker groups of one rank each: turns that wait hold up only those
// behind them at the same rank.
//
// Turns of one call are dealt to the ranks that have the fewest under way. A rank that dies costs
// the calls that it had (the service asks those again) and is made anew while the others go on.
// **Ownership:** owns the groups.
// **Threads:** controller's thread; groups are made anew on threads of their own.
// **Invariants:** answer i is of turn i; ranks are made anew at most `remakes_max` times together.

#include "actors/roles/background_job.hpp"
#include "actors/roles/environment_worker.hpp"
#include "actors/roles/group_making.hpp"
#include "actors/roles/turnstile.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/observe/metrics.hpp"
#include "runtime/task/task.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace troupe::actors {

struct GroupEnvironmentOptions {
  int ranks = 1;
  int remakes_max = 3;
  Duration create_within = std::chrono::minutes(5);
  Duration remake_within = std::chrono::minutes(1);
  Duration turn_within = std::chrono::minutes(10);  ///< deadline of one call at a rank
};

class GroupEnvironment {
 public:
  using Group = runtime::WorkerGroup<EnvironmentWorker>;
  /// Makes the group of `seat`, one rank.
  using Make = std::function<result<Group>(int seat, const GroupMaking&)>;

  static result<std::unique_ptr<GroupEnvironment>> create(Make make,
                                                          const GroupEnvironmentOptions& options);
  GroupEnvironment(const GroupEnvironment&) = delete;
  GroupEnvironment& operator=(const GroupEnvironment&) = delete;

  /// Throws `Failure`: of an environment, or kRankDead when ranks died.
  runtime::task<std::vector<EnvironmentAnswer>> turn(std::vector<EnvironmentTurn> turns);

  /// `environment/…` since the last call.
  runtime::Metrics take_metrics();
  std::int64_t remakes() const { return remakes_; }
  /// Why no turn can be answered any more.
  std::optional<Error> dead_cause() const;
  /// For tests that end its ranks.
  Group& group(int seat) { return *seats_[static_cast<std::size_t>(seat)]->group; }

 private:
  struct Seat {
    int index = 0;
    int generation = 1;
    std::unique_ptr<Group> group{};  // null while it is made anew
    std::int64_t under_way = 0;      // turns
    std::optional<runtime::pending<std::unique_ptr<Group>>> making{};
    BackgroundJob job{};
  };
  struct Part;

  GroupEnvironment(Make make, const GroupEnvironmentOptions& options)
      : make_(std::move(make)), options_(options) {}
  static bool alive(const Seat& seat) { return seat.group != nullptr && !seat.group->dead_cause(); }
  std::vector<Seat*> living() const;
  void begin_remaking(Seat& seat);
  runtime::task<void> finish_remaking(Seat& seat);
  /// Those that can be asked; waits for one to be made where there is none.
  runtime::task<std::vector<Seat*>> usable();
  std::vector<Part> deal(std::vector<Seat*> seats, std::vector<EnvironmentTurn> turns);

  const Make make_;
  const GroupEnvironmentOptions options_;
  std::vector<std::unique_ptr<Seat>> seats_;
  std::int64_t remakes_ = 0;
  std::optional<Error> cause_;  // of the last death
  Turnstile remaking_;
  runtime::Metrics metrics_;
};

}  // namespace troupe::actors

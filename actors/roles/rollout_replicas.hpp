#pragma once

// `RolloutReplicas`: the rollout groups of a world, by number: one of all ranks, or one for each
// engine, so that a death takes one of them and the others go on.
//
//   fresh ──publication──▶ serving ──death──▶ lost ──revive──▶ reviving ──▶ fresh
//
// **Ownership:** owns the groups; borrows the place that makes them, and the turnstile that a
// publication holds: a group is taken away only while none is under way.
// **Threads:** controller's thread; groups are made and ended on threads of their own.
// **Invariants:** a group serves only after a publication reached it; a lost one is never called
// again, and its successor has another name.

#include "actors/roles/background_job.hpp"
#include "actors/roles/group_making.hpp"
#include "actors/roles/role_meshes.hpp"
#include "actors/roles/rollout_worker.hpp"
#include "actors/roles/turnstile.hpp"
#include "runtime/group/worker_group.hpp"
#include "runtime/task/task.hpp"

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

struct ReplicaOptions {
  bool survive = false;  ///< losses; else the first one is the end
  int revives_max = 8;   ///< of one replica
  Duration create_within = std::chrono::minutes(5);
  Duration revive_within = std::chrono::minutes(1);
};

class RolloutReplicas {
 public:
  using Group = runtime::WorkerGroup<RolloutWorker>;
  using Make = std::function<result<Group>(const GroupMaking&, const RolloutSeat&)>;
  enum class State : std::uint8_t { kFresh, kServing, kLost, kReviving };

  /// Makes all groups, side by side. The error names group, rank and cause.
  static result<std::unique_ptr<RolloutReplicas>> create(Make make, std::vector<RolloutSeat> seats,
                                                         Turnstile& publishing,
                                                         const ReplicaOptions& options);
  RolloutReplicas(const RolloutReplicas&) = delete;
  RolloutReplicas& operator=(const RolloutReplicas&) = delete;

  int size() const { return static_cast<int>(slots_.size()); }
  const ReplicaOptions& options() const { return options_; }
  const RolloutSeat& seat(int replica) const { return at(replica).seat; }
  /// Also notices a death that nobody has told of.
  State state(int replica);
  /// CHECKs that it is fresh or serving. Valid until it is lost and revived.
  Group& group(int replica);
  int generation(int replica) const { return at(replica).generation; }
  /// Of its last loss, which may be over.
  const std::optional<Error>& cause(int replica) const { return at(replica).cause; }
  const RolloutCapacity& capacity(int replica) const { return at(replica).capacity; }
  /// Those that can be called, and of these those that have weights.
  std::vector<int> alive();
  std::vector<int> serving();

  /// A publication reached it.
  void set_serving(int replica);
  /// It does not answer: its ranks are killed. Nothing when it is lost already.
  void lose(int replica, Error cause);
  /// Makes a lost one anew, without weights. Throws `Failure`: kResourceExhausted when it was made
  /// anew too often, kConflict when it is not lost, or why it could not be made; it is lost then.
  runtime::task<void> revive(int replica);

  std::int64_t losses() const { return losses_; }
  std::int64_t revivals() const { return revivals_; }
  /// Why nothing can be generated any more: a loss when none may be survived, else the last one
  /// when all are lost.
  std::optional<Error> dead_cause();

 private:
  struct Slot {
    RolloutSeat seat;
    std::unique_ptr<Group> group;  // null while it is made
    RolloutCapacity capacity;
    State state = State::kFresh;
    int generation = 1;
    std::optional<Error> cause;  // of the last loss
    BackgroundJob job;           // uses nothing of the slot
  };
  struct Made {
    std::unique_ptr<Group> group;
    RolloutCapacity capacity;
  };

  RolloutReplicas(Make make, Turnstile& publishing, const ReplicaOptions& options)
      : make_(std::move(make)), publishing_(publishing), options_(options) {}
  const Slot& at(int replica) const { return slots_[static_cast<std::size_t>(replica)]; }
  Slot& at(int replica) { return slots_[static_cast<std::size_t>(replica)]; }
  runtime::pending<Made> start_making(Slot& slot, Duration within,
                                      std::unique_ptr<Group> predecessor);
  void note_lost(int replica, Error cause);

  Make make_;
  Turnstile& publishing_;
  const ReplicaOptions options_;
  std::deque<Slot> slots_;
  std::int64_t losses_ = 0;
  std::int64_t revivals_ = 0;
  std::optional<Error> last_loss_;
};

}  // namespace troupe::actors

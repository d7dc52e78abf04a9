#pragma once

// One rank: the engine thread that runs the worker's methods, its queue, and what its shell shows.
//
// Ownership: counted; the engine thread, the core and the shell hold it, so an engine that is
// stuck when its group is destroyed keeps what it uses.
// **Threads:** `push`, `status` and the notes from any thread; the worker lives and dies on the
// engine thread.
// **Invariants:** calls run one at a time, in queue order. A failed CHECK or foreign exception in
// a method ends the engine and is reported once; a `Failure` or error result does not.

#include "runtime/base/result.hpp"
#include "runtime/batch/column_ref.hpp"
#include "runtime/comm/collective.hpp"
#include "runtime/group/call.hpp"
#include "runtime/group/group_options.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace troupe::runtime {

class CallTrace;

/// A worker of any class.
using OwnedWorker = std::unique_ptr<void, void (*)(void*)>;
/// Makes a rank's worker, on its engine thread.
using MakeWorker = std::function<result<OwnedWorker>(WorkerContext&)>;

/// Whom an engine reports to, on its own thread: the core of its group, or the server of its
/// process.
class RankOwner : public RefCounted {
 public:
  virtual void rank_constructed(RankId rank, std::optional<Error> error) = 0;
  /// The rank is through with `call`.
  virtual void rank_done(Call& call, RankId rank, result<void> outcome) = 0;
  virtual void rank_died(RankId rank, Error cause, Call* during) = 0;
  virtual CallTrace* trace() const = 0;
  virtual Duration create_deadline() const = 0;
  /// How long one try of rebuilding the communicators waits for the other ranks.
  virtual Duration rebuild_slice() const { return std::chrono::milliseconds(20); }
};

/// What context and status share.
struct RankCell {
  /// Columns that stay with the rank go to `store`, or to one of its own.
  RankCell(std::string group_name, RankId own_rank, Mesh group_mesh, ColumnStore* store)
      : group(std::move(group_name)),
        rank(own_rank),
        mesh(std::move(group_mesh)),
        own_columns(ColumnOwner{group, own_rank}),
        columns(store != nullptr ? *store : own_columns) {}

  const std::string group;
  const RankId rank;
  const Mesh mesh;
  ColumnStore own_columns;
  ColumnStore& columns;
  PullMeter pulled;
  std::unique_ptr<Collective> world;                                     // null without collectives
  std::map<std::string, std::unique_ptr<Collective>, std::less<>> axes;  // engine thread only

  std::atomic<std::int64_t> progress{0};
  std::atomic<std::int64_t> calls_done{0};
  std::atomic<Duration::rep> deadline{0};  // of the present call
  std::atomic<bool> cancelled{false};      // nobody wants the present call's result
  std::atomic<bool> leaving{false};        // the group is dead or going: wait for no peer

  mutable std::mutex mutex;  // guards what follows
  bool busy = false;
  const Call* current = nullptr;  // compared only; null in the constructor
  std::string_view method;        // views of declarations live as long as the program
  TimePoint busy_since;
  std::string waits_for;
  TimePoint waiting_since;
  std::optional<Error> death;
};

class Rank final : public RefCounted {
 public:
  Rank(std::string group, RankId rank, const Mesh& mesh, std::unique_ptr<Collective> world,
       ColumnStore* columns = nullptr)
      : cell_(std::move(group), rank, mesh, columns) {
    cell_.world = std::move(world);
  }

  /// Starts the engine; it reports to `owner`, which it keeps alive. `make_worker` may set the
  /// cell's `world`, once, before it uses it.
  void start(Ref<RankOwner> owner, MakeWorker make_worker);
  /// Puts a call into the queue; `wake` tells the engine about it.
  void push(Ref<Call> call);
  void wake() { changed_.notify_one(); }
  /// Makes the collectives along the axes of the mesh from the world, on the engine thread.
  result<void> split_axes(Deadline deadline);
  /// Orders what came before it on one thread with what follows it on another; taken on both sides
  /// of an actor message, for tools that cannot look into CAF.
  void fence() { const std::lock_guard lock(mutex_); }
  /// The engine begins no further call until `adjust` says so; returns the last one that it has
  /// begun.
  CallId hold();
  /// Lets `plan` look at each queued call, then, if `go_on`, lets the engine go on.
  void adjust(const std::function<void(Call&)>& plan, bool go_on);
  bool has_queued() const;
  CallId last_begun() const;
  /// Sets `cancelled()` if the engine runs `call`.
  void cancel(const Call& call);
  void cancel(CallId call);
  bool runs(const Call& call) const;
  /// The status says from now on that the rank is dead; the first cause stays.
  void bury(const Error& cause);
  /// The engine ends when its present method does; what is queued is dropped.
  void stop();
  /// Waits for the end of the engine; at `deadline` leaves the thread behind and returns false.
  bool join(Deadline deadline);

  RankStatus status() const;
  std::int64_t heartbeat() const { return cell_.progress.load() + cell_.calls_done.load(); }
  RankCell& cell() { return cell_; }

 private:
  ~Rank() override = default;
  void engine_main(RankOwner& owner, const MakeWorker& make_worker);
  bool construct(RankOwner& owner, const MakeWorker& make_worker);
  /// False when the rank died.
  bool run_call(RankOwner& owner, Call& call);
  result<void> prepare(const RankOwner& owner, Call& call, std::unique_ptr<LaneGate::Turn>& turn);
  result<void> rebuild(const Call& call, std::int64_t epoch, Duration slice);
  Ref<Call> pop();
  /// What the shell shows.
  void begin_work(std::string_view method, const Call* call);
  void end_work(const std::optional<Error>& death);

  RankCell cell_;
  WorkerContext context_{cell_};
  OwnedWorker worker_{nullptr, [](void*) {}};  // engine thread only
  std::thread thread_;
  std::atomic<std::uint64_t> cancelled_call_{0};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::condition_variable ended_;
  std::deque<Ref<Call>> queue_;
  CallId last_begun_{0};
  bool held_ = false;
  bool stop_ = false;
  bool over_ = false;
};

}  // namespace troupe::runtime

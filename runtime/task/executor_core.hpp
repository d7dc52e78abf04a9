#pragma once

// What coroutines and completions need of an executor: a queue that any thread may post to.
//
// The core is counted, so that a completion which comes after the executor died finds a closed
// queue instead of freed memory. Users meet `Executor` (executor.hpp) only.
// **Threads:** `post` and the timer functions from any thread; the rest on the executor's thread.
// **Invariants:** items run one at a time, in posting order; an item posted before `close` and not
// yet run is dropped by it. The queue is bounded by the number of outstanding waits.

#include "runtime/base/clock.hpp"
#include "runtime/task/cancel.hpp"
#include "runtime/task/ref.hpp"

#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// Something to run on the executor's thread.
class Runnable : public Observer {
 public:
  virtual void run() = 0;
};

class VirtualClock;

/// Names one coroutine that was started by `start_root`.
using RootId = std::uint64_t;

class ExecutorCore final : public RefCounted {
 public:
  ExecutorCore(const Clock* clock, VirtualClock* virtual_clock)
      : clock_(clock), virtual_clock_(virtual_clock) {}

  const Clock& clock() const { return *clock_; }

  /// Queues `item`; false (and nothing happens) after close.
  bool post(Ref<Runnable> item);

  using TimerId = std::pair<TimePoint, std::uint64_t>;
  /// Notifies `observer` on the executor's thread at `at` or soon after.
  TimerId add_timer(TimePoint at, Ref<Observer> observer);
  void remove_timer(const TimerId& id);

  /// Owns a suspended coroutine from now on and queues its first step. `id` is set before that can
  /// run; after `close` the coroutine is destroyed at once.
  void start_root(std::coroutine_handle<> root, RootId& id);
  /// From the coroutine's final suspend: its frame is destroyed after the present step.
  void retire_root(std::coroutine_handle<> root);
  /// Destroys a coroutine that has not ended, where it is suspended. Executor's thread only.
  void destroy_root(RootId id);
  void resume_root(RootId id);

  /// Runs one queued item or due timer. False when there is none.
  bool run_one();
  /// Waits until there is something to run, at most until `until`; on virtual time jumps to the
  /// next timer instead of waiting for it. False when `until` came first.
  bool wait(TimePoint until);
  void close();

 private:
  ~ExecutorCore() override = default;
  void bury();

  const Clock* clock_;
  VirtualClock* virtual_clock_;
  std::mutex mutex_;  // guards all below but graveyard_
  std::condition_variable posted_;
  std::deque<Ref<Runnable>> ready_;
  std::atomic<bool> any_ready_{false};  // that ready_ holds something, without the lock
  std::map<TimerId, Ref<Observer>> timers_;
  std::unordered_map<RootId, std::coroutine_handle<>> roots_;
  std::unordered_map<void*, RootId> root_ids_;  // by frame address
  std::uint64_t last_id_ = 0;
  bool closed_ = false;
  std::vector<std::coroutine_handle<>> graveyard_;  // executor's thread only
};

/// What a coroutine inherits from its parent.
struct TaskContext {
  Ref<ExecutorCore> executor;
  CancelToken token;
};

/// Runs `handle` and whatever it hands over to, on this thread, without growing the stack.
void resume_flat(std::coroutine_handle<> handle);
/// From an await_suspend: `next` runs when the present coroutine has returned to `resume_flat`.
/// This is symmetric transfer that works the same in every build: g++ 12 makes the tail call that
/// the language's own form needs only at -O2 and without sanitizers.
void hand_over(std::coroutine_handle<> next);

/// A suspended coroutine that the first of several events resumes, on its executor's thread.
class Waiter final : public Runnable {
 public:
  Waiter(std::coroutine_handle<> handle, Ref<ExecutorCore> executor)
      : handle_(handle), executor_(std::move(executor)) {}
  void notify() noexcept override;
  void run() override;
  /// No resumption any more. False when one is queued already: then the coroutine must stay
  /// suspended for it, unless its frame is being destroyed.
  bool detach() noexcept;

 private:
  enum class State : int { kWaiting, kQueued, kOver };
  std::coroutine_handle<> handle_;
  Ref<ExecutorCore> executor_;
  std::atomic<State> state_{State::kWaiting};
};

/// The moving part of every awaiter: subscribes one `Waiter` to events, a token and a timer, and
/// takes it off them again when the wait is over or the frame is destroyed.
class WaitGuard {
 public:
  WaitGuard() = default;
  WaitGuard(const WaitGuard&) = delete;
  WaitGuard& operator=(const WaitGuard&) = delete;
  ~WaitGuard() { release(); }

  /// True: stay suspended. False: go on at once, since an event or the token was there already.
  bool suspend(std::coroutine_handle<> handle, const TaskContext& context,
               const std::vector<Ref<Signal>>& events, const TimePoint* until = nullptr);
  /// Suspends and queues the resumption at once, behind all that is ready.
  void requeue(std::coroutine_handle<> handle, const TaskContext& context);
  void release() noexcept;
  const CancelToken& token() const { return token_; }

 private:
  Ref<Waiter> waiter_;
  Ref<ExecutorCore> executor_;
  CancelToken token_;
  std::vector<Ref<Signal>> events_;
  bool has_timer_ = false;
  ExecutorCore::TimerId timer_;
};

}  // namespace troupe::runtime

#pragma once

// `Executor`: the run loop of a controller. One thread runs all its coroutines; completions that
// happen on other threads are posted to it.
//
//   Executor executor;
//   result<Report> report = executor.run(train(cast));
//
// **Threads:** `run`, and the destructor, on one thread; `spawn` and `post` on any.
// **Invariants:** coroutines never run in parallel; destroying the executor destroys what has not
// ended, and their pendings end with kAborted. With a `VirtualClock` timers fire at once, in
// order, when nothing else is left to run.

#include "runtime/task/executor_core.hpp"
#include "runtime/task/task.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

namespace troupe::runtime {

/// A coroutine that belongs to an executor, with no parent that awaits it.
struct RootCoroutine {
  struct promise_type {
    TaskContext own;
    const TaskContext& context() const { return own; }
    RootCoroutine get_return_object() noexcept {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    struct Retire {
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<promise_type> own_handle) const noexcept {
        auto& promise = own_handle.promise();
        promise.own.executor->retire_root(own_handle);
      }
      void await_resume() const noexcept {}
    };
    Retire final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept { std::terminate(); }  // the body catches all
  };
  std::coroutine_handle<promise_type> handle;
};

/// Runs `inner` and completes `out`; foreign exceptions become kInternal errors, or go to
/// `escaped` when given, for `run` to throw on.
template <class T>
RootCoroutine run_root(task<T> inner, completer<T> out, std::exception_ptr* escaped) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(inner);
      out.complete({});
    } else {
      out.complete(co_await std::move(inner));
    }
  } catch (const Failure& failure) {
    out.fail(failure.error());
  } catch (...) {
    if (escaped != nullptr) *escaped = std::current_exception();
    out.fail(error_of_current_exception());
  }
}

template <class T>
struct Started {
  pending<T> outcome;
  RootId id = 0;
};

/// Starts `inner` on `executor` under `token`.
template <class T>
Started<T> start(const Ref<ExecutorCore>& executor, task<T> inner, CancelToken token,
                 std::exception_ptr* escaped = nullptr) {
  auto ends = make_pending<T>();
  auto root = run_root<T>(std::move(inner), std::move(ends.second), escaped);
  auto& promise = root.handle.promise();
  promise.own = TaskContext{executor, std::move(token)};
  Started<T> started{std::move(ends.first), 0};
  executor->start_root(root.handle, started.id);
  return started;
}

class Executor {
 public:
  /// `clock` outlives the executor; null means the machine's.
  explicit Executor(const Clock* clock = nullptr);
  /// On virtual time; only for programs whose every wait ends by a timer or another coroutine.
  explicit Executor(VirtualClock& clock);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  /// Runs until `main` has ended, and everything else that becomes ready meanwhile. Returns its
  /// value or error; exceptions that are not `Failure` pass to the caller. Not from a coroutine.
  template <class T>
  result<T> run(task<T> main, CancelToken token = {}) {
    std::exception_ptr escaped;
    auto started = start(core_, std::move(main), std::move(token), &escaped);
    drive_root(*started.outcome.shared(), started.id);
    if (escaped) std::rethrow_exception(escaped);
    return started.outcome.shared()->take();
  }

  /// Starts `work` in the background. Cancelling the pending cancels the work.
  template <class T>
  pending<T> spawn(task<T> work, const CancelToken& token = {}) {
    const CancelSource source(token);
    auto outcome = start(core_, std::move(work), source.token()).outcome;
    outcome.shared()->set_hook([source](const Error& reason) { source.cancel(reason); });
    return outcome;
  }

  /// Runs `callback` on the executor's thread. False when the executor is closed.
  bool post(std::function<void()> callback);
  /// Runs all that is ready and all timers that are due; never waits.
  void run_ready();
  /// Runs whatever comes for `span` of the executor's clock.
  void run_for(Duration span);

  const Clock& clock() const { return core_->clock(); }
  const Ref<ExecutorCore>& core() const { return core_; }

 private:
  /// Runs until `over` is raised; destroys the root when a posted callback throws.
  void drive_root(const Signal& over, RootId id);
  void drive(const Signal* over, TimePoint end);

  SteadyClock steady_;
  Ref<ExecutorCore> core_;
  bool running_ = false;
};

template <class T>
result<T> run(Executor& executor, task<T> main) {
  return executor.run(std::move(main));
}

/// `const TaskContext& context = co_await this_context();`
struct ThisContext {
  const TaskContext* context = nullptr;
  bool await_ready() const { return false; }
  template <TaskPromise Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) {
    context = &handle.promise().context();
    return false;
  }
  const TaskContext& await_resume() const { return *context; }
};
inline ThisContext this_context() { return {}; }

/// `co_await sleep_for(10ms);` ends with kCancelled when the scope is cancelled first.
class Sleep {
 public:
  explicit Sleep(Duration span) : span_(span) {}
  explicit Sleep(TimePoint at) : at_(at) {}
  bool await_ready() const { return false; }
  template <TaskPromise Promise>
  bool await_suspend(std::coroutine_handle<Promise> handle) {
    const TaskContext& context = handle.promise().context();
    if (!at_) at_ = context.executor->clock().now() + span_;
    return wait_.suspend(handle, context, {}, &*at_);
  }
  void await_resume() {
    wait_.release();
    if (wait_.token().cancelled()) throw Failure(wait_.token().reason());
  }

 private:
  Duration span_{};
  std::optional<TimePoint> at_;
  WaitGuard wait_;
};
inline Sleep sleep_for(Duration span) { return Sleep(span); }
inline Sleep sleep_until(TimePoint at) { return Sleep(at); }

/// Lets everything that is ready run before this coroutine goes on.
class Yield {
 public:
  bool await_ready() const { return false; }
  template <TaskPromise Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    wait_.requeue(handle, handle.promise().context());
  }
  void await_resume() { wait_.release(); }

 private:
  WaitGuard wait_;
};
inline Yield yield_now() { return {}; }

}  // namespace troupe::runtime

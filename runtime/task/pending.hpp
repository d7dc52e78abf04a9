#pragma once

// `pending<T>`: the result of something that has already started, and `completer<T>`: its other
// end.
//
// The producer completes it once, from any thread; the consumer awaits it in a coroutine, blocks on
// it (`wait`), or drops it. Dropping never blocks and does not stop the producer; `cancel` ends the
// pending with kCancelled and tells the producer, if that asked to know.
// **Threads:** the two ends may be on different threads; each end belongs to one thread at a time.
// **Invariants:** completed exactly once, the first wins; a dropped completer completes with
// kAborted; the value is taken once. All waits end: bound them with `with_deadline` or `wait`'s
// deadline unless the producer has one of its own, as group calls do.
// **Cost:** one allocation; no lock is held while callbacks run.

#include "runtime/base/check.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/task/executor_core.hpp"
#include "runtime/task/failure.hpp"

#include <concepts>
#include <functional>
#include <optional>
#include <utility>

namespace troupe::runtime {

/// A promise type of our coroutines: knows its context.
template <class Promise>
concept TaskPromise = requires(Promise& promise) {
  { promise.context() } -> std::same_as<const TaskContext&>;
};

using CancelHook = std::function<void(const Error&)>;

/// Blocks the calling thread until `event` or `deadline`. False when the deadline came first.
bool block_on(Signal& event, Deadline deadline);

/// The part of a pending's state that does not depend on T.
class PendingBase : public Signal {
 public:
  /// The error it ended with; empty while it runs, or after a value.
  virtual std::optional<Error> error() const = 0;
  virtual bool cancel(const Error& reason) = 0;
};

/// The shared middle of a pending and its completer.
template <class T>
class PendingState final : public PendingBase {
 public:
  bool complete(result<T> outcome) { return finish(std::move(outcome), nullptr); }
  /// Completes with `reason` and then calls the producer's hook.
  bool cancel(const Error& reason) override { return finish(fail(reason), &reason); }
  std::optional<Error> error() const override {
    const std::lock_guard lock(mutex_);
    if (!outcome_ || outcome_->has_value()) return std::nullopt;
    return outcome_->error();
  }
  void set_hook(CancelHook hook) {
    {
      const std::lock_guard lock(mutex_);
      if (!done()) {
        hook_.swap(hook);
        return;
      }
      if (!cancelled_) return;
    }
    hook(*cancelled_);
  }
  result<T> take() {
    const std::lock_guard lock(mutex_);
    TROUPE_CHECK(outcome_.has_value(), "pending: its value was taken already");
    result<T> outcome = std::move(*outcome_);
    outcome_.reset();
    return outcome;
  }

 private:
  bool finish(result<T> outcome, const Error* reason) {
    std::vector<Ref<Observer>> observers;
    CancelHook hook;  // destroyed, and called, outside the lock
    {
      const std::lock_guard lock(mutex_);
      if (done()) return false;
      outcome_.emplace(std::move(outcome));
      if (reason != nullptr) cancelled_ = *reason;
      hook.swap(hook_);
      observers = raise_locked();
    }
    notify_all(observers);
    if (reason != nullptr && hook) hook(*reason);
    return true;
  }

  std::optional<result<T>> outcome_;  // guarded by mutex_, as the rest
  std::optional<Error> cancelled_;
  CancelHook hook_;
};

/// The producer's end. Copies share it; when the last is gone the pending ends with kAborted.
template <class T>
class completer {
 public:
  completer() = default;
  explicit completer(Ref<PendingState<T>> state) : end_(make_ref<End>(std::move(state))) {}
  /// False when it was completed or cancelled before.
  bool complete(result<T> outcome) const { return end_->state->complete(std::move(outcome)); }
  bool fail(Error error) const { return end_->state->complete(troupe::fail(std::move(error))); }
  bool done() const { return end_->state->done(); }
  /// Called at most once, with the reason, when the consumer cancels; on the consumer's thread.
  void on_cancel(CancelHook hook) const { end_->state->set_hook(std::move(hook)); }

 private:
  struct End final : RefCounted {
    explicit End(Ref<PendingState<T>> shared) : state(std::move(shared)) {}
    ~End() override {
      state->complete(troupe::fail(ErrorCode::kAborted, "pending: abandoned by its producer"));
    }
    Ref<PendingState<T>> state;
  };
  Ref<End> end_;
};

template <class T>
class [[nodiscard]] pending {
 public:
  using value_type = T;

  pending() = default;
  explicit pending(Ref<PendingState<T>> state) : state_(std::move(state)) {}
  pending(pending&&) noexcept = default;
  pending& operator=(pending&&) noexcept = default;

  /// A pending that is over.
  static pending of(result<T> outcome) {
    auto state = make_ref<PendingState<T>>();
    state->complete(std::move(outcome));
    return pending(std::move(state));
  }

  bool valid() const { return static_cast<bool>(state_); }
  bool ready() const { return state().done(); }
  /// Ends it with `reason` (kCancelled or kDeadline) unless it is over.
  void cancel(const Error& reason = runtime::cancelled("cancelled by its caller")) {
    state().cancel(reason);
  }
  /// Lets it run and ignores the outcome.
  void forget() { state_ = nullptr; }
  /// Blocks this thread; for `main` and tests, never for coroutines or actors. Takes the value;
  /// at the deadline the pending is cancelled and the error is kDeadline.
  result<T> wait(Deadline deadline = Deadline::by_default()) {
    if (!block_on(state(), deadline)) {
      state().cancel(Error{.code = ErrorCode::kDeadline,
                           .message = "pending: not over at the deadline of wait",
                           .origin = {},
                           .causes = {}});
    }
    return std::exchange(state_, nullptr)->take();
  }

  /// For awaiters and combinators.
  const Ref<PendingState<T>>& shared() const { return state_; }

  class Awaiter {
   public:
    explicit Awaiter(Ref<PendingState<T>> state) : state_(std::move(state)) {}
    bool await_ready() const { return state_->done(); }
    template <TaskPromise Promise>
    bool await_suspend(std::coroutine_handle<Promise> handle) {
      return wait_.suspend(handle, handle.promise().context(), {state_});
    }
    result<T> await_result() {
      wait_.release();
      if (!state_->done()) state_->cancel(wait_.token().reason());  // may lose to a completion
      return state_->take();
    }
    T await_resume() { return value_or_throw(await_result()); }

   private:
    Ref<PendingState<T>> state_;
    WaitGuard wait_;
  };
  /// Waits and takes the value, or throws `Failure`. A cancelled wait cancels the pending too.
  Awaiter operator co_await() && { return Awaiter(std::exchange(state_, nullptr)); }
  Awaiter operator co_await() & { return Awaiter(std::exchange(state_, nullptr)); }

 private:
  PendingState<T>& state() const {
    TROUPE_CHECK(state_, "pending: empty; it was awaited, forgotten or moved away");
    return *state_;
  }
  Ref<PendingState<T>> state_;
};

template <class T>
std::pair<pending<T>, completer<T>> make_pending() {
  auto state = make_ref<PendingState<T>>();
  return {pending<T>(state), completer<T>(state)};
}

}  // namespace troupe::runtime

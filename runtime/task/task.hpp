#pragma once

// `task<T>`: a coroutine that starts when it is awaited, and yields T or throws `Failure`.
//
//   task<Batch> score(Cast& cast, Batch batch) {
//     batch.merge(co_await cast.reward.score(batch));   // a pending<Batch>
//     co_return batch;
//   }
//
// A task is started by awaiting it in another task, or by `Executor::run` and `spawn`. It inherits
// executor and cancel token from its parent. Pass arguments by value, or make sure that what a
// reference points to outlives the task.
// **Threads:** everything runs on the executor's thread; a task is created, awaited and destroyed
// there (or before it has started, anywhere).
// **Invariants:** awaited at most once; destroying a task destroys its frame and those of the tasks
// it awaits, and takes it out of every queue; chains of any depth use a flat stack (hand_over).
// **Cost:** one frame allocation a call, ~50 ns an await.
//
// With g++ 12, never brace-initialise an aggregate inside a co_await expression when a member has a
// destructor: `co_await f(Options{.name = text()})` destroys the member twice, and a braced list
// may not compile. Name the object first. Classes with constructors are not affected.

#include "runtime/task/executor_core.hpp"
#include "runtime/task/failure.hpp"
#include "runtime/task/pending.hpp"

#include <coroutine>
#include <exception>
#include <utility>
#include <variant>

namespace troupe::runtime {

template <class T>
class task;

/// What promises of all T share.
class TaskPromiseBase {
 public:
  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    void await_suspend(std::coroutine_handle<Promise> handle) const noexcept {
      hand_over(handle.promise().parent_);
    }
    void await_resume() const noexcept {}
  };
  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  const TaskContext& context() const { return *context_; }
  void adopt(std::coroutine_handle<> parent, const TaskContext& context) {
    parent_ = parent;
    context_ = &context;
  }

 private:
  std::coroutine_handle<> parent_;
  const TaskContext* context_ = nullptr;  // lives in the root, above all its children
};

template <class T>
class TaskPromise_ final : public TaskPromiseBase {
 public:
  task<T> get_return_object() noexcept;
  template <class Value>
  requires std::convertible_to<Value, T>
  void return_value(Value&& value) { outcome_.template emplace<1>(std::forward<Value>(value)); }
  void unhandled_exception() noexcept { outcome_.template emplace<2>(std::current_exception()); }
  T take() {
    if (outcome_.index() == 2) std::rethrow_exception(std::get<2>(outcome_));
    return std::move(std::get<1>(outcome_));
  }

 private:
  std::variant<std::monostate, T, std::exception_ptr> outcome_;
};

template <>
class TaskPromise_<void> final : public TaskPromiseBase {
 public:
  task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void unhandled_exception() noexcept { exception_ = std::current_exception(); }
  void take() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::exception_ptr exception_;
};

template <class T>
class [[nodiscard]] task {
 public:
  using promise_type = TaskPromise_<T>;
  using value_type = T;
  using Handle = std::coroutine_handle<promise_type>;

  task() = default;
  explicit task(Handle handle) : handle_(handle) {}
  task(task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  task& operator=(task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~task() {
    if (handle_) handle_.destroy();
  }
  bool valid() const { return static_cast<bool>(handle_); }

  /// Trivial on purpose: the frame stays with the task, so nothing is destroyed twice by the
  /// awaiter temporaries of g++ 12.
  struct Awaiter {
    Handle handle;
    bool await_ready() const { return false; }
    template <TaskPromise Promise>
    void await_suspend(std::coroutine_handle<Promise> parent) const {
      handle.promise().adopt(parent, parent.promise().context());
      hand_over(handle);
    }
    result<T> await_result() const {
      try {
        if constexpr (std::is_void_v<T>) {
          handle.promise().take();
          return {};
        } else {
          return handle.promise().take();
        }
      } catch (const Failure& failure) {
        return fail(failure.error());
      }
    }
    T await_resume() const { return handle.promise().take(); }
  };
  Awaiter operator co_await() && {
    TROUPE_CHECK(handle_ && !handle_.done(), "task: awaited twice, or empty");
    return Awaiter{handle_};
  }
  Awaiter operator co_await() & { return std::move(*this).operator co_await(); }

 private:
  Handle handle_;
};

template <class T>
task<T> TaskPromise_<T>::get_return_object() noexcept {
  return task<T>(std::coroutine_handle<TaskPromise_<T>>::from_promise(*this));
}
inline task<void> TaskPromise_<void>::get_return_object() noexcept {
  return task<void>(std::coroutine_handle<TaskPromise_<void>>::from_promise(*this));
}

/// A task or a pending: `value_type`, and an awaiter that can also say its result.
template <class A>
concept Awaitable = requires(A&& awaitable) {
  typename std::remove_cvref_t<A>::value_type;
  {std::move(awaitable).operator co_await().await_result()};
};

/// `result<Batch> r = co_await as_result(group.call<&W::m>(batch));` does not throw `Failure`;
/// other exceptions (a failed CHECK) still pass.
template <Awaitable A>
struct AsResult {
  A inner;
  struct Awaiter {
    decltype(std::declval<A>().operator co_await()) inner;
    bool await_ready() { return inner.await_ready(); }
    template <TaskPromise Promise>
    auto await_suspend(std::coroutine_handle<Promise> handle) {
      return inner.await_suspend(handle);
    }
    result<typename A::value_type> await_resume() { return inner.await_result(); }
  };
  Awaiter operator co_await() && { return Awaiter{std::move(inner).operator co_await()}; }
};
template <Awaitable A>
AsResult<A> as_result(A awaitable) {
  return AsResult<A>{std::move(awaitable)};
}

}  // namespace troupe::runtime

#pragma once

// The children of one combinator: started together, waited for, called off together.
//
// Used by when.hpp and deadline.hpp; a combinator of your own can use it too.
// **Threads:** the executor's.
// **Invariants:** after `stop`, and after destruction, no child task is left.

#include "runtime/task/executor.hpp"

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace troupe::runtime {

/// How long a cancelled child may take to end before its frame is destroyed.
inline constexpr Duration kChildGrace = std::chrono::milliseconds(100);

class ChildScope {
 public:
  /// Children inherit `context`.
  explicit ChildScope(const TaskContext& context) : context_(context) {}
  /// Children run under no token.
  explicit ChildScope(Ref<ExecutorCore> executor) : context_{std::move(executor), CancelToken()} {}
  ChildScope(const ChildScope&) = delete;
  ChildScope& operator=(const ChildScope&) = delete;
  ~ChildScope();

  template <class T>
  Ref<PendingState<T>> add(task<T> work) {
    // The children have a token of their own: the parent's cancellation reaches them through
    // `stop`, which then also waits for them.
    const CancelSource source;
    auto started = start(context_.executor, std::move(work), source.token());
    auto state = started.outcome.shared();
    children_.push_back(Child{state, true, source, started.id});
    return state;
  }
  template <class T>
  Ref<PendingState<T>> add(pending<T> work) {
    auto state = work.shared();
    TROUPE_CHECK(state, "pending: empty; it was awaited, forgotten or moved away");
    children_.push_back(Child{state, false, CancelSource(), 0});
    return state;
  }
  /// Anything else with a value_type, such as as_result, is not a child: wrap it in a task.

  /// Until all have a value; at the first error, or when cancelled, stops the rest and throws.
  task<void> all_or_throw();
  /// Index of the first that is over, by value or error; throws when cancelled.
  task<std::size_t> first_or_throw();
  /// Until the only child is over; throws kDeadline at `until`, or the reason of the caller's or
  /// the `extra` token, after stopping it.
  task<void> over_or_throw(TimePoint until, CancelToken extra);
  /// Calls off what is not over and waits for it, at most kChildGrace.
  task<void> stop(Error reason);

 private:
  struct Child {
    Ref<PendingBase> state;
    bool is_task;
    CancelSource source;
    RootId root;
  };
  TaskContext context_;
  std::vector<Child> children_;
};

/// Index of the first event that has happened; throws the reason when cancelled, and
/// kInvalidArgument when there are none.
task<std::size_t> first_of(std::vector<Ref<Signal>> events);
/// Whether `event` has happened by `until`; throws the reason when cancelled.
task<bool> over_by(Ref<Signal> event, TimePoint until);

}  // namespace troupe::runtime

#pragma once

// `with_deadline`: bounds any wait.
//
// **Threads:** the executor's; compares with the executor's clock.
// **Invariants:** ends by the deadline plus at most `kChildGrace`; then the child is over or
// destroyed. An observer that only wants to look uses `ready_within`, which calls nothing off.

#include "runtime/task/child_scope.hpp"

#include <utility>

namespace troupe::runtime {

/// The value of `awaitable`; kDeadline when it is not over in time, after it was called off.
template <Awaitable A>
task<typename A::value_type> with_deadline(A awaitable, Deadline deadline) {
  ChildScope scope(co_await this_context());
  const auto state = scope.add(std::move(awaitable));
  co_await scope.over_or_throw(deadline.at, CancelToken());
  co_return value_or_throw(state->take());
}

/// Whether `one` is over by `deadline`; leaves it as it is. `one` outlives the wait.
template <class T>
task<bool> ready_within(const pending<T>& one, Deadline deadline) {
  return over_by(Ref<Signal>(one.shared()), deadline.at);
}

}  // namespace troupe::runtime

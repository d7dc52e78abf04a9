#pragma once

// Combinators: `when_all`, `when_any`, and running work under another cancel token.
//
// Each takes tasks or pendings. Tasks are started as children of the awaiting coroutine, so they
// overlap; none outlives the combinator.
// **Threads:** the executor's.
// **Invariants:** the error of `when_all` is the first one in time, never that of a child which was
// cancelled because of it; children that are called off get `kChildGrace` to end (they see
// kCancelled at their wait), then their frames are destroyed where they are suspended.

#include "runtime/task/child_scope.hpp"

#include <cstddef>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// T, or std::monostate for void.
template <class T>
using Unit = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

/// The value of a pending that is over, as a Unit; throws its error.
template <class T>
Unit<T> take_unit(PendingState<T>& state) {
  if constexpr (std::is_void_v<T>) {
    value_or_throw(state.take());
    return {};
  } else {
    return value_or_throw(state.take());
  }
}

/// `auto [a, b] = co_await when_all(first(), group.call<&W::m>(x));`
/// Cancelled from outside, it ends with that reason after its children have ended.
template <Awaitable... A>
task<std::tuple<Unit<typename A::value_type>...>> when_all(A... awaitables) {
  ChildScope scope(co_await this_context());
  std::tuple<Ref<PendingState<typename A::value_type>>...> states{
      scope.add(std::move(awaitables))...};
  co_await scope.all_or_throw();
  co_return std::apply(
      [](auto&... state) {
        return std::tuple<Unit<typename A::value_type>...>{take_unit(*state)...};
      },
      states);
}

/// All of a vector, values in its order. An empty vector is over at once.
template <Awaitable A>
task<std::vector<Unit<typename A::value_type>>> when_all(std::vector<A> awaitables) {
  using T = typename A::value_type;
  ChildScope scope(co_await this_context());
  std::vector<Ref<PendingState<T>>> states;
  for (auto& awaitable : awaitables) states.push_back(scope.add(std::move(awaitable)));
  co_await scope.all_or_throw();
  std::vector<Unit<T>> values;
  values.reserve(states.size());
  for (auto& state : states) values.push_back(take_unit(*state));
  co_return values;
}

template <class T>
struct AnyOf {
  std::size_t index = 0;
  Unit<T> value;
};

/// The first that is over, by value or error; the others are called off. kInvalidArgument when
/// there is none.
template <Awaitable A>
task<AnyOf<typename A::value_type>> when_any(std::vector<A> awaitables) {
  using T = typename A::value_type;
  ChildScope scope(co_await this_context());
  std::vector<Ref<PendingState<T>>> states;
  for (auto& awaitable : awaitables) states.push_back(scope.add(std::move(awaitable)));
  const std::size_t index = co_await scope.first_or_throw();
  const Error reason = cancelled("when_any: another one was first");
  co_await scope.stop(reason);
  co_return AnyOf<T>{index, take_unit(*states[index])};
}

/// Waits until one of `pendings` is over and returns its index; takes no value and calls nothing
/// off, so the rest can be waited for again. Ready ones win in index order. `pendings` outlives
/// the wait.
template <class T>
task<std::size_t> first_ready(const std::vector<pending<T>>& pendings) {
  std::vector<Ref<Signal>> events;
  for (const auto& one : pendings) events.push_back(one.shared());
  return first_of(std::move(events));
}

/// Runs `awaitable` under `token` besides the caller's own; ends with the reason of whichever is
/// cancelled first.
template <Awaitable A>
task<typename A::value_type> with_cancel(A awaitable, CancelToken token) {
  ChildScope scope(co_await this_context());
  const auto state = scope.add(std::move(awaitable));
  co_await scope.over_or_throw(TimePoint::max(), std::move(token));
  co_return value_or_throw(state->take());
}

/// Runs `awaitable` to its end even when the caller is, or gets, cancelled: for clean-up.
template <Awaitable A>
task<typename A::value_type> shielded(A awaitable) {
  const TaskContext& context = co_await this_context();
  ChildScope scope(context.executor);
  const auto state = scope.add(std::move(awaitable));
  co_await scope.over_or_throw(TimePoint::max(), CancelToken());
  co_return value_or_throw(state->take());
}

}  // namespace troupe::runtime

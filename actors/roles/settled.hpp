#pragma once

// `settled`: the outcome of a call as a value, for those who ask many groups and go on with the
// ones that answer.
//
// **Threads:** the executor's thread.

#include "runtime/task/failure.hpp"
#include "runtime/task/pending.hpp"
#include "runtime/task/task.hpp"

#include <optional>
#include <utility>

namespace troupe::actors {

/// Never throws `Failure`: also a caller that is cancelled gets its reason as the error.
template <class T>
runtime::task<result<T>> settled(runtime::pending<T> one) {
  std::optional<Error> error;
  try {
    T value = co_await std::move(one);
    co_return result<T>(std::move(value));
  } catch (const runtime::Failure& failure) {
    error = failure.error();
  }
  co_return result<T>(fail(*std::move(error)));
}

inline runtime::task<result<void>> settled(runtime::pending<void> one) {
  std::optional<Error> error;
  try {
    co_await std::move(one);
  } catch (const runtime::Failure& failure) {
    error = failure.error();
  }
  if (error) co_return result<void>(fail(*std::move(error)));
  co_return result<void>();
}

}  // namespace troupe::actors

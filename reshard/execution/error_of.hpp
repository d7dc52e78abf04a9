#pragma once

// An error as a value, for events and replies that carry one; `fail` makes it.
// **Threads:** a pure function.

#include "runtime/base/result.hpp"

#include <utility>

namespace troupe::reshard {

template <class... Args>
Error error_of(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return fail(code, format, std::forward<Args>(args)...).value();
}

}  // namespace troupe::reshard

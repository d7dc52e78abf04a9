#pragma once

// `result<T>`: a value or an `Error`, for failures that a caller should expect.
//
// **Threads:** a value type.
// **Invariants:** never holds a moved-from error; `fail(...)` formats with fmt.

#include "runtime/base/error.hpp"

#include <fmt/format.h>
#include <tl/expected.hpp>

#include <string>
#include <utility>

namespace troupe {

template <class T>
using result = tl::expected<T, Error>;

template <class... Args>
Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{.code = code,
               .message = fmt::format(format, std::forward<Args>(args)...),
               .origin = {},
               .causes = {}};
}

/// `return fail(ErrorCode::kIo, "{}: cannot open", path);`
template <class... Args>
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format,
                                         Args&&... args) {
  return tl::unexpected<Error>(make_error(code, format, std::forward<Args>(args)...));
}

/// Hands an existing error on: `return fail(std::move(r).error());`
[[nodiscard]] inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace troupe

#define TROUPE_CONCAT_INNER(a, b) a##b
#define TROUPE_CONCAT(a, b) TROUPE_CONCAT_INNER(a, b)

/// `TROUPE_TRY(auto batch, load(path));` declares `batch`, or returns the error to the caller.
#define TROUPE_TRY(declaration, ...)                                                \
  auto TROUPE_CONCAT(troupe_try_, __LINE__) = (__VA_ARGS__);                        \
  if (!TROUPE_CONCAT(troupe_try_, __LINE__))                                        \
    return ::troupe::fail(std::move(TROUPE_CONCAT(troupe_try_, __LINE__)).error()); \
  declaration = std::move(*TROUPE_CONCAT(troupe_try_, __LINE__))

/// For `result<void>`: returns the error to the caller, otherwise goes on.
#define TROUPE_TRY_VOID(...)                                                         \
  do {                                                                               \
    auto troupe_try_void = (__VA_ARGS__);                                            \
    if (!troupe_try_void) return ::troupe::fail(std::move(troupe_try_void).error()); \
  } while (false)

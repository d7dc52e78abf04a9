#pragma once

// CHECK for programmer errors: always on, names the condition and both values.
//
// A failed check throws `CheckFailure`, which only the three doors catch (engine-thread entry,
// actor handler wrapper, `main`): it kills the rank, not the controller.
// **Threads:** any.

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace troupe {

class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_check_failure(const char* file, int line, const char* condition,
                                      const std::string& message);

}  // namespace troupe

/// `TROUPE_CHECK(rows == wanted, "batch: {} rows, wanted {}", rows, wanted);`
#define TROUPE_CHECK(condition, ...)                                                             \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      ::troupe::throw_check_failure(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)

/// Compiled out with NDEBUG unless TROUPE_DCHECKS is defined; for hot loops.
#if !defined(NDEBUG) || defined(TROUPE_DCHECKS)
#define TROUPE_DCHECK(condition, ...) TROUPE_CHECK(condition, __VA_ARGS__)
#else
#define TROUPE_DCHECK(condition, ...) \
  do {                                \
  } while (false)
#endif

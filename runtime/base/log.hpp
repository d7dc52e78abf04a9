#pragma once

// Log lines: level, time, message; one sink set up by `main` (stderr, and a file in a run).
//
// **Threads:** any thread may log; set-up happens once, before other threads start.
// **Cost:** a filtered line costs one load; spdlog stays behind the .cpp.

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace troupe::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

/// Sends lines of at least `level` to stderr and, when `file` is not empty, to that file too.
void set_up(Level level, const std::string& file = {});
Level level();
void write(Level level, std::string_view line);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::kDebug)
    write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::kInfo)
    write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::kWarn)
    write(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (level() <= Level::kError)
    write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace troupe::log

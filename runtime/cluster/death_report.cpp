#include "runtime/cluster/death_report.hpp"

#include <array>
#include <csignal>
#include <string_view>

namespace troupe::runtime {
namespace {

/// What runtimes print when an allocation fails.
constexpr std::array<std::string_view, 6> kMemorySigns{
    "std::bad_alloc", "Cannot allocate memory", "can't allocate memory",
    "out of memory",  "failed to allocate",     "failed to map segment",
};

bool failed(const ProcessExit& exit) {
  return exit.kind == ProcessExit::Kind::kSignalled ||
         (exit.kind == ProcessExit::Kind::kExited && exit.code != 0);
}

/// The stop explains this end: other signals are the process's own fault even then.
bool ended_by_stop(const ProcessExit& exit) {
  if (exit.stop_reason.empty() || exit.kind == ProcessExit::Kind::kNotStarted) return false;
  return exit.kind == ProcessExit::Kind::kExited || exit.signal == SIGTERM ||
         (exit.signal == SIGKILL && exit.we_killed);
}

const std::string* memory_line(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    for (const std::string_view sign : kMemorySigns) {
      if (line->find(sign) != std::string::npos) return &*line;
    }
  }
  return nullptr;
}

std::string ending(const ProcessExit& exit) {
  if (exit.kind == ProcessExit::Kind::kExited) return fmt::format("exited with code {}", exit.code);
  return fmt::format("was killed by signal {} ({}){}", exit.signal, signal_name(exit.signal),
                     exit.core_dumped ? " and dumped core" : "");
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string out_of_memory_reason(const ProcessExit& exit, const std::vector<std::string>& lines) {
  if (!failed(exit)) return {};
  const std::string limit =
      exit.memory_limit ? fmt::format(", its limit was {}", to_string(*exit.memory_limit)) : "";
  if (exit.kind == ProcessExit::Kind::kSignalled && exit.signal == SIGKILL) {
    if (exit.oom_kills > 0 && exit.stop_reason.empty())
      return "killed by the kernel for lack of memory" + limit;
    return {};
  }
  if (const std::string* line = memory_line(lines))
    return fmt::format("it said `{}`{}", std::string_view(*line).substr(0, 200), limit);
  return {};
}

bool DeathReport::expected() const {
  if (exit.kind == ProcessExit::Kind::kExited && exit.code == 0) return true;
  return asked && ended_by_stop(exit);
}

std::string DeathReport::first_line() const {
  const std::string who =
      fmt::format("{} rank {}{}{}", group, rank.value, node.empty() ? "" : " on ", node);
  const std::string after = fmt::format("after {:.1f} s", seconds(exit.wall));
  if (exit.kind == ProcessExit::Kind::kNotStarted)
    return fmt::format("{} could not be started: {}", who, exit.start_error);
  if (ended_by_stop(exit)) {
    if (asked) return fmt::format("{} ended as asked {}: {}", who, after, exit.stop_reason);
    return fmt::format("{} was stopped by its {} {}: {}", who, node.empty() ? "launcher" : "agent",
                       after, exit.stop_reason);
  }
  const std::string memory = out_of_memory_reason(exit, last_lines);
  if (!memory.empty()) {
    const bool kernel = exit.kind == ProcessExit::Kind::kSignalled && exit.signal == SIGKILL;
    return fmt::format("{} ran out of memory {}{}: {}", who, after,
                       kernel ? "" : fmt::format(" and {}", ending(exit)), memory);
  }
  std::string line = fmt::format("{} {} {}", who, ending(exit), after);
  if (!exit.stop_reason.empty())
    line += fmt::format(" while it was being stopped: {}", exit.stop_reason);
  return line;
}

std::string DeathReport::to_text() const {
  std::string text = first_line();
  if (exit.kind != ProcessExit::Kind::kNotStarted) {
    text += fmt::format("\n  pid {}, cpu {:.1f} s", pid, seconds(exit.cpu));
    if (exit.peak_memory.value > 0)
      text += fmt::format(", peak memory {}", to_string(exit.peak_memory));
    if (exit.memory_limit) text += fmt::format(", memory limit {}", to_string(*exit.memory_limit));
  }
  for (const std::string& detail : details) text += "\n  " + detail;
  if (!last_lines.empty()) text += fmt::format("\n  its last {} lines:", last_lines.size());
  for (const std::string& line : last_lines) text += "\n  | " + line;
  return text;
}

Error DeathReport::to_error() const {
  return Error{.code = ErrorCode::kRankDead,
               .message = to_text(),
               .origin = {.group = group, .rank = rank, .node = std::nullopt},
               .causes = {}};
}

}  // namespace troupe::runtime

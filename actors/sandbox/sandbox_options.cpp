#include "actors/sandbox/sandbox_options.hpp"

#include <array>
#include <system_error>
#include <utility>

namespace troupe::actors {
namespace {

result<void> within(const std::string& place, const char* what, std::int64_t value,
                    std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    return fail(ErrorCode::kInvalidArgument, "{}: {} is {}, wanted {} to {}", place, what, value,
                low, high);
  return {};
}

std::int64_t milliseconds(Duration span) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(span).count();
}

}  // namespace

result<void> SandboxLimits::check(const std::string& place) const {
  constexpr std::int64_t kDayMs = 86'400'000;
  constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
  TROUPE_TRY_VOID(within(place, "sample_wall ms", milliseconds(sample_wall), 1, kDayMs));
  TROUPE_TRY_VOID(within(place, "sample_cpu ms", milliseconds(sample_cpu), 1, kDayMs));
  TROUPE_TRY_VOID(within(place, "start ms", milliseconds(start), 1, kDayMs));
  TROUPE_TRY_VOID(within(place, "memory", memory.value, 16 * kMebibyte, kMebibyte << 20));
  TROUPE_TRY_VOID(within(place, "scratch", scratch.value, 4096, kMebibyte << 20));
  TROUPE_TRY_VOID(within(place, "answer", answer.value, 16, 64 * kMebibyte));
  TROUPE_TRY_VOID(within(place, "open_files", open_files, 8, 1 << 20));
  return within(place, "processes", processes, 1, 4000);
}

result<void> SandboxOptions::check() const {
  if (command.empty() || command.front().empty())
    return fail(ErrorCode::kInvalidArgument, "{}: command is empty", name);
  for (const std::string& folder : hidden_folders) {
    if (!folder.starts_with('/') || folder.find('\n') != std::string::npos)
      return fail(ErrorCode::kInvalidArgument, "{}: hidden folder '{}', wanted an absolute path",
                  name, folder);
  }
  for (const auto& [key, value] : environment) {
    if (key.empty() || key.find('=') != std::string::npos)
      return fail(ErrorCode::kInvalidArgument, "{}: environment: name '{}'", name, key);
  }
  TROUPE_TRY_VOID(within(name, "workers", workers, 1, 256));
  TROUPE_TRY_VOID(within(name, "samples_per_worker", samples_per_worker, 1, 1'000'000'000));
  TROUPE_TRY_VOID(within(name, "samples_ahead", samples_ahead, 1, 1024));
  TROUPE_TRY_VOID(within(name, "failures_at_start_max", failures_at_start_max, 1, 1'000'000));
  return limits.check(name);
}

std::vector<std::string> absolute_command(std::vector<std::string> command,
                                          const std::filesystem::path& folder) {
  for (std::string& word : command) {
    std::error_code ignored;
    const std::filesystem::path path = folder / word;
    if (!word.empty() && std::filesystem::is_regular_file(path, ignored))
      word = std::filesystem::absolute(path).lexically_normal().string();
  }
  return command;
}

}  // namespace troupe::actors

#include "runtime/checkpoint/checkpoint_folders.hpp"

#include "runtime/base/log.hpp"
#include "runtime/batch/durable_file.hpp"
#include "runtime/checkpoint/checkpoint.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <functional>
#include <system_error>

namespace troupe::runtime {
namespace {

constexpr std::string_view kFolderPrefix = "global_step_";
constexpr std::string_view kTemporaryPrefix = ".global_step_";

template <class Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size() && value >= 0;
  return whole && fmt::format("{}", value) == text ? std::optional(value) : std::nullopt;
}

/// Process that made `.global_step_N.tmp-PID-COUNT`, or the marker's sibling of that ending; empty
/// for other names.
std::optional<pid_t> maker_of(const std::string& name) {
  const auto tag = name.find(".tmp-");
  const bool ours = name.starts_with(kTemporaryPrefix) || name.find(kMarkerFile) == 1;
  if (!ours || name.front() != '.' || tag == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(tag + 5);
  return whole_number<pid_t>(rest.substr(0, rest.find('-')));
}

result<void> remove_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) return fail(ErrorCode::kIo, "{}: cannot remove: {}", folder.string(), error.message());
  return {};
}

/// Entries of `root` that `wanted` accepts; none when it is missing.
result<std::vector<std::filesystem::path>> entries(
    const std::filesystem::path& root, const std::function<bool(const std::string&)>& wanted) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  std::filesystem::directory_iterator walk(root, error);
  for (; !error && walk != std::filesystem::directory_iterator(); walk.increment(error)) {
    if (wanted(walk->path().filename().string())) found.push_back(walk->path());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail(ErrorCode::kIo, "{}: cannot list: {}", root.string(), error.message());
  return found;
}

}  // namespace

std::optional<std::int64_t> step_of_folder(const std::filesystem::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  return whole_number<std::int64_t>(std::string_view(name).substr(kFolderPrefix.size()));
}

result<std::vector<std::int64_t>> step_folders(const std::filesystem::path& root) {
  TROUPE_TRY(const auto folders, entries(root, [](const std::string& name) {
               return step_of_folder(name).has_value();
             }));
  std::vector<std::int64_t> steps;
  for (const auto& folder : folders) steps.push_back(*step_of_folder(folder));
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

result<std::optional<std::int64_t>> read_marker(const std::filesystem::path& root) {
  constexpr std::int64_t kMarkerBytesMax = 64;
  const std::filesystem::path path = root / kMarkerFile;
  result<AlignedBytes> content = read_file(path, kMarkerBytesMax);
  if (!content && content.error().code == ErrorCode::kNotFound)
    return std::optional<std::int64_t>{};
  if (!content) return fail(std::move(content).error());
  std::string_view text(reinterpret_cast<const char*>(content->bytes().data()),
                        content->bytes().size());
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  const auto step = whole_number<std::int64_t>(text);
  if (!step) return fail(ErrorCode::kCorrupt, "{}: '{}' is not a step", path.string(), text);
  return step;
}

result<OpenedFolder> open_folder(const std::filesystem::path& folder) {
  const std::filesystem::path index_path = folder / kIndexFile;
  const auto torn = [](std::string why) {
    return OpenedFolder{.index = {}, .torn = std::move(why)};
  };
  result<AlignedBytes> content = read_file(index_path, kIndexBytesMax);
  if (!content && content.error().code == ErrorCode::kNotFound)
    return torn(fmt::format("{} is missing", kIndexFile));
  if (!content) return fail(std::move(content).error());
  const auto bytes = std::as_const(*content).bytes();
  if (bytes.size() < claimed_index_bytes(bytes) || claimed_index_bytes(bytes) == 0)
    return torn(
        fmt::format("{} has {} bytes of {}", kIndexFile, bytes.size(), claimed_index_bytes(bytes)));
  result<CheckpointIndex> index = decode_index(bytes);
  if (!index) {
    Error error = std::move(index).error();
    error.message = fmt::format("{}: {}", index_path.string(), error.message);
    return fail(std::move(error));
  }
  for (const CheckpointFile& file : index->files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(folder / file.name, error);
    if (error) return torn(fmt::format("{}: {}", file.name, error.message()));
    if (size != static_cast<std::uint64_t>(file.bytes))
      return torn(fmt::format("{} has {} bytes, the index says {}", file.name, size, file.bytes));
  }
  const auto step = step_of_folder(folder);
  if (step && *step != index->step)
    return fail(ErrorCode::kCorrupt, "{}: the index is of step {}", index_path.string(),
                index->step);
  return OpenedFolder{.index = *std::move(index), .torn = {}};
}

result<void> prune_folders(const std::filesystem::path& root, std::int64_t keep) {
  TROUPE_TRY(const auto left_behind, entries(root, [](const std::string& name) {
               const auto maker = maker_of(name);
               return maker && ::kill(*maker, 0) != 0 && errno == ESRCH;
             }));
  for (const auto& folder : left_behind) TROUPE_TRY_VOID(remove_folder(folder));
  if (keep <= 0) return {};
  TROUPE_TRY(const std::vector<std::int64_t> complete, complete_steps(root));
  if (complete.empty()) return {};
  const std::size_t kept = std::min(complete.size(), static_cast<std::size_t>(keep));
  const std::int64_t oldest_kept = complete[complete.size() - kept];
  TROUPE_TRY(const std::vector<std::int64_t> all, step_folders(root));
  for (const std::int64_t step : all) {
    if (step < oldest_kept) TROUPE_TRY_VOID(remove_folder(checkpoint_folder(root, step)));
  }
  return {};
}

std::filesystem::path temporary_folder(const std::filesystem::path& root, std::int64_t step) {
  static std::atomic<std::uint64_t> count{0};
  return root / fmt::format("{}{}.tmp-{}-{}", kTemporaryPrefix, step, ::getpid(), ++count);
}

}  // namespace troupe::runtime

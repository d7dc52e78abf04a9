#pragma once

// Which checkpoint directories lie under a root, and which of them are whole. For the sources of
// runtime/checkpoint only.
//
// **Threads:** functions of the file system; no state.
// **Invariants:** a directory is torn when its index or a file is missing or has another size than
// was written: what an interrupted copy or a full disk leaves. Damage of content is not a tear.

#include "runtime/base/result.hpp"
#include "runtime/checkpoint/index_codec.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Step of a directory called `global_step_N`; empty for any other name.
std::optional<std::int64_t> step_of_folder(const std::filesystem::path& folder);

/// Steps of all `global_step_N` under `root`, newest first; none when the root is missing.
result<std::vector<std::int64_t>> step_folders(const std::filesystem::path& root);

/// What the marker says; empty when there is none, kCorrupt when it is not a step.
result<std::optional<std::int64_t>> read_marker(const std::filesystem::path& root);

/// An index with its folder's files checked, or why the folder is torn.
struct OpenedFolder {
  CheckpointIndex index;
  std::string torn;  ///< empty when whole
};
/// kCorrupt when the index is there in full length but damaged.
result<OpenedFolder> open_folder(const std::filesystem::path& folder);

/// Removes complete checkpoints beyond the newest `keep` (all stay when 0), torn ones older than
/// the oldest kept, and what dead writers left behind.
result<void> prune_folders(const std::filesystem::path& root, std::int64_t keep);

/// Name of the temporary folder of this process for `step`, distinct at each call.
std::filesystem::path temporary_folder(const std::filesystem::path& root, std::int64_t step);

}  // namespace troupe::runtime

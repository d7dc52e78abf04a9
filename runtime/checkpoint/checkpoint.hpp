#pragma once

// Checkpoint directories: written whole or not at all, checked when read.
//
// Under one root, step N is the directory `global_step_N`: data files of named tensors and blobs,
// and `index.bin`, which lists them with sizes and checksums and holds JSON states. A writer fills
// a temporary sibling, flushes it, renames it into place, and last writes the root's marker
// `latest_checkpointed_iteration.txt`. A step is complete when its directory is whole and the
// marker has reached it.
// **Threads:** a writer belongs to one thread; a reader may be shared. One writer a root at a time.
// **Invariants:** a kill at any moment leaves the last complete checkpoint readable; pruning never
// removes the newest complete one; nothing read from disk is trusted.
// **Cost:** writing streams, and copies nothing but into the page cache.

#include "runtime/base/result.hpp"
#include "runtime/batch/column.hpp"
#include "runtime/batch/durable_file.hpp"
#include "runtime/checkpoint/index_codec.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

inline constexpr std::string_view kMarkerFile = "latest_checkpointed_iteration.txt";
inline constexpr std::string_view kIndexFile = "index.bin";

/// `root/global_step_N`.
std::filesystem::path checkpoint_folder(const std::filesystem::path& root, std::int64_t step);

struct CheckpointWriterOptions {
  std::filesystem::path root;  ///< created when missing
  std::int64_t step = 0;       ///< ≥ 0
  std::int64_t keep = 0;       ///< complete checkpoints to keep, this one included; 0 keeps all
  std::int64_t file_bytes_max = std::int64_t{2}
                                << 30;  ///< a data file takes no more once past this
};

class CheckpointWriter {
 public:
  /// Opens an empty temporary sibling of `root/global_step_N`.
  static result<CheckpointWriter> begin(CheckpointWriterOptions options);
  CheckpointWriter(CheckpointWriter&& other) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&&) = delete;
  /// Removes the temporary folder unless committed.
  ~CheckpointWriter();

  /// `bytes` are those of `shape`; kAlreadyExists when the name is taken.
  result<void> add_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
                          std::span<const std::byte> bytes);
  template <ColumnValue T>
  result<void> add_tensor(std::string name, std::vector<std::int64_t> shape,
                          std::span<const T> values) {
    return add_tensor(std::move(name), DTypeOf<T>::value, std::move(shape), std::as_bytes(values));
  }
  /// Bytes of any meaning.
  result<void> add_blob(std::string name, std::span<const std::byte> bytes);
  /// One JSON text; states are for what fits in memory many times over.
  result<void> add_state(std::string name, std::string json);

  /// Makes the checkpoint complete, then prunes. Replaces an earlier one of the same step. Returns
  /// the directory. Call once; after an error the old state of the root stands.
  result<std::filesystem::path> commit();

 private:
  CheckpointWriter(CheckpointWriterOptions options, std::filesystem::path folder);
  result<CheckpointSection> append(std::span<const std::byte> bytes);
  result<void> close_file();

  CheckpointWriterOptions options_;
  std::filesystem::path folder_;  ///< temporary; empty once renamed or moved from
  CheckpointIndex index_;
  std::optional<FileWriter> file_;
};

/// An opened checkpoint. Opening reads the index and checks the presence and size of every file;
/// content is checked against its checksum when it is read.
class Checkpoint {
 public:
  static result<Checkpoint> open(const std::filesystem::path& folder);
  /// The newest complete checkpoint under `root`; empty when there is none. Directories that are
  /// torn (a file missing or of the wrong size) or that the marker has not reached are skipped
  /// with a warning that names them. Damage inside whole files is a kCorrupt error.
  static result<std::optional<Checkpoint>> latest(const std::filesystem::path& root);

  const std::filesystem::path& folder() const { return folder_; }
  std::int64_t step() const { return index_.step; }
  const CheckpointIndex& index() const { return index_; }
  bool has_tensor(std::string_view name) const { return index_.tensors.contains(name); }

  /// Bytes of a tensor, aligned. kNotFound, or kCorrupt naming file, tensor and both checksums.
  result<AlignedBytes> tensor_bytes(std::string_view name) const;
  /// Elements of a tensor of element type `T`; another type is kConflict.
  template <ColumnValue T>
  requires(!std::is_same_v<T, bool>) result<std::vector<T>> tensor(std::string_view name)
  const;
  result<AlignedBytes> blob(std::string_view name) const;
  /// JSON text of a state.
  result<std::string> state(std::string_view name) const;
  /// Reads and checks everything.
  result<void> verify() const;

 private:
  Checkpoint(std::filesystem::path folder, CheckpointIndex index)
      : folder_(std::move(folder)), index_(std::move(index)) {}
  result<AlignedBytes> read(const std::string& what, const CheckpointSection& section) const;
  result<const CheckpointTensor*> find_tensor(std::string_view name, DType dtype) const;

  std::filesystem::path folder_;
  CheckpointIndex index_;
};

/// Steps of the complete checkpoints under `root`, oldest first.
result<std::vector<std::int64_t>> complete_steps(const std::filesystem::path& root);

template <ColumnValue T>
requires(!std::is_same_v<T, bool>) result<std::vector<T>> Checkpoint::tensor(std::string_view name)
const {
  TROUPE_TRY_VOID(find_tensor(name, DTypeOf<T>::value).map([](auto) {}));
  TROUPE_TRY(const AlignedBytes content, tensor_bytes(name));
  std::vector<T> values(content.bytes().size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), content.bytes().data(), content.bytes().size());
  return values;
}

}  // namespace troupe::runtime

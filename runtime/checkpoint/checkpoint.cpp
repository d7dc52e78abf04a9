#include "runtime/checkpoint/checkpoint.hpp"

#include "runtime/base/log.hpp"
#include "runtime/batch/checksum.hpp"
#include "runtime/checkpoint/checkpoint_folders.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

namespace troupe::runtime {
namespace {

/// Puts `from` in the place of `to`. When `to` exists the two are exchanged, so that there is no
/// moment without either, and `from` then names the old one.
result<void> put_in_place(const std::filesystem::path& from, const std::filesystem::path& to) {
  const auto rename = [](const std::filesystem::path& a, const std::filesystem::path& b,
                         unsigned flags) {
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), flags) == 0 ? 0 : errno;
  };
  const auto lacks_flag = [](int reason) { return reason == EINVAL || reason == ENOSYS; };
  int reason = rename(from, to, RENAME_NOREPLACE);
  if (reason == EEXIST) reason = rename(from, to, RENAME_EXCHANGE);
  if (lacks_flag(reason)) {
    // Without these flags the old folder steps aside first. A kill in between leaves neither in
    // place, and `latest` then falls back to an older step.
    const std::filesystem::path aside = from.string() + "-old";
    reason = rename(to, aside, 0);
    if (reason == 0 || reason == ENOENT) reason = rename(from, to, 0);
    if (reason == 0) {
      std::error_code ignored;  // left over at worst, and removed by later pruning
      std::filesystem::remove_all(aside, ignored);
    }
  }
  if (reason == 0) return {};
  return fail(ErrorCode::kIo, "{}: cannot rename to {}: {}", from.string(), to.string(),
              system_message(reason));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace

std::filesystem::path checkpoint_folder(const std::filesystem::path& root, std::int64_t step) {
  return root / fmt::format("global_step_{}", step);
}

CheckpointWriter::CheckpointWriter(CheckpointWriterOptions options, std::filesystem::path folder)
    : options_(std::move(options)), folder_(std::move(folder)) {
  index_.step = options_.step;
}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept
    : options_(std::move(other.options_)),
      folder_(std::exchange(other.folder_, {})),
      index_(std::move(other.index_)) {
  if (other.file_) file_.emplace(std::move(*other.file_));
}

CheckpointWriter::~CheckpointWriter() {
  if (folder_.empty()) return;
  std::error_code ignored;  // a leftover is removed by the next writer's pruning
  std::filesystem::remove_all(folder_, ignored);
}

result<CheckpointWriter> CheckpointWriter::begin(CheckpointWriterOptions options) {
  if (options.step < 0 || options.keep < 0 || options.file_bytes_max < 1)
    return fail(ErrorCode::kInvalidArgument,
                "checkpoint: step {}, keep {}, file_bytes_max {}, wanted ≥ 0, ≥ 0, ≥ 1",
                options.step, options.keep, options.file_bytes_max);
  const std::filesystem::path folder = temporary_folder(options.root, options.step);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fail(ErrorCode::kIo, "{}: cannot create: {}", folder.string(), error.message());
  return CheckpointWriter(std::move(options), folder);
}

result<void> CheckpointWriter::close_file() {
  if (!file_) return {};
  index_.files.back().bytes = file_->position();
  TROUPE_TRY_VOID(file_->finish());
  file_.reset();
  return {};
}

result<CheckpointSection> CheckpointWriter::append(std::span<const std::byte> bytes) {
  if (file_ && file_->position() >= options_.file_bytes_max) TROUPE_TRY_VOID(close_file());
  if (!file_) {
    const std::string name = fmt::format("data_{:05}.bin", index_.files.size());
    TROUPE_TRY(FileWriter file, FileWriter::create(folder_ / name));
    file_.emplace(std::move(file));
    index_.files.push_back({name, 0});
  }
  TROUPE_TRY_VOID(file_->align());
  const CheckpointSection section{.file = static_cast<std::uint32_t>(index_.files.size() - 1),
                                  .offset = file_->position(),
                                  .bytes = static_cast<std::int64_t>(bytes.size()),
                                  .checksum = crc32c(bytes)};
  TROUPE_TRY_VOID(file_->write(bytes));
  return section;
}

result<void> CheckpointWriter::add_tensor(std::string name, DType dtype,
                                          std::vector<std::int64_t> shape,
                                          std::span<const std::byte> bytes) {
  if (index_.tensors.contains(name))
    return fail(ErrorCode::kAlreadyExists, "checkpoint: tensor {}: added twice", name);
  const std::int64_t wanted = row_elements(shape) * dtype_bytes(dtype);
  if (wanted != static_cast<std::int64_t>(bytes.size()))
    return fail(ErrorCode::kInvalidArgument,
                "checkpoint: tensor {}: {} bytes, shape {} [{}] has {}", name, bytes.size(),
                dtype_name(dtype), fmt::join(shape, ", "), wanted);
  TROUPE_TRY(const CheckpointSection section, append(bytes));
  index_.tensors.emplace(std::move(name), CheckpointTensor{dtype, std::move(shape), section});
  return {};
}

result<void> CheckpointWriter::add_blob(std::string name, std::span<const std::byte> bytes) {
  if (index_.blobs.contains(name))
    return fail(ErrorCode::kAlreadyExists, "checkpoint: blob {}: added twice", name);
  TROUPE_TRY(const CheckpointSection section, append(bytes));
  index_.blobs.emplace(std::move(name), section);
  return {};
}

result<void> CheckpointWriter::add_state(std::string name, std::string json) {
  if (index_.states.contains(name))
    return fail(ErrorCode::kAlreadyExists, "checkpoint: state {}: added twice", name);
  if (!nlohmann::json::accept(json))
    return fail(ErrorCode::kInvalidArgument, "checkpoint: state {}: not a json text: {}", name,
                json.substr(0, 60));
  index_.states.emplace(std::move(name), std::move(json));
  return {};
}

result<std::filesystem::path> CheckpointWriter::commit() {
  TROUPE_CHECK(!folder_.empty(), "checkpoint: step {}: commit twice", options_.step);
  TROUPE_TRY_VOID(close_file());
  TROUPE_TRY(const std::vector<std::byte> index, encode_index(index_));
  TROUPE_TRY(FileWriter file, FileWriter::create(folder_ / kIndexFile));
  TROUPE_TRY_VOID(file.write(index));
  TROUPE_TRY_VOID(file.finish());
  TROUPE_TRY_VOID(sync_folder(folder_));
  const std::filesystem::path final_folder = checkpoint_folder(options_.root, options_.step);
  TROUPE_TRY_VOID(put_in_place(folder_, final_folder));
  TROUPE_TRY_VOID(sync_folder(options_.root));
  // After an exchange the temporary name holds the replaced checkpoint.
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
  folder_.clear();
  const std::string marker = fmt::format("{}\n", options_.step);
  TROUPE_TRY_VOID(write_file(options_.root / kMarkerFile, bytes_of(marker)));
  if (result<void> pruned = prune_folders(options_.root, options_.keep); !pruned)
    log::warn("{}: pruning old checkpoints: {}", options_.root.string(), pruned.error().message);
  return final_folder;
}

result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder) {
  TROUPE_TRY(OpenedFolder opened, open_folder(folder));
  if (!opened.torn.empty())
    return fail(ErrorCode::kCorrupt, "{}: checkpoint is torn: {}", folder.string(), opened.torn);
  return Checkpoint(folder, std::move(opened.index));
}

result<std::optional<Checkpoint>> Checkpoint::latest(const std::filesystem::path& root) {
  TROUPE_TRY(const std::vector<std::int64_t> steps, step_folders(root));
  TROUPE_TRY(const std::optional<std::int64_t> marked, read_marker(root));
  for (const std::int64_t step : steps) {
    const std::filesystem::path folder = checkpoint_folder(root, step);
    if (!marked || step > *marked) {
      log::warn("{}: skipped: {} {}", folder.string(), kMarkerFile,
                marked ? fmt::format("has reached step {} only", *marked) : "is missing");
      continue;
    }
    TROUPE_TRY(OpenedFolder opened, open_folder(folder));
    if (opened.torn.empty())
      return std::optional<Checkpoint>(Checkpoint(folder, std::move(opened.index)));
    log::warn("{}: skipped, torn: {}", folder.string(), opened.torn);
  }
  return std::optional<Checkpoint>{};
}

result<std::vector<std::int64_t>> complete_steps(const std::filesystem::path& root) {
  TROUPE_TRY(const std::vector<std::int64_t> steps, step_folders(root));
  TROUPE_TRY(const std::optional<std::int64_t> marked, read_marker(root));
  std::vector<std::int64_t> complete;
  for (const std::int64_t step : steps) {
    if (!marked || step > *marked) continue;
    const result<OpenedFolder> opened = open_folder(checkpoint_folder(root, step));
    if (opened && opened->torn.empty()) complete.push_back(step);
  }
  std::reverse(complete.begin(), complete.end());
  return complete;
}

result<const CheckpointTensor*> Checkpoint::find_tensor(std::string_view name, DType dtype) const {
  const auto place = index_.tensors.find(name);
  if (place == index_.tensors.end())
    return fail(ErrorCode::kNotFound, "{}: no tensor {}", folder_.string(), name);
  if (place->second.dtype != dtype)
    return fail(ErrorCode::kConflict, "{}: tensor {}: holds {}, wanted {}", folder_.string(), name,
                dtype_name(place->second.dtype), dtype_name(dtype));
  return &place->second;
}

result<AlignedBytes> Checkpoint::read(const std::string& what,
                                      const CheckpointSection& section) const {
  const std::filesystem::path path = folder_ / index_.files[section.file].name;
  TROUPE_TRY(AlignedBytes content, read_file_part(path, section.offset, section.bytes));
  const std::uint32_t found = crc32c(std::as_const(content).bytes());
  if (found != section.checksum)
    return fail(ErrorCode::kCorrupt, "{}: {}: checksum {:08x}, wanted {:08x}", path.string(), what,
                found, section.checksum);
  return content;
}

result<AlignedBytes> Checkpoint::tensor_bytes(std::string_view name) const {
  const auto place = index_.tensors.find(name);
  if (place == index_.tensors.end())
    return fail(ErrorCode::kNotFound, "{}: no tensor {}", folder_.string(), name);
  return read(fmt::format("tensor {}", name), place->second.section);
}

result<AlignedBytes> Checkpoint::blob(std::string_view name) const {
  const auto place = index_.blobs.find(name);
  if (place == index_.blobs.end())
    return fail(ErrorCode::kNotFound, "{}: no blob {}", folder_.string(), name);
  return read(fmt::format("blob {}", name), place->second);
}

result<std::string> Checkpoint::state(std::string_view name) const {
  const auto place = index_.states.find(name);
  if (place == index_.states.end())
    return fail(ErrorCode::kNotFound, "{}: no state {}", folder_.string(), name);
  return place->second;
}

result<void> Checkpoint::verify() const {
  for (const auto& [name, tensor] : index_.tensors) {
    TROUPE_TRY_VOID(tensor_bytes(name).map([](const AlignedBytes&) {}));
  }
  for (const auto& [name, section] : index_.blobs) {
    TROUPE_TRY_VOID(blob(name).map([](const AlignedBytes&) {}));
  }
  return {};
}

}  // namespace troupe::runtime

#pragma once

// Files of aligned sections: read whole or in parts, written from start to end. Files that must be
// whole or absent are written with runtime/base/file.hpp.
//
// **Threads:** functions are re-entrant; a `FileWriter` belongs to one thread.
// **Invariants:** errors are kIo (the system refused), kNotFound, or kCorrupt (larger than the
// bound), and name the path and the system's reason.

#include "runtime/base/file.hpp"
#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

namespace troupe::runtime {

/// Sections on disk and wire start at multiples of this.
inline constexpr std::int64_t kSectionAlignment = 64;

constexpr std::int64_t aligned(std::int64_t offset) {
  return (offset + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

/// Shared bytes whose start is aligned to kSectionAlignment.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  /// `size` bytes of zeros; writable through `mutable_bytes` until shared.
  explicit AlignedBytes(std::size_t size);
  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  std::span<std::byte> mutable_bytes() { return {data_.get(), size_}; }
  std::shared_ptr<const void> owner() const { return data_; }

 private:
  std::shared_ptr<std::byte> data_;
  std::size_t size_ = 0;
};

/// The whole of a regular file of at most `bytes_max` bytes.
result<AlignedBytes> read_file(const std::filesystem::path& path, std::int64_t bytes_max);

/// Bytes [offset, offset + bytes) of a regular file; kCorrupt when it is shorter.
result<AlignedBytes> read_file_part(const std::filesystem::path& path, std::int64_t offset,
                                    std::int64_t bytes);

/// A file being written from start to end.
class FileWriter {
 public:
  /// Creates or empties `path`.
  static result<FileWriter> create(const std::filesystem::path& path);

  result<void> write(std::span<const std::byte> bytes);
  /// Zeros up to the next multiple of kSectionAlignment.
  result<void> align();
  /// Bytes written so far.
  std::int64_t position() const { return position_; }
  /// Flushes to the device and closes.
  result<void> finish();

 private:
  FileWriter(std::filesystem::path path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  Descriptor file_;
  std::int64_t position_ = 0;
};

}  // namespace troupe::runtime

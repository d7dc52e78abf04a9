#pragma once

// Whole small files in, and atomic replacement of files out.
//
// **Ownership:** an `AtomicFile` owns its temporary; it is removed unless `commit` succeeded.
// **Threads:** one object, one thread; different processes may replace the same file, last wins.
// **Invariants:** readers see the old file or the whole new one, also after a power cut
// (temporary sibling, fsync, rename, fsync of the folder).

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace troupe::actors {

inline constexpr std::uint64_t kTextFileBytesMax = std::uint64_t{256} << 20;

/// Errors: kNotFound, kIo, kCorrupt when the file is larger than `bytes_max`.
result<std::string> read_text_file(const std::filesystem::path& path,
                                   std::uint64_t bytes_max = kTextFileBytesMax);

class AtomicFile {
 public:
  static result<AtomicFile> create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  result<void> write(std::span<const std::byte> bytes);
  /// Makes the new content durable and visible. Call once, last.
  result<void> commit();

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int descriptor);
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_;
};

/// Replaces `path` by `text`, atomically.
result<void> write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace troupe::actors

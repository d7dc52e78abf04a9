#pragma once

// Whole files in, and files that are either whole on disk or not there: write beside, fsync,
// rename, fsync the folder.
//
// **Ownership:** an `AtomicFile` owns its temporary, which is removed unless `commit` succeeded.
// **Threads:** one object, one thread; several writers of one path race for the last word, and
// each leaves a whole file.
// **Invariants:** readers see the old file or the whole new one, also after a power cut. Errors
// are kNotFound, kIo (the system refused) or kCorrupt (larger than the bound), and name the path
// and the system's reason.

#include "runtime/base/result.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

inline constexpr std::uint64_t kTextFileBytesMax = std::uint64_t{256} << 20;

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  bool is_open() const { return value_ >= 0; }
  int value() const { return value_; }
  /// What ::close says; 0 when it was closed already.
  int close();

 private:
  int value_;
};

/// `PATH: cannot WHAT: REASON`; kNotFound when `reason` is ENOENT, else kIo.
tl::unexpected<Error> file_refused(const std::filesystem::path& path, std::string_view what,
                                   int reason);

/// Puts all of `bytes` out at the descriptor's position.
result<void> write_all(const Descriptor& file, const std::filesystem::path& path,
                       std::span<const std::byte> bytes);

/// Makes the names in `folder` durable, where the file system can.
result<void> sync_folder(const std::filesystem::path& folder);

/// The folder that `path` lies in; `.` for a bare name.
std::filesystem::path folder_of(const std::filesystem::path& path);

/// The whole of a regular file.
result<std::string> read_text_file(const std::filesystem::path& path,
                                   std::uint64_t bytes_max = kTextFileBytesMax);

/// The next content of a file, while it is being written.
class AtomicFile {
 public:
  static result<AtomicFile> create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&& other) noexcept = default;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  result<void> write(std::span<const std::byte> bytes);
  /// Makes the new content durable and visible. Call once, last.
  result<void> commit();

 private:
  AtomicFile(std::filesystem::path path, std::filesystem::path temporary, Descriptor file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {}
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Descriptor file_;
};

/// Replaces `path` by these bytes, atomically and durably.
result<void> write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
/// The same for text.
result<void> write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace troupe

#pragma once

// A file of weights, mapped to be read.
//
// **Ownership:** owns the mapping; spans of it die with it, but not when it is moved.
// **Threads:** const access from any thread.
// **Invariants:** `bytes()` is the whole file as it was when opened, if writers of it replace and
// never change it in place (runtime/base/file.hpp).

#include "runtime/base/result.hpp"

#include <cstddef>
#include <filesystem>
#include <span>

namespace troupe::actors {

class MappedFile {
 public:
  /// Errors: kNotFound, kIo (not a regular file, or the system refused).
  static result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;  ///< no bytes
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace troupe::actors

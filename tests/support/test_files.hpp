#pragma once

// Where tests find files: the shared folder, fixtures, and a temporary folder of their own.
//
// **Ownership:** a `TemporaryFolder` removes itself and all in it.
// **Threads:** one object, one thread.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace troupe::testing {

/// `$TROUPE_SHARED`, else `shared` beside the source tree; may not exist.
inline std::filesystem::path shared_folder() {
  if (const char* named = std::getenv("TROUPE_SHARED"); named != nullptr) return named;
  return std::filesystem::path(TROUPE_SOURCE_DIR).parent_path() / "shared";
}

inline std::filesystem::path stories_folder() { return shared_folder() / "models/stories260K"; }

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "troupe-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot make " << name;
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream.good()) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  EXPECT_TRUE(stream.flush().good()) << path;
}

}  // namespace troupe::testing

#include "actors/text/file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

namespace troupe::actors {

result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t bytes_max) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return fail(ErrorCode::kNotFound, "{}: no such file", path.string());
  if (status.type() != std::filesystem::file_type::regular)
    return fail(ErrorCode::kIo, "{}: not a readable regular file", path.string());
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) return fail(ErrorCode::kIo, "{}: {}", path.string(), error.message());
  if (size > bytes_max)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, more than the {} this kind of file may have",
                path.string(), size, bytes_max);
  std::ifstream stream(path, std::ios::binary);
  std::string text(size, '\0');
  if (!stream.read(text.data(), static_cast<std::streamsize>(size)))
    return fail(ErrorCode::kIo, "{}: read {} of {} bytes", path.string(), stream.gcount(), size);
  return text;
}

AtomicFile::AtomicFile(std::filesystem::path path, std::filesystem::path temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::filesystem::path temporary = path;
    temporary += fmt::format(".{}-{}.tmp", ::getpid(), attempt);
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) return AtomicFile(path, std::move(temporary), descriptor);
    if (errno != EEXIST)
      return fail(ErrorCode::kIo, "{}: cannot create: {}", temporary.string(),
                  std::strerror(errno));
  }
  return fail(ErrorCode::kIo, "{}: {} temporaries are in the way", path.string(), kAttempts);
}

result<void> AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return fail(ErrorCode::kIo, "{}: cannot write: {}", temporary_.string(),
                  std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

result<void> AtomicFile::commit() {
  if (::fsync(descriptor_) != 0)
    return fail(ErrorCode::kIo, "{}: cannot sync: {}", temporary_.string(), std::strerror(errno));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return fail(ErrorCode::kIo, "{}: cannot rename to {}: {}", temporary_.string(), path_.string(),
                std::strerror(errno));
  ::close(std::exchange(descriptor_, -1));
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor < 0)
    return fail(ErrorCode::kIo, "{}: cannot open: {}", folder.string(), std::strerror(errno));
  const int synced = ::fsync(folder_descriptor);
  const int reason = errno;
  ::close(folder_descriptor);
  // Some file systems cannot sync a folder (EINVAL); the rename itself has happened.
  if (synced != 0 && reason != EINVAL)
    return fail(ErrorCode::kIo, "{}: cannot sync: {}", folder.string(), std::strerror(reason));
  return {};
}

result<void> write_text_file(const std::filesystem::path& path, std::string_view text) {
  TROUPE_TRY(AtomicFile file, AtomicFile::create(path));
  TROUPE_TRY_VOID(file.write(std::as_bytes(std::span(text.data(), text.size()))));
  return file.commit();
}

}  // namespace troupe::actors

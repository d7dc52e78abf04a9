#include "runtime/base/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace troupe {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    value_ = std::exchange(other.value_, -1);
  }
  return *this;
}

int Descriptor::close() { return value_ < 0 ? 0 : ::close(std::exchange(value_, -1)); }

tl::unexpected<Error> file_refused(const std::filesystem::path& path, std::string_view what,
                                   int reason) {
  return fail(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: cannot {}: {}",
              path.string(), what, system_message(reason));
}

result<void> write_all(const Descriptor& file, const std::filesystem::path& path,
                       std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file.value(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return file_refused(path, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

result<void> sync_folder(const std::filesystem::path& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open()) return file_refused(folder, "open", errno);
  // Some file systems cannot sync a folder (EINVAL); what was renamed is renamed.
  if (::fsync(opened.value()) != 0 && errno != EINVAL) return file_refused(folder, "flush", errno);
  return {};
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t bytes_max) {
  // A FIFO without a writer would block the open.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return file_refused(path, "open", errno);
  struct stat status {};
  if (::fstat(file.value(), &status) != 0) return file_refused(path, "stat", errno);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::kIo, "{}: not a regular file", path.string());
  std::string text;
  std::size_t room = static_cast<std::size_t>(status.st_size) + 1;  // one more sees the end
  for (;;) {
    if (text.size() > bytes_max || static_cast<std::uint64_t>(status.st_size) > bytes_max)
      return fail(ErrorCode::kCorrupt, "{}: {} bytes, more than the {} this kind of file may have",
                  path.string(), std::max<std::uint64_t>(text.size(), room - 1), bytes_max);
    const std::size_t before = text.size();
    text.resize(std::max(room, before + 4096));
    const ssize_t got = ::read(file.value(), text.data() + before, text.size() - before);
    text.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_refused(path, "read", errno);
    if (got == 0) return text;
  }
}

namespace {

/// Where a file of this name really lies: behind symbolic links, which stay.
std::filesystem::path real_path(const std::filesystem::path& path) {
  std::error_code problem;
  if (!std::filesystem::is_symlink(path, problem)) return path;
  std::filesystem::path real = std::filesystem::weakly_canonical(path, problem);
  return problem ? path : real;
}

/// A pipe, device or folder is there, which a rename would take the place of.
bool is_special(const std::filesystem::path& path) {
  std::error_code problem;
  const auto status = std::filesystem::status(path, problem);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

/// For a pipe or a device, such as /dev/stdout: there is nothing to be atomic about.
result<void> write_into(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  // A FIFO without a reader would block the open.
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return file_refused(path, "open for writing", errno);
  const int flags = ::fcntl(file.value(), F_GETFL);
  ::fcntl(file.value(), F_SETFL, flags & ~O_NONBLOCK);
  return write_all(file, path, bytes);
}

}  // namespace

result<AtomicFile> AtomicFile::create(const std::filesystem::path& named) {
  const std::filesystem::path path = real_path(named);
  if (is_special(path))
    return fail(ErrorCode::kIo, "{}: not a regular file, cannot be replaced", path.string());
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::filesystem::path temporary =
        folder_of(path) /
        fmt::format(".{}.tmp-{}-{}", path.filename().string(), ::getpid(), attempt);
    Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.is_open()) return AtomicFile(path, std::move(temporary), std::move(file));
    if (errno != EEXIST) return file_refused(path, "create", errno);
  }
  return fail(ErrorCode::kIo, "{}: {} temporaries are in the way", path.string(), kAttempts);
}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) ::unlink(temporary_.c_str());
}

result<void> AtomicFile::write(std::span<const std::byte> bytes) {
  return write_all(file_, path_, bytes);
}

result<void> AtomicFile::commit() {
  if (::fsync(file_.value()) != 0) return file_refused(path_, "flush", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return file_refused(path_, "rename to", errno);
  if (file_.close() != 0) return file_refused(path_, "close", errno);
  return sync_folder(folder_of(path_));
}

result<void> write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::error_code problem;
  if (is_special(path) && !std::filesystem::is_directory(path, problem))
    return write_into(path, bytes);
  TROUPE_TRY(AtomicFile file, AtomicFile::create(path));
  TROUPE_TRY_VOID(file.write(bytes));
  return file.commit();
}

result<void> write_text_file(const std::filesystem::path& path, std::string_view text) {
  return write_file(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace troupe

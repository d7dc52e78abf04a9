#include "runtime/batch/durable_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

namespace troupe::runtime {
namespace {

tl::unexpected<Error> refused(const std::filesystem::path& path, std::string_view what,
                              int reason) {
  return fail(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: cannot {}: {}",
              path.string(), what, std::generic_category().message(reason));
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

AlignedBytes::AlignedBytes(std::size_t size) : size_(size) {
  constexpr auto kAlignment = static_cast<std::align_val_t>(kSectionAlignment);
  void* block = ::operator new(std::max<std::size_t>(size, 1), kAlignment);
  std::memset(block, 0, size);
  data_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(block), [](std::byte* p) {
    ::operator delete(p, static_cast<std::align_val_t>(kSectionAlignment));
  });
}

result<AlignedBytes> read_file(const std::filesystem::path& path, std::int64_t bytes_max) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    return fail(ErrorCode::kNotFound, "{}: cannot open: no such file", path.string());
  if (!std::filesystem::is_regular_file(status))
    return fail(ErrorCode::kIo, "{}: not a regular file", path.string());
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return refused(path, "stat", error.value());
  if (size > static_cast<std::uintmax_t>(std::max<std::int64_t>(bytes_max, 0)))
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, wanted at most {}", path.string(), size,
                bytes_max);
  return read_file_part(path, 0, static_cast<std::int64_t>(size));
}

result<AlignedBytes> read_file_part(const std::filesystem::path& path, std::int64_t offset,
                                    std::int64_t bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.value() < 0) return refused(path, "open", errno);
  struct stat status {};
  if (::fstat(file.value(), &status) != 0) return refused(path, "stat", errno);
  if (offset < 0 || bytes < 0 || offset > status.st_size || bytes > status.st_size - offset)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes from {} of a file of {}", path.string(), bytes,
                offset, static_cast<std::int64_t>(status.st_size));
  AlignedBytes content(static_cast<std::size_t>(bytes));
  std::span<std::byte> rest = content.mutable_bytes();
  while (!rest.empty()) {
    const ssize_t got = ::pread(file.value(), rest.data(), rest.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refused(path, "read", errno);
    if (got == 0)
      return fail(ErrorCode::kIo, "{}: ended {} bytes early at {}", path.string(), rest.size(),
                  offset);
    rest = rest.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return content;
}

FileWriter::FileWriter(std::filesystem::path path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      position_(other.position_) {}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

result<FileWriter> FileWriter::create(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return refused(path, "create", errno);
  return FileWriter(path, descriptor);
}

result<void> FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return refused(path_, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    position_ += put;
  }
  return {};
}

result<void> FileWriter::align() {
  constexpr std::array<std::byte, kSectionAlignment> kZeros{};
  return write(std::span(kZeros).first(static_cast<std::size_t>(aligned(position_) - position_)));
}

result<void> FileWriter::finish() {
  if (::fsync(descriptor_) != 0) return refused(path_, "flush", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) return refused(path_, "close", errno);
  return {};
}

result<void> write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::filesystem::path beside =
      folder_of(path) / fmt::format(".{}.tmp-{}", path.filename().string(), ::gettid());
  const auto write_beside = [&]() -> result<void> {
    TROUPE_TRY(FileWriter file, FileWriter::create(beside));
    TROUPE_TRY_VOID(file.write(bytes));
    TROUPE_TRY_VOID(file.finish());
    if (::rename(beside.c_str(), path.c_str()) != 0) return refused(path, "rename to", errno);
    return {};
  };
  if (result<void> written = write_beside(); !written) {
    ::unlink(beside.c_str());
    return written;
  }
  return sync_folder(folder_of(path));
}

result<void> sync_folder(const std::filesystem::path& folder) {
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.value() < 0) return refused(folder, "open", errno);
  if (::fsync(opened.value()) != 0) return refused(folder, "flush", errno);
  return {};
}

}  // namespace troupe::runtime

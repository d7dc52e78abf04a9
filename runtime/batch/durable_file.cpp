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
  if (error) return file_refused(path, "stat", error.value());
  if (size > static_cast<std::uintmax_t>(std::max<std::int64_t>(bytes_max, 0)))
    return fail(ErrorCode::kCorrupt, "{}: {} bytes, wanted at most {}", path.string(), size,
                bytes_max);
  return read_file_part(path, 0, static_cast<std::int64_t>(size));
}

result<AlignedBytes> read_file_part(const std::filesystem::path& path, std::int64_t offset,
                                    std::int64_t bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return file_refused(path, "open", errno);
  struct stat status {};
  if (::fstat(file.value(), &status) != 0) return file_refused(path, "stat", errno);
  if (offset < 0 || bytes < 0 || offset > status.st_size || bytes > status.st_size - offset)
    return fail(ErrorCode::kCorrupt, "{}: {} bytes from {} of a file of {}", path.string(), bytes,
                offset, static_cast<std::int64_t>(status.st_size));
  AlignedBytes content(static_cast<std::size_t>(bytes));
  std::span<std::byte> rest = content.mutable_bytes();
  while (!rest.empty()) {
    const ssize_t got = ::pread(file.value(), rest.data(), rest.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_refused(path, "read", errno);
    if (got == 0)
      return fail(ErrorCode::kIo, "{}: ended {} bytes early at {}", path.string(), rest.size(),
                  offset);
    rest = rest.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return content;
}

result<FileWriter> FileWriter::create(const std::filesystem::path& path) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.is_open()) return file_refused(path, "create", errno);
  return FileWriter(path, std::move(file));
}

result<void> FileWriter::write(std::span<const std::byte> bytes) {
  TROUPE_TRY_VOID(write_all(file_, path_, bytes));
  position_ += static_cast<std::int64_t>(bytes.size());
  return {};
}

result<void> FileWriter::align() {
  constexpr std::array<std::byte, kSectionAlignment> kZeros{};
  return write(std::span(kZeros).first(static_cast<std::size_t>(aligned(position_) - position_)));
}

result<void> FileWriter::finish() {
  if (::fsync(file_.value()) != 0) return file_refused(path_, "flush", errno);
  if (file_.close() != 0) return file_refused(path_, "close", errno);
  return {};
}

}  // namespace troupe::runtime

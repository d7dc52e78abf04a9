#include "actors/model/mapped_file.hpp"

#include "runtime/base/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::actors {

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  // The mapping was made writable to nobody; munmap only wants the type that mmap gave.
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return file_refused(path, "open", errno);
  struct stat status = {};
  if (::fstat(file.value(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(ErrorCode::kIo, "{}: not a regular file", path.string());
  MappedFile mapped;
  mapped.path_ = path;
  if (status.st_size == 0) return mapped;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (address == MAP_FAILED)
    return fail(ErrorCode::kIo, "{}: cannot map {} bytes: {}", path.string(), size,
                std::strerror(errno));
  mapped.bytes_ = {static_cast<const std::byte*>(address), size};
  return mapped;
}

}  // namespace troupe::actors

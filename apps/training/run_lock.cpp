#include "apps/training/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

namespace troupe::apps {

result<RunLock> RunLock::take(const std::filesystem::path& folder) {
  if (folder.empty()) return fail(ErrorCode::kConfig, "trainer.default_local_dir: names no folder");
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) return fail(ErrorCode::kIo, "{}: {}", folder.string(), failure.message());
  const std::string path = (folder / ".lock").string();
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return fail(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  RunLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    std::array<char, 32> holder{};
    const auto length = ::read(fd, holder.data(), holder.size() - 1);
    return fail(ErrorCode::kConflict, "{}: in use by process {}", folder.string(),
                length > 0 ? holder.data() : "unknown");
  }
  const std::string mine = std::to_string(::getpid());
  if (::ftruncate(fd, 0) != 0 ||
      ::write(fd, mine.data(), mine.size()) != static_cast<::ssize_t>(mine.size()))
    return fail(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  return lock;
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace troupe::apps

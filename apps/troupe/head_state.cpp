#include "apps/troupe/head_state.hpp"

#include "placement/cluster_access.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>

namespace troupe::apps {

result<HeadState> HeadState::take(const std::string& folder) {
  std::error_code failure;
  const bool made = std::filesystem::create_directories(folder, failure);
  if (failure) return fail(ErrorCode::kIo, "{}: {}", folder, failure.message());
  if (made) ::chmod(folder.c_str(), 0700);
  const std::string path = (std::filesystem::path(folder) / "head.lock").string();
  Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.is_open()) return file_refused(path, "open", errno);
  if (::flock(lock.value(), LOCK_EX | LOCK_NB) != 0) {
    std::array<char, 32> holder{};
    const auto length = ::read(lock.value(), holder.data(), holder.size() - 1);
    return fail(ErrorCode::kConflict, "{}: a head runs on this folder, process {}", folder,
                length > 0 ? holder.data() : "unknown");
  }
  const std::string own = std::to_string(::getpid());
  if (::ftruncate(lock.value(), 0) != 0) return file_refused(path, "empty", errno);
  TROUPE_TRY_VOID(write_all(lock, path, std::as_bytes(std::span(own))));
  return HeadState(folder, std::move(lock));
}

HeadState::~HeadState() {
  if (!lock_.is_open() || !published_) return;
  std::error_code ignored;  // a file that stays names a head that does not answer
  std::filesystem::remove(placement::address_file(folder_), ignored);
}

result<void> HeadState::publish(const std::string& address) {
  TROUPE_TRY_VOID(write_text_file(placement::address_file(folder_), address + "\n"));
  published_ = true;
  return {};
}

std::string HeadState::ledger_path() const {
  return (std::filesystem::path(folder_) / "ledger").string();
}

}  // namespace troupe::apps

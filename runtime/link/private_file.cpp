#include "runtime/link/private_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace troupe::runtime {
namespace {

result<void> write_all(int descriptor, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return fail(ErrorCode::kIo, "{}: cannot write: {}", path, system_message(errno));
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::fsync(descriptor) != 0)
    return fail(ErrorCode::kIo, "{}: cannot write: {}", path, system_message(errno));
  return {};
}

}  // namespace

result<void> write_new_file(const std::string& path, std::string_view bytes, unsigned mode) {
  // Written aside and then linked: a link fails where a rename would overwrite.
  std::string aside = path + ".XXXXXX";
  const int descriptor = ::mkostemp(aside.data(), O_CLOEXEC);  // mode 0600
  if (descriptor < 0)
    return fail(ErrorCode::kIo, "{}: cannot be made: {}", path, system_message(errno));
  auto outcome = write_all(descriptor, path, bytes);
  if (outcome && ::fchmod(descriptor, mode) != 0)
    outcome = fail(ErrorCode::kIo, "{}: cannot set mode {:o}: {}", path, mode,
                   system_message(errno));
  ::close(descriptor);
  if (outcome && ::link(aside.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    outcome = reason == EEXIST
                  ? fail(ErrorCode::kAlreadyExists, "{}: exists, and is not overwritten", path)
                  : fail(ErrorCode::kIo, "{}: cannot be made: {}", path, system_message(reason));
  }
  ::unlink(aside.c_str());
  return outcome;
}

result<void> make_private_folder(const std::string& folder) {
  if (folder.empty()) return {};
  std::error_code code;
  if (std::filesystem::is_directory(folder, code)) return {};
  const auto above = std::filesystem::path(folder).parent_path();
  if (!above.empty()) std::filesystem::create_directories(above, code);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(ErrorCode::kIo, "{}: cannot be made: {}", folder, system_message(errno));
  return {};
}

}  // namespace troupe::runtime

#include "placement/ledger_file.hpp"

#include "placement/ledger_frame.hpp"
#include "runtime/batch/durable_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace troupe::placement {
namespace {

tl::unexpected<Error> refused(const std::filesystem::path& path, std::string_view what,
                              int reason) {
  return fail(ErrorCode::kIo, "{}: cannot {}: {}", path.string(), what,
              system_message(reason));
}

/// A lock of its own, since compaction replaces the ledger itself.
result<int> take_lock(const std::filesystem::path& path) {
  const int lock = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return refused(path, "open", errno);
  if (::flock(lock, LOCK_EX | LOCK_NB) == 0) return lock;
  const int reason = errno;
  ::close(lock);
  if (reason == EWOULDBLOCK)
    return fail(ErrorCode::kAlreadyExists, "{}: another process uses this ledger", path.string());
  return refused(path, "lock", reason);
}

}  // namespace

LedgerFile::LedgerFile(LedgerFile&& other) noexcept
    : path_(std::move(other.path_)),
      lock_(std::exchange(other.lock_, -1)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      next_frame_(other.next_frame_),
      bytes_(other.bytes_) {}

LedgerFile::~LedgerFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (lock_ >= 0) ::close(lock_);
}

result<LedgerFile::Opened> LedgerFile::open(const std::filesystem::path& path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error) return refused(path.parent_path(), "create", error.value());
  std::filesystem::path lock_path = path;
  lock_path += ".lock";
  TROUPE_TRY(const int lock, take_lock(lock_path));
  LedgerFile file(path, lock);
  if (!std::filesystem::exists(path)) TROUPE_TRY_VOID(write_file(path, encode_ledger_header(0)));
  TROUPE_TRY(const runtime::AlignedBytes bytes, runtime::read_file(path, kLedgerFileBytesMax));
  TROUPE_TRY(LedgerContent content, read_ledger(bytes.bytes(), path.string()));
  file.next_frame_ = content.next_frame;
  file.bytes_ = content.bytes;
  TROUPE_TRY_VOID(file.reopen());
  if (content.warning) {
    if (::ftruncate(file.descriptor_, static_cast<off_t>(content.bytes)) != 0)
      return refused(path, "truncate", errno);
    TROUPE_TRY_VOID(file.sync());
  }
  std::vector<std::vector<std::byte>> payloads;
  payloads.reserve(content.payloads.size());
  for (const auto payload : content.payloads) payloads.emplace_back(payload.begin(), payload.end());
  return Opened{std::move(file), std::move(payloads), std::move(content.warning)};
}

result<void> LedgerFile::reopen() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor_ < 0) return refused(path_, "open", errno);
  return {};
}

result<void> LedgerFile::append(std::span<const std::byte> payload) {
  TROUPE_TRY(const std::vector<std::byte> frame, encode_ledger_frame(next_frame_, payload));
  std::span<const std::byte> rest(frame);
  while (!rest.empty()) {
    const ssize_t put = ::pwrite(descriptor_, rest.data(), rest.size(), static_cast<off_t>(bytes_));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return refused(path_, "write", errno);
    bytes_ += static_cast<std::size_t>(put);
    rest = rest.subspan(static_cast<std::size_t>(put));
  }
  ++next_frame_;
  return {};
}

result<void> LedgerFile::sync() {
  if (::fdatasync(descriptor_) != 0) return refused(path_, "flush", errno);
  return {};
}

result<void> LedgerFile::replace(const std::vector<std::vector<std::byte>>& payloads) {
  std::vector<std::byte> bytes = encode_ledger_header(next_frame_);
  for (const auto& payload : payloads) {
    TROUPE_TRY(const std::vector<std::byte> frame, encode_ledger_frame(next_frame_, payload));
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    ++next_frame_;
  }
  TROUPE_TRY_VOID(write_file(path_, bytes));
  bytes_ = bytes.size();
  return reopen();
}

}  // namespace troupe::placement

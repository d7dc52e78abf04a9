#include "runtime/observe/text_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace troupe::runtime {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int close() {
    const int fd = fd_;
    fd_ = -1;
    return fd >= 0 ? ::close(fd) : 0;
  }

 private:
  int fd_;
};

tl::unexpected<Error> io_error(const std::string& path, const char* what) {
  return fail(ErrorCode::kIo, "{}: cannot {}: {}", path, what, std::strerror(errno));
}

/// Length of the valid UTF-8 character that `text` begins with, or 0.
std::size_t character_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >> 5 == 0x6    ? 2
                             : lead >> 4 == 0xE  ? 3
                             : lead >> 3 == 0x1E ? 4
                                                 : 0;
  if (length == 0 || length > text.size()) return 0;
  std::uint32_t code = lead & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if (next >> 6 != 0x2) return 0;
    code = code << 6 | (next & 0x3F);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < kSmallest[length] || code > 0x10FFFF || surrogate ? 0 : length;
}

}  // namespace

result<void> write_text_file(const std::string& path, std::string_view text) {
  static std::atomic<std::uint64_t> counter{0};
  const std::string temporary = fmt::format("{}.{}.{}.tmp", path, ::getpid(), counter++);
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file.is_open()) return io_error(temporary, "create");
  const auto give_up = [&](const char* what) {
    auto error = io_error(path, what);
    ::unlink(temporary.c_str());
    return error;
  };
  for (std::size_t done = 0; done < text.size();) {
    const auto wrote = ::write(file.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return give_up("write");
    done += static_cast<std::size_t>(wrote);
  }
  if (::fsync(file.get()) != 0) return give_up("sync");
  if (file.close() != 0) return give_up("close");
  if (::rename(temporary.c_str(), path.c_str()) != 0) return give_up("rename to");
  return {};
}

result<std::string> read_text_file(const std::string& path, std::size_t bytes_max) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ENOENT) return fail(ErrorCode::kNotFound, "{}: no such file", path);
    return io_error(path, "open");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return io_error(path, "stat");
  if (status.st_size > 0 && static_cast<std::uint64_t>(status.st_size) > bytes_max) {
    return fail(ErrorCode::kResourceExhausted, "{}: {} bytes, limit {}", path, status.st_size,
                bytes_max);
  }
  std::string text;
  std::string block(std::size_t{1} << 16, '\0');
  while (true) {
    const auto got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(path, "read");
    if (got == 0) return text;
    text.append(block, 0, static_cast<std::size_t>(got));
    if (text.size() > bytes_max) {
      return fail(ErrorCode::kResourceExhausted, "{}: more than {} bytes", path, bytes_max);
    }
  }
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    if (length == 0)
      out += "\xEF\xBF\xBD";
    else
      out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace troupe::runtime

#include "runtime/link/token_file.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/file.hpp"
#include "runtime/link/private_file.hpp"

#include <fcntl.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

namespace troupe::runtime {
namespace {

constexpr std::size_t kTokenBytesMin = 32;
constexpr std::size_t kTokenBytesMax = 1024;

std::string fresh_token() {
  std::array<unsigned char, 32> bytes{};
  TROUPE_CHECK(RAND_bytes(bytes.data(), bytes.size()) == 1, "token: OpenSSL gives no random bytes");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

}  // namespace

result<std::string> read_token_file(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    const int reason = errno;
    return fail(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "token file {}: {}", path,
                system_message(reason));
  }
  struct stat facts {};
  if (::fstat(file.value(), &facts) != 0 || !S_ISREG(facts.st_mode))
    return fail(ErrorCode::kConfig, "token file {}: no regular file", path);
  constexpr unsigned kOthers = 077;
  if ((facts.st_mode & kOthers) != 0)
    return fail(ErrorCode::kConfig, "token file {}: mode {:o} lets others read it, wanted 600",
                path, facts.st_mode & 0777U);
  std::string token(kTokenBytesMax + 2, '\0');
  std::size_t size = 0;
  while (size < token.size()) {
    const ssize_t got = ::read(file.value(), token.data() + size, token.size() - size);
    if (got < 0)
      return fail(ErrorCode::kIo, "token file {}: {}", path, system_message(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  token.resize(size);
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  const bool plain =
      std::all_of(token.begin(), token.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax || !plain)
    return fail(ErrorCode::kConfig,
                "token file {}: {} characters, wanted {}..{} printable ones without spaces", path,
                token.size(), kTokenBytesMin, kTokenBytesMax);
  return token;
}

result<std::string> read_or_make_token_file(const std::string& path) {
  auto token = read_token_file(path);
  if (token || token.error().code != ErrorCode::kNotFound) return token;
  TROUPE_TRY_VOID(make_private_folder(std::filesystem::path(path).parent_path().string()));
  const auto made = write_new_file(path, fresh_token() + "\n", 0600);
  // Another process may have been faster; then its token counts.
  if (!made && made.error().code != ErrorCode::kAlreadyExists) return fail(made.error());
  return read_token_file(path);
}

}  // namespace troupe::runtime

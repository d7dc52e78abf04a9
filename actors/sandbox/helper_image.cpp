#include "actors/sandbox/helper_image.hpp"

#include "runtime/base/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

// The bytes of the program that CMake built before this source.
asm(".section .rodata\n"
    ".global troupe_sandbox_helper_begin\n"
    ".global troupe_sandbox_helper_end\n"
    ".balign 16\n"
    "troupe_sandbox_helper_begin:\n"
    ".incbin \"" TROUPE_SANDBOX_HELPER
    "\"\n"
    "troupe_sandbox_helper_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" {
extern const std::byte troupe_sandbox_helper_begin[];
extern const std::byte troupe_sandbox_helper_end[];
}

namespace troupe::actors::sandbox {
namespace {

constexpr unsigned kExecutable = 0x10;  // MFD_EXEC, since Linux 6.3

result<Descriptor> open_image() {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int made = static_cast<int>(::syscall(SYS_memfd_create, "troupe-sandbox", flags | kExecutable));
  if (made < 0 && errno == EINVAL)
    made = static_cast<int>(::syscall(SYS_memfd_create, "troupe-sandbox", flags));
  if (made < 0)
    return fail(ErrorCode::kUnsupported, "sandbox: cannot make a memory file for its helper: {}",
                std::strerror(errno));
  // Out of the way of the numbers that children get their pipes under.
  constexpr int kLowest = 64;
  const Descriptor low(made);
  Descriptor image(::fcntl(low.value(), F_DUPFD_CLOEXEC, kLowest));
  if (!image.is_open())
    return fail(ErrorCode::kIo, "sandbox: cannot keep its helper: {}", std::strerror(errno));
  const std::span<const std::byte> bytes(
      troupe_sandbox_helper_begin,
      static_cast<std::size_t>(troupe_sandbox_helper_end - troupe_sandbox_helper_begin));
  TROUPE_TRY_VOID(write_all(image, "sandbox helper", bytes));
  ::fcntl(image.value(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return image;
}

}  // namespace

result<std::string> helper_path() {
  static const result<Descriptor> image = open_image();
  if (!image) return fail(Error(image.error()));
  return fmt::format("/proc/self/fd/{}", image->value());
}

}  // namespace troupe::actors::sandbox

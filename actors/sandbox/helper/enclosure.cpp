#include "actors/sandbox/helper/enclosure.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace troupe::actors::sandbox {
namespace {

/// Who the command is inside: nobody in particular, above all not root.
constexpr unsigned kInnerId = 1000;
/// Entries of a memory file system: bounds what many empty files cost.
constexpr long kScratchEntries = 16384;
/// The kernel's smallest bound of process numbers in a namespace (since 6.14).
constexpr long kProcessNumbersMin = 320;

Outcome failed(Stage stage) { return {.ok = false, .stage = stage, .error = errno}; }

bool put_text(const char* path, const char* text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const auto size = static_cast<ssize_t>(std::strlen(text));
  const bool put = ::write(file, text, static_cast<std::size_t>(size)) == size;
  const int error = errno;
  ::close(file);
  errno = error;
  return put;
}

bool map_id(const char* path, unsigned outer) {
  char text[64];
  std::snprintf(text, sizeof(text), "%u %u 1\n", kInnerId, outer);
  return put_text(path, text);
}

// Not in the headers of older C libraries.
struct MountAttributes {
  std::uint64_t set = 0;
  std::uint64_t clear = 0;
  std::uint64_t propagation = 0;
  std::uint64_t user_namespace = 0;
};
constexpr std::uint64_t kReadOnly = 1;
constexpr std::uint64_t kNoSetuid = 2;
constexpr int kRecursive = 0x8000;
constexpr long kMountSetattr = 442;  // the same number on every architecture

bool seal_all_mounts() {
  MountAttributes attributes{.set = kReadOnly | kNoSetuid};
  return ::syscall(kMountSetattr, -1, "/", kRecursive, &attributes, sizeof(attributes)) == 0;
}

bool mount_memory(const char* folder, std::int64_t bytes, unsigned mode, bool writable) {
  char data[128];
  std::snprintf(data, sizeof(data), "size=%lld,nr_inodes=%ld,mode=%o",
                static_cast<long long>(bytes), kScratchEntries, mode);
  unsigned long flags = MS_NOSUID | MS_NODEV;
  if (!writable) flags |= MS_RDONLY;
  return ::mount("sandbox", folder, "tmpfs", flags, data) == 0;
}

bool limit(int which, std::int64_t value) {
  rlimit wanted{.rlim_cur = static_cast<rlim_t>(value), .rlim_max = static_cast<rlim_t>(value)};
  rlimit now{};
  if (::getrlimit(static_cast<__rlimit_resource>(which), &now) == 0) {
    // A limit that is tighter already stays: raising it needs privileges that we may not have.
    if (now.rlim_max < wanted.rlim_max) wanted.rlim_cur = wanted.rlim_max = now.rlim_max;
  }
  return ::setrlimit(static_cast<__rlimit_resource>(which), &wanted) == 0;
}

}  // namespace

Outcome leave_namespaces(const Settings& settings) {
  const unsigned user = ::geteuid();
  const unsigned group = ::getegid();
  const int spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
                     (settings.network ? 0 : CLONE_NEWNET);
  if (::unshare(spaces) != 0) return failed(Stage::kUnshare);
  // Older kernels have no such file, and then need no answer.
  if (!put_text("/proc/self/setgroups", "deny") && errno != ENOENT) return failed(Stage::kUserMap);
  if (!map_id("/proc/self/uid_map", user) || !map_id("/proc/self/gid_map", group))
    return failed(Stage::kUserMap);
  return {};
}

Outcome arrange_mounts(Settings& settings, std::int64_t& bits) {
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return failed(Stage::kMounts);
  // A container whose own /proc is partly covered does not get a fresh one: then the command sees
  // the numbers of other processes, which it can do nothing to.
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0)
    bits |= kOwnProc;
  if (put_text("/proc/sys/user/max_user_namespaces", "0")) bits |= kNoNesting;
  if ((bits & kOwnProc) != 0) {
    // A hard ceiling under the watch; kernels that have one table for all refuse, which is fine.
    char text[32];
    const long numbers = settings.processes + kProcessNumbersMin;
    std::snprintf(text, sizeof(text), "%ld", numbers);
    put_text("/proc/sys/kernel/pid_max", text);
  }
  if (!seal_all_mounts()) return failed(Stage::kMounts);
  for (char* rest = settings.hidden; rest != nullptr && *rest != '\0';) {
    const char* folder = rest;
    rest = std::strchr(rest, '\n');
    if (rest != nullptr) *rest++ = '\0';
    struct stat found {};
    if (::stat(folder, &found) != 0 || !S_ISDIR(found.st_mode)) continue;  // nothing to hide
    if (!mount_memory(folder, 4096, 0555, false)) return failed(Stage::kMounts);
  }
  struct stat found {};
  if (::stat("/dev/shm", &found) == 0 &&
      !mount_memory("/dev/shm", settings.scratch_bytes, 0777, true))
    return failed(Stage::kMounts);
  if (!mount_memory(settings.scratch, settings.scratch_bytes, 0700, true))
    return failed(Stage::kScratch);
  return {};
}

Outcome set_limits(const Settings& settings) {
  const bool set = limit(RLIMIT_AS, settings.memory_bytes) &&
                   limit(RLIMIT_FSIZE, settings.scratch_bytes) &&
                   limit(RLIMIT_NOFILE, settings.open_files) && limit(RLIMIT_CORE, 0) &&
                   limit(RLIMIT_MEMLOCK, 0) && limit(RLIMIT_MSGQUEUE, 0) &&
                   (settings.cpu_seconds == 0 || limit(RLIMIT_CPU, settings.cpu_seconds));
  if (!set) return failed(Stage::kLimits);
  // Outside a user namespace the kernel would count all processes of this user on the host.
  if (settings.isolate && !limit(RLIMIT_NPROC, settings.processes)) return failed(Stage::kLimits);
  return {};
}

Outcome drop_privileges() {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failed(Stage::kPrivileges);
  // Without the privilege for these two there is nothing to drop.
  ::prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
                                 SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                                 SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED);
  for (int one = 0; ::prctl(PR_CAPBSET_READ, one, 0, 0, 0) >= 0; ++one)
    ::prctl(PR_CAPBSET_DROP, one, 0, 0, 0);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct nothing[2] = {};
  if (::syscall(SYS_capset, &header, nothing) != 0) return failed(Stage::kPrivileges);
  return {};
}

}  // namespace troupe::actors::sandbox

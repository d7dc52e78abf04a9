#include "actors/sandbox/helper/watch.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace troupe::actors::sandbox {
namespace {

constexpr int kTableSize = 4096;
constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

struct Process {
  int id = 0;
  int parent = 0;
  std::int64_t threads = 0;
  std::int64_t resident_pages = 0;
  std::int64_t ticks = 0;
  bool below = false;
};

// Too large for a stack that other limits may have made small.
Process table[kTableSize];

/// Field 4 on of /proc/<id>/stat; the name before it may hold anything but ends at the last `)`.
bool read_process(int id, Process& out) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", id);
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[1024];
  const ssize_t size = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  if (size <= 0) return false;
  text[size] = '\0';
  const char* rest = std::strrchr(text, ')');
  if (rest == nullptr) return false;
  long long user = 0;
  long long system = 0;
  long long children_user = 0;
  long long children_system = 0;
  long long threads = 0;
  long long resident = 0;
  const int read = std::sscanf(rest + 1,
                               " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld %lld %lld "
                               "%*d %*d %lld %*d %*u %*u %lld",
                               &out.parent, &user, &system, &children_user, &children_system,
                               &threads, &resident);
  if (read != 7) return false;
  out.id = id;
  out.threads = threads;
  out.resident_pages = resident;
  out.ticks = user + system + children_user + children_system;
  out.below = false;
  return true;
}

/// 0 for what is no number.
int number_of(const char* text) {
  int value = 0;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

/// This process as /proc numbers it: an inherited /proc has the host's numbers.
int own_number() {
  char text[32];
  const ssize_t size = ::readlink("/proc/self", text, sizeof(text) - 1);
  if (size <= 0) return static_cast<int>(::getpid());
  text[size] = '\0';
  return number_of(text);
}

/// Fills the table and marks what is below this process; how many entries, or -1 when it is full.
int read_tree() {
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return 0;
  int count = 0;
  bool full = false;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (count == kTableSize) {
      full = true;
      break;
    }
    if (read_process(number_of(entry->d_name), table[count])) ++count;
  }
  ::closedir(folder);
  if (full) return -1;
  const int self = own_number();
  for (bool more = true; more;) {  // parents may come behind their children
    more = false;
    for (int i = 0; i < count; ++i) {
      if (table[i].below || table[i].id == self) continue;
      bool below = table[i].parent == self;
      for (int j = 0; j < count && !below; ++j)
        below = table[j].below && table[j].id == table[i].parent;
      table[i].below = below;
      more = more || below;
    }
  }
  return count;
}

}  // namespace

Usage count_tree() {
  Usage usage;
  const int count = read_tree();
  usage.overflow = count < 0;
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t tick = kNanosecondsPerSecond / ::sysconf(_SC_CLK_TCK);
  for (int i = 0; i < count; ++i) {
    if (!table[i].below) continue;
    usage.processes += table[i].threads;
    usage.resident_bytes += table[i].resident_pages * page;
    usage.cpu_ns += table[i].ticks * tick;
  }
  rusage reaped{};
  ::getrusage(RUSAGE_CHILDREN, &reaped);
  usage.cpu_ns += (reaped.ru_utime.tv_sec + reaped.ru_stime.tv_sec) * kNanosecondsPerSecond;
  usage.cpu_ns += (reaped.ru_utime.tv_usec + reaped.ru_stime.tv_usec) * std::int64_t{1000};
  return usage;
}

void kill_tree(bool whole_namespace) {
  constexpr int kTries = 500;
  for (int i = 0; i < kTries; ++i) {
    if (whole_namespace) {
      ::kill(-1, SIGKILL);
    } else {
      const int count = read_tree();
      for (int one = 0; one < count; ++one) {
        if (table[one].below) ::kill(table[one].id, SIGKILL);
      }
    }
    for (;;) {
      const pid_t reaped = ::waitpid(-1, nullptr, WNOHANG);
      if (reaped < 0 && errno == ECHILD) return;
      if (reaped <= 0) break;
    }
    const timespec pause{.tv_sec = 0, .tv_nsec = 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace troupe::actors::sandbox

// The helper of a sandbox: `sandbox_helper <numbers> SCRATCH HIDDEN COMMAND…`, as
// helper_protocol.hpp says. Standard input and output are the command's; descriptor 3 is a socket
// of packets to the process that started it, whose end is also the helper's end.
//
// Three processes: the one that was started moves into new namespaces and only waits; its child is
// the first process in them, which arranges mounts, watches and reaps; its child becomes the
// command. No threads, no C++ library.

#include "actors/sandbox/helper/enclosure.hpp"
#include "actors/sandbox/helper/watch.hpp"
#include "actors/sandbox/helper_protocol.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace troupe::actors::sandbox {
namespace {

constexpr int kBusyWatchMs = 10;
constexpr int kIdleWatchMs = 200;
/// Without namespaces a look goes over all processes of the host.
constexpr int kSlowWatch = 3;

void tell(Notice notice, std::int64_t value, Stage stage = Stage::kArguments) {
  const NoticeRecord record{
      .notice = notice, .stage = static_cast<std::int32_t>(stage), .value = value};
  // Nobody to tell: the other side is gone, and so are we soon.
  (void)!::send(kControlDescriptor, &record, sizeof(record), MSG_NOSIGNAL);
}

[[noreturn]] void refuse(const Outcome& outcome) {
  tell(Notice::kRefused, outcome.error, outcome.stage);
  ::_exit(1);
}

void close_from(unsigned low) {
  constexpr long kCloseRange = 436;  // the same number on every architecture
  if (::syscall(kCloseRange, low, ~0U, 0) == 0) return;
  for (int one = static_cast<int>(low); one < 65536; ++one) ::close(one);
}

[[noreturn]] void become_command(const Settings& settings) {
  ::setsid();
  ::fcntl(kControlDescriptor, F_SETFD, FD_CLOEXEC);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  if (::chdir(settings.scratch) != 0)
    refuse({.ok = false, .stage = Stage::kScratch, .error = errno});
  if (const Outcome set = set_limits(settings); !set.ok) refuse(set);
  if (const Outcome dropped = drop_privileges(); !dropped.ok) refuse(dropped);
  ::execvp(settings.command[0], settings.command);
  tell(Notice::kNoCommand, errno);
  ::_exit(127);
}

/// Watches over the command until it ends, goes over a limit or nobody wants it any more.
class Watch {
 public:
  Watch(const Settings& settings, pid_t command, int signals)
      : settings_(settings), command_(command), signals_(signals) {}

  void run() {
    for (;;) {
      pollfd waits[2] = {{.fd = kControlDescriptor, .events = POLLIN, .revents = 0},
                         {.fd = signals_, .events = POLLIN, .revents = 0}};
      const int period =
          (busy_ ? kBusyWatchMs : kIdleWatchMs) * (settings_.isolate ? 1 : kSlowWatch);
      if (::poll(waits, 2, period) < 0 && errno != EINTR) return;
      if (waits[0].revents != 0 && !hear()) return;
      if (waits[1].revents != 0 && reap()) return;
      if (over_limit()) return;
    }
  }

 private:
  /// False: the other side is gone, or says that it is over.
  bool hear() {
    BudgetRecord record{};
    const ssize_t size = ::recv(kControlDescriptor, &record, sizeof(record), MSG_DONTWAIT);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    if (size != static_cast<ssize_t>(sizeof(record))) return false;
    budget_ns_ = record.cpu_budget_ns;
    busy_ = record.busy != 0;
    counted_ = false;  // from the next look on
    return true;
  }

  /// True: the command is over.
  bool reap() {
    signalfd_siginfo ignored;
    while (::read(signals_, &ignored, sizeof(ignored)) > 0) {
    }
    for (;;) {
      int status = 0;
      const pid_t one = ::waitpid(-1, &status, WNOHANG);
      if (one == command_) {
        tell(Notice::kEnded, status);
        return true;
      }
      if (one <= 0) return false;
    }
  }

  bool over_limit() {
    const Usage usage = count_tree();
    if (!counted_) {
      baseline_ns_ = usage.cpu_ns;
      counted_ = true;
    }
    const auto over = [](Limit which) {
      tell(Notice::kOverLimit, static_cast<std::int64_t>(which));
      return true;
    };
    if (usage.overflow || usage.processes > settings_.processes) return over(Limit::kProcesses);
    if (usage.resident_bytes > settings_.memory_bytes) return over(Limit::kMemory);
    if (budget_ns_ > 0 && usage.cpu_ns - baseline_ns_ > budget_ns_) return over(Limit::kCpu);
    return false;
  }

  const Settings& settings_;
  pid_t command_;
  int signals_;
  bool busy_ = true;  // starting is work
  bool counted_ = false;
  std::int64_t budget_ns_ = 0;
  std::int64_t baseline_ns_ = 0;
};

[[noreturn]] void guard(Settings& settings) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_DUMPABLE, 0);  // not for the command to look into
  std::int64_t bits = 0;
  if (settings.isolate) {
    bits |= kIsolated;
    if (const Outcome arranged = arrange_mounts(settings, bits); !arranged.ok) refuse(arranged);
  } else {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);  // orphans come here
  }
  sigset_t watched;
  sigemptyset(&watched);
  sigaddset(&watched, SIGCHLD);
  sigprocmask(SIG_BLOCK, &watched, nullptr);
  const int signals = ::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signals < 0) refuse({.ok = false, .stage = Stage::kFork, .error = errno});
  tell(Notice::kReady, bits);
  const pid_t command = ::fork();
  if (command < 0) refuse({.ok = false, .stage = Stage::kFork, .error = errno});
  if (command == 0) become_command(settings);
  for (int one = 0; one < kControlDescriptor; ++one) ::close(one);  // the command's alone
  Watch(settings, command, signals).run();
  kill_tree(settings.isolate);
  ::_exit(0);
}

bool read_settings(int count, char** arguments, Settings& out) {
  if (count <= kCommand) return false;
  const auto number = [arguments](int which) { return std::atoll(arguments[which]); };
  out.isolate = (number(kFlags) & kIsolate) != 0;
  out.network = (number(kFlags) & kNetwork) != 0;
  out.memory_bytes = number(kMemoryBytes);
  out.scratch_bytes = number(kScratchBytes);
  out.open_files = number(kOpenFiles);
  out.processes = number(kProcesses);
  out.cpu_seconds = number(kCpuSeconds);
  out.scratch = arguments[kScratchFolder];
  out.hidden = arguments[kHiddenFolders];
  out.command = arguments + kCommand;
  return out.memory_bytes > 0 && out.scratch_bytes > 0 && out.processes > 0;
}

int run(int count, char** arguments) {
  close_from(kControlDescriptor + 1);
  ::umask(077);
  Settings settings;
  if (!read_settings(count, arguments, settings))
    refuse({.ok = false, .stage = Stage::kArguments, .error = EINVAL});
  if (settings.isolate) {
    if (const Outcome left = leave_namespaces(settings); !left.ok) refuse(left);
  }
  const pid_t child = ::fork();
  if (child < 0) refuse({.ok = false, .stage = Stage::kFork, .error = errno});
  if (child == 0) guard(settings);
  for (int one = 0; one <= kControlDescriptor; ++one) ::close(one);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace troupe::actors::sandbox

int main(int count, char** arguments) { return troupe::actors::sandbox::run(count, arguments); }

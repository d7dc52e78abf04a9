#include "runtime/cluster/process_child.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

extern char** environ;

namespace troupe::runtime {
namespace {

constexpr int kSecretFile = 3;         // in the child, after 0, 1 and 2
constexpr int kFirstUnnamed = 4;       // descriptors from here on are closed at exec
constexpr int kParkedFrom = 16;        // where they wait while 0..3 are put in place
constexpr unsigned kCloseOnExec = 4U;  // CLOSE_RANGE_CLOEXEC

enum Step : std::int32_t {
  kDescriptors = 1,
  kParent,
  kGroup,
  kCgroup,
  kLimit,
  kAffinity,
  kDirectory,
  kExec,
};

/// All that the child needs, laid out before the fork.
struct ChildPlan {
  const char* path = nullptr;
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  const char* directory = nullptr;     // null: stay
  const char* cgroup_procs = nullptr;  // null: stay
  const char* oom_score = nullptr;
  const cpu_set_t* cores = nullptr;  // null: as the parent
  std::size_t cores_bytes = 0;
  std::int64_t address_space_max = -1;
  std::array<int, 3> streams{-1, -1, -1};
  int secret = -1;
  int report = -1;
  int files_max = 0;
  pid_t parent = 0;
};

struct FreeCores {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

// From here to run_child: only async-signal-safe calls.

[[noreturn]] void give_up(int report, Step step) {
  const ChildFailure failure{.step = step, .error = errno};
  // Shorter than PIPE_BUF into an empty pipe: whole or not at all, and then exec's end says it.
  [[maybe_unused]] const ssize_t written = ::write(report, &failure, sizeof failure);
  ::_exit(127);
}

int park(int file, int report) {
  const int parked = ::fcntl(file, F_DUPFD_CLOEXEC, kParkedFrom);
  if (parked < 0) give_up(report, kDescriptors);
  return parked;
}

void place_descriptors(ChildPlan& plan) {
  plan.report = park(plan.report, plan.report);
  for (int& stream : plan.streams) stream = park(stream, plan.report);
  if (plan.secret >= 0) plan.secret = park(plan.secret, plan.report);
  for (int i = 0; i < 3; ++i) {
    if (::dup2(plan.streams[static_cast<std::size_t>(i)], i) < 0)
      give_up(plan.report, kDescriptors);
  }
  const bool secret = plan.secret >= 0;
  if (secret && ::dup2(plan.secret, kSecretFile) < 0) give_up(plan.report, kDescriptors);
  const int first = secret ? kFirstUnnamed : kSecretFile;
  // Libraries of this process may have opened files without close-on-exec.
  if (::syscall(SYS_close_range, first, ~0U, kCloseOnExec) == 0) return;
  for (int file = first; file < plan.files_max; ++file) ::fcntl(file, F_SETFD, FD_CLOEXEC);
}

void reset_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool write_text(const char* path, const char* text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const std::size_t size = std::strlen(text);
  const bool whole = ::write(file, text, size) == static_cast<ssize_t>(size);
  const int error = errno;
  ::close(file);
  errno = error;
  return whole;
}

[[noreturn]] void run_child(ChildPlan plan) {
  place_descriptors(plan);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(plan.report, kParent);
  // The parent may have died before the line above; then nobody would send the signal.
  if (::getppid() != plan.parent) ::_exit(127);
  if (::setpgid(0, 0) != 0) give_up(plan.report, kGroup);
  if (plan.cgroup_procs != nullptr && !write_text(plan.cgroup_procs, "0"))
    give_up(plan.report, kCgroup);
  // May be forbidden in a container; then the kernel's own choice stands.
  if (plan.oom_score != nullptr) write_text("/proc/self/oom_score_adj", plan.oom_score);
  if (plan.address_space_max >= 0) {
    const auto bytes = static_cast<rlim_t>(plan.address_space_max);
    const struct rlimit limit { bytes, bytes };
    if (::setrlimit(RLIMIT_AS, &limit) != 0) give_up(plan.report, kLimit);
  }
  if (plan.cores != nullptr && ::sched_setaffinity(0, plan.cores_bytes, plan.cores) != 0)
    give_up(plan.report, kAffinity);
  if (plan.directory != nullptr && ::chdir(plan.directory) != 0) give_up(plan.report, kDirectory);
  reset_signals();
  ::execve(plan.path, plan.arguments, plan.environment);
  give_up(plan.report, kExec);
}

// End of the child's part.

tl::unexpected<Error> system_error(const ProcessSpec& spec, const char* what) {
  const int error = errno;
  return fail(ErrorCode::kIo, "{}: {}: {}", spec.name, what, std::strerror(error));
}

/// The file to run: the name itself when it has a slash, or the first executable one in PATH.
std::string find_program(const ProcessSpec& spec) {
  const std::string& name = spec.command.front();
  if (name.find('/') != std::string::npos) return name;
  const auto own = spec.environment.find("PATH");
  const char* inherited = std::getenv("PATH");
  std::string path = own != spec.environment.end() ? own->second : inherited ? inherited : "";
  path += ':';
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = path.find(':', begin);
    const std::string file = path.substr(begin, end - begin) + "/" + name;
    begin = end + 1;
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
        ::access(file.c_str(), X_OK) == 0)
      return file;
  }
  return name;  // exec says that it is not there
}

std::vector<std::string> make_environment(const ProcessSpec& spec) {
  std::set<std::string> gone(spec.environment_removed.begin(), spec.environment_removed.end());
  for (const auto& [name, value] : spec.environment) gone.insert(name);
  if (!spec.secret_variable.empty()) gone.insert(spec.secret_variable);
  std::vector<std::string> lines;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string line = *entry;
    if (!gone.contains(line.substr(0, line.find('=')))) lines.push_back(line);
  }
  for (const auto& [name, value] : spec.environment) lines.push_back(name + "=" + value);
  if (!spec.secret_variable.empty())
    lines.push_back(fmt::format("{}=/proc/self/fd/{}", spec.secret_variable, kSecretFile));
  return lines;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// A file without a name that holds the secret, readable by its owner only.
result<FileHandle> secret_file(const ProcessSpec& spec) {
  if (spec.secret_variable.empty()) return FileHandle();
  FileHandle file(::memfd_create("secret", MFD_CLOEXEC));
  if (!file.open()) return system_error(spec, "file for its token");
  const std::string& secret = spec.secret;
  if (::fchmod(file.get(), 0400) != 0 ||
      ::write(file.get(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size()))
    return system_error(spec, "file for its token");
  return file;
}

struct Pipe {
  FileHandle read;
  FileHandle write;
};

result<Pipe> make_pipe(const ProcessSpec& spec) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error(spec, "pipe");
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return system_error(spec, "pipe");
  return Pipe{FileHandle(ends[0]), FileHandle(ends[1])};
}

/// Forks with all signals blocked, so that no handler of ours runs in the child.
pid_t fork_quietly(const ChildPlan& plan) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) run_child(plan);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

std::unique_ptr<cpu_set_t, FreeCores> core_set(const std::vector<int>& cores, std::size_t& bytes) {
  int highest = 0;
  for (const int core : cores) highest = std::max(highest, core);
  std::unique_ptr<cpu_set_t, FreeCores> set(CPU_ALLOC(static_cast<std::size_t>(highest) + 1));
  bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(highest) + 1);
  CPU_ZERO_S(bytes, set.get());
  for (const int core : cores) {
    if (core >= 0) CPU_SET_S(static_cast<std::size_t>(core), bytes, set.get());
  }
  return set;
}

int files_max() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 65536));
}

}  // namespace

void FileHandle::reset() {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

result<StartedChild> start_child(const ProcessSpec& spec, const std::string& cgroup_procs) {
  TROUPE_TRY(Pipe report, make_pipe(spec));
  TROUPE_TRY(Pipe out, make_pipe(spec));
  TROUPE_TRY(Pipe err, make_pipe(spec));
  TROUPE_TRY(const FileHandle secret, secret_file(spec));
  const FileHandle null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.open()) return system_error(spec, "/dev/null");

  std::vector<std::string> command = spec.command;
  std::vector<std::string> environment = make_environment(spec);
  const std::vector<char*> arguments = pointers_to(command);
  const std::vector<char*> variables = pointers_to(environment);
  const std::string path = find_program(spec);
  const std::string score = std::to_string(spec.oom_score_adjust);
  ChildPlan plan;
  plan.path = path.c_str();
  plan.arguments = arguments.data();
  plan.environment = variables.data();
  if (!spec.working_directory.empty()) plan.directory = spec.working_directory.c_str();
  if (!cgroup_procs.empty()) plan.cgroup_procs = cgroup_procs.c_str();
  if (spec.oom_score_adjust != 0) plan.oom_score = score.c_str();
  std::unique_ptr<cpu_set_t, FreeCores> cores;
  if (!spec.cores.empty()) {
    cores = core_set(spec.cores, plan.cores_bytes);
    plan.cores = cores.get();
  }
  if (spec.address_space_max) plan.address_space_max = spec.address_space_max->value;
  plan.streams = {null.get(), out.write.get(), err.write.get()};
  plan.secret = secret.get();
  plan.report = report.write.get();
  plan.files_max = files_max();
  plan.parent = ::getpid();

  const pid_t pid = fork_quietly(plan);
  if (pid < 0) return system_error(spec, "fork");
  // Both sides do it, so that the group exists whoever comes first; after exec it is refused.
  ::setpgid(pid, pid);
  FileHandle pid_handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pid_handle.open()) {
    auto error = system_error(spec, "pidfd_open (needs Linux 5.4)");
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return error;
  }
  return StartedChild{.pid = pid,
                      .pid_handle = std::move(pid_handle),
                      .report = std::move(report.read),
                      .output = {std::move(out.read), std::move(err.read)}};
}

std::string child_failure_text(const ProcessSpec& spec, const ChildFailure& failure) {
  const std::string why = std::strerror(failure.error);
  switch (failure.step) {
    case kDescriptors:
      return "descriptors: " + why;
    case kParent:
      return "tie to its parent: " + why;
    case kGroup:
      return "process group: " + why;
    case kCgroup:
      return fmt::format("join its cgroup below {}: {}", spec.cgroup_parent, why);
    case kLimit:
      return fmt::format("limit of its address space to {}: {}",
                         to_string(spec.address_space_max.value_or(Bytes{})), why);
    case kAffinity:
      return fmt::format("pin to cores {}: {}", fmt::join(spec.cores, ","), why);
    case kDirectory:
      return fmt::format("change to {}: {}", spec.working_directory, why);
    default:
      return fmt::format("exec {}: {}", spec.command.front(), why);
  }
}

}  // namespace troupe::runtime

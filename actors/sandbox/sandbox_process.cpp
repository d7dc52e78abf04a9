#include "actors/sandbox/sandbox_process.hpp"

#include "actors/sandbox/helper_image.hpp"
#include "runtime/base/log.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

namespace troupe::actors::sandbox {
namespace {

constexpr Duration kKillPatience = std::chrono::seconds(2);
/// Above the numbers that the child gets its pipes under.
constexpr int kLowestDescriptor = 64;

tl::unexpected<Error> refused_by_system(const std::string& name, const char* what, int error) {
  return fail(ErrorCode::kIo, "{}: cannot {}: {}", name, what, std::strerror(error));
}

/// The same file under a number that `dup2` in the child cannot hit.
result<Descriptor> lifted(const std::string& name, int descriptor) {
  const Descriptor low(descriptor);
  Descriptor high(::fcntl(low.value(), F_DUPFD_CLOEXEC, kLowestDescriptor));
  if (!high.is_open()) return refused_by_system(name, "keep a pipe", errno);
  return high;
}

struct Ends {
  Descriptor ours;
  Descriptor theirs;
};

result<Ends> paired(const std::string& name, int ours, int theirs) {
  TROUPE_TRY(Descriptor first, lifted(name, ours));
  TROUPE_TRY(Descriptor second, lifted(name, theirs));
  ::fcntl(first.value(), F_SETFL, O_NONBLOCK);
  return Ends{std::move(first), std::move(second)};
}

result<Ends> make_pipe(const std::string& name, bool we_write) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return refused_by_system(name, "make a pipe", errno);
  return we_write ? paired(name, ends[1], ends[0]) : paired(name, ends[0], ends[1]);
}

result<Ends> make_control(const std::string& name) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return refused_by_system(name, "make a socket", errno);
  return paired(name, ends[0], ends[1]);
}

std::vector<std::string> environment_of(const SandboxOptions& options, const std::string& folder) {
  std::map<std::string, std::string> all{
      {"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
      {"HOME", folder},
      {"TMPDIR", folder},
      {"LANG", "C.UTF-8"},
      {"PYTHONDONTWRITEBYTECODE", "1"},
      {"PYTHONUNBUFFERED", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"OPENBLAS_NUM_THREADS", "1"}};
  for (const auto& [key, value] : options.environment) all[key] = value;
  std::vector<std::string> out;
  for (const auto& [key, value] : all) out.push_back(fmt::format("{}={}", key, value));
  return out;
}

std::int64_t cpu_seconds(const SandboxOptions& options) {
  if (options.whole_batches) return 0;  // how many samples there will be is not known
  constexpr double kMost = 1e9;
  const double samples = static_cast<double>(options.samples_per_worker + options.samples_ahead);
  return static_cast<std::int64_t>(std::min(
      kMost, samples * seconds(options.limits.sample_cpu) + seconds(options.limits.start) + 1));
}

std::vector<std::string> arguments_of(const SandboxOptions& options, bool isolate,
                                      const std::string& folder) {
  const SandboxLimits& limits = options.limits;
  std::string hidden;
  for (const std::string& one : options.hidden_folders) hidden += one + "\n";
  std::vector<std::string> out{"troupe-sandbox"};
  for (const std::int64_t number :
       {(isolate ? std::int64_t{kIsolate} : 0) | (options.network ? std::int64_t{kNetwork} : 0),
        limits.memory.value, limits.scratch.value, limits.open_files, limits.processes,
        cpu_seconds(options)})
    out.push_back(std::to_string(number));
  out.push_back(folder);
  out.push_back(hidden);
  out.insert(out.end(), options.command.begin(), options.command.end());
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

/// A command may have taken the permissions of its own folders away.
void remove_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (!error) return;
  std::error_code ignored;
  using std::filesystem::perms;
  for (auto entry = std::filesystem::recursive_directory_iterator(folder, ignored);
       !ignored && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(ignored)) {
    if (!entry->is_symlink(ignored) && entry->is_directory(ignored))
      std::filesystem::permissions(entry->path(), perms::owner_all, ignored);
  }
  std::filesystem::permissions(folder, perms::owner_all, ignored);
  std::filesystem::remove_all(folder, error);
  if (error) log::warn("sandbox: {}: cannot remove: {}", folder, error.message());
}

/// Spawn attributes and file actions that destroy themselves.
struct SpawnPlan {
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    sigset_t set;
    sigfillset(&set);
    posix_spawnattr_setsigdefault(&attributes, &set);
    sigemptyset(&set);
    posix_spawnattr_setsigmask(&attributes, &set);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

}  // namespace

result<std::unique_ptr<SandboxProcess>> SandboxProcess::start(const SandboxOptions& options,
                                                              bool isolate) {
  std::unique_ptr<SandboxProcess> made(new SandboxProcess(options.name));
  TROUPE_TRY_VOID(made->spawn(options, isolate));
  return made;
}

result<void> SandboxProcess::spawn(const SandboxOptions& options, bool isolate) {
  std::error_code error;
  const std::filesystem::path root = options.scratch_root.empty()
                                         ? std::filesystem::temp_directory_path(error)
                                         : std::filesystem::path(options.scratch_root);
  std::string pattern = std::filesystem::absolute(root / "troupe-sandbox-XXXXXX", error).string();
  if (::mkdtemp(pattern.data()) == nullptr)
    return fail(ErrorCode::kIo, "{}: {}: cannot make a temporary folder: {}", name_, root.string(),
                std::strerror(errno));
  folder_ = pattern;
  TROUPE_TRY(Ends in, make_pipe(name_, true));
  TROUPE_TRY(Ends out, make_pipe(name_, false));
  TROUPE_TRY(Ends err, make_pipe(name_, false));
  TROUPE_TRY(Ends control, make_control(name_));
  TROUPE_TRY(const std::string image, helper_path());

  SpawnPlan plan;
  const std::array<int, 4> theirs{in.theirs.value(), out.theirs.value(), err.theirs.value(),
                                  control.theirs.value()};
  for (int target = 0; target < static_cast<int>(theirs.size()); ++target)
    posix_spawn_file_actions_adddup2(&plan.actions, theirs[static_cast<std::size_t>(target)],
                                     target);
  std::vector<std::string> words = arguments_of(options, isolate, folder_);
  std::vector<std::string> variables = environment_of(options, folder_);
  const int refused = ::posix_spawn(&helper_, image.c_str(), &plan.actions, &plan.attributes,
                                    pointers(words).data(), pointers(variables).data());
  if (refused != 0) {
    helper_ = -1;
    return refused_by_system(name_, "start its helper", refused);
  }
  exited_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, helper_, 0)));
  input_ = std::move(in.ours);
  output_ = std::move(out.ours);
  errors_ = std::move(err.ours);
  control_ = std::move(control.ours);
  if (!exited_.is_open()) return refused_by_system(name_, "watch its helper", errno);
  return {};
}

SandboxProcess::~SandboxProcess() { end(); }

const Notices& SandboxProcess::hear() {
  while (!notices_.closed) {
    NoticeRecord record{};
    const ssize_t size = ::recv(control_.value(), &record, sizeof(record), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) break;
    // Told once, before what is still queued, of a helper that ended with a budget unread.
    if (size < 0 && errno == ECONNRESET) continue;
    if (size != static_cast<ssize_t>(sizeof(record))) {
      notices_.closed = true;
      break;
    }
    switch (record.notice) {
      case Notice::kReady:
        notices_.isolation = record.value;
        break;
      case Notice::kRefused:
      case Notice::kNoCommand:
        notices_.refused = record;
        break;
      case Notice::kOverLimit:
        notices_.over_limit = static_cast<Limit>(record.value);
        break;
      case Notice::kEnded:
        notices_.status = static_cast<int>(record.value);
        break;
    }
  }
  return notices_;
}

const Notices& SandboxProcess::wait_ready(Deadline deadline) {
  while (!hear().isolation && !notices_.refused && !notices_.closed && !deadline.passed()) {
    pollfd wait{.fd = control_.value(), .events = POLLIN, .revents = 0};
    constexpr int kPollMs = 50;
    ::poll(&wait, 1, kPollMs);
  }
  return notices_;
}

void SandboxProcess::set_budget(Duration cpu, bool busy) {
  const BudgetRecord record{.cpu_budget_ns = cpu.count(), .busy = busy ? 1 : 0};
  // A helper that is gone is noticed where answers are read.
  (void)!::send(control_.value(), &record, sizeof(record), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool SandboxProcess::reaped_within(Duration span) {
  const Deadline deadline = Deadline::in(span);
  for (;;) {
    int status = 0;
    const pid_t reaped = ::waitpid(helper_, &status, WNOHANG);
    if (reaped == helper_ || (reaped < 0 && errno == ECHILD)) return true;
    if (deadline.passed()) return false;
    pollfd wait{.fd = exited_.value(), .events = POLLIN, .revents = 0};
    constexpr int kPollMs = 100;
    ::poll(&wait, exited_.is_open() ? 1 : 0, kPollMs);
    hear();  // so that the helper never waits for room
  }
}

const Notices& SandboxProcess::end() {
  if (helper_ > 0) {
    if (control_.is_open()) ::shutdown(control_.value(), SHUT_WR);  // the helper's sign to end
    bool gone = control_.is_open() && reaped_within(kKillPatience);
    if (!gone) {
      ::kill(helper_, SIGKILL);
      gone = reaped_within(kKillPatience);
    }
    if (!gone) log::error("{}: helper {} does not end", name_, helper_);
    helper_ = -1;
  }
  if (control_.is_open()) hear();
  notices_.closed = true;
  for (Descriptor* one : {&input_, &output_, &errors_, &control_, &exited_}) one->close();
  if (!folder_.empty()) remove_folder(std::exchange(folder_, {}));
  return notices_;
}

Error refusal_error(const std::string& name, const NoticeRecord& record,
                    const SandboxOptions& options) {
  const auto reason = std::strerror(static_cast<int>(record.value));
  if (record.notice == Notice::kNoCommand)
    return {.code = ErrorCode::kNotFound,
            .message = fmt::format("{}: cannot run {}: {}", name, options.command.front(), reason),
            .origin = {},
            .causes = {}};
  constexpr std::array<const char*, 8> kStages{"read its arguments",
                                               "leave the host's namespaces",
                                               "map its user",
                                               "make its mounts",
                                               "mount its temporary folder",
                                               "fork",
                                               "set the command's limits",
                                               "drop privileges"};
  const auto stage = static_cast<std::size_t>(record.stage);
  return {.code = ErrorCode::kUnsupported,
          .message = fmt::format("{}: cannot {}: {}", name,
                                 stage < kStages.size() ? kStages[stage] : "set up", reason),
          .origin = {},
          .causes = {}};
}

}  // namespace troupe::actors::sandbox

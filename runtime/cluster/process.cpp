#include "runtime/cluster/process.hpp"

#include "runtime/base/log.hpp"
#include "runtime/cluster/process_loop.hpp"
#include "runtime/cluster/small_file.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kReadsAtEnd = 32;
constexpr int kPidHandle = 3;  // P_PIDFD of waitid
// For children that SIGKILL does not end, e.g. on a dead network disk.
constexpr Duration kLeaveBehindAfter = std::chrono::seconds(5);

Duration of(const struct timeval& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
}

/// Resident size of this process. A child's counter starts from it: fork copies the mappings.
Bytes own_memory() {
  const auto text = read_small_file("/proc/self/statm");
  if (!text) return {};
  const auto begin = text->find(' ');
  const auto end = text->find(' ', begin + 1);
  if (begin == std::string::npos || end == std::string::npos) return {};
  const auto pages = parse_whole(std::string_view(*text).substr(begin + 1, end - begin - 1));
  return Bytes{pages.value_or(0) * ::sysconf(_SC_PAGESIZE)};
}

/// A parent that ignores SIGCHLD (some launchers hand that down) would never learn of exits.
void expect_children() {
  struct sigaction action {};
  if (::sigaction(SIGCHLD, nullptr, &action) != 0) return;
  const bool ignored = action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0;
  if (!ignored) return;
  action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &action, nullptr);
}

}  // namespace

ProcessTable::Loop::Loop(ProcessTableOptions options)
    : options_(std::move(options)),
      cgroups_(Cgroups::of_this_process(options_.proc_folder)),
      buffer_(kReadBytes) {}

ProcessTable::Loop::~Loop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

result<void> ProcessTable::Loop::start() {
  expect_children();
  epoll_ = FileHandle(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = FileHandle(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.open() || !wake_.open() || !watch(wake_.get(), Source::kWake, 0))
    return fail(ErrorCode::kIo, "process table: epoll: {}", std::strerror(errno));
  thread_ = std::thread([this] { run(); });
  return {};
}

bool ProcessTable::Loop::watch(int file, Source source, Key key) {
  struct epoll_event event {};
  event.events = EPOLLIN;
  event.data.u64 = key << 3U | static_cast<std::uint64_t>(source);
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, file, &event) == 0;
}

result<ProcessTable::Key> ProcessTable::Loop::spawn(ProcessSpec spec, ProcessEvents events) {
  if (spec.command.empty() || spec.command.front().empty())
    return fail(ErrorCode::kInvalidArgument, "{}: no command to start", spec.name);
  for (const std::string& word : spec.command) {
    if (word.find('\0') != std::string::npos)
      return fail(ErrorCode::kInvalidArgument, "{}: a zero byte in its command", spec.name);
  }
  auto child = std::make_unique<Child>();
  child->spec = std::move(spec);
  child->events = std::move(events);
  Command command;
  {
    const std::lock_guard lock(mutex_);
    if (closing_)
      return fail(ErrorCode::kAborted, "{}: its process table closes", child->spec.name);
    if (size() >= options_.processes_max)
      return fail(ErrorCode::kResourceExhausted, "{}: {} processes are alive, at most {}",
                  child->spec.name, size(), options_.processes_max);
    live_.fetch_add(1, std::memory_order_acq_rel);
    child->key = ++last_key_;
    command.key = child->key;
  }
  const Key key = command.key;
  command.child = std::move(child);
  post(std::move(command));
  return key;
}

void ProcessTable::Loop::stop(Key key, Duration grace, std::string reason) {
  Command command;
  command.kind = Command::Kind::kStop;
  command.key = key;
  command.grace = grace;
  command.reason = std::move(reason);
  post(std::move(command));
}

void ProcessTable::Loop::signal(Key key, int signal) {
  Command command;
  command.kind = Command::Kind::kSignal;
  command.key = key;
  command.signal = signal;
  post(std::move(command));
}

void ProcessTable::Loop::post(Command command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

bool ProcessTable::Loop::done() {
  const std::lock_guard lock(mutex_);
  return closing_ && commands_.empty() && children_.empty();
}

void ProcessTable::Loop::run() {
  std::array<struct epoll_event, 64> events{};
  TimePoint give_up = TimePoint::max();
  while (!done()) {
    const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms());
    for (int i = 0; i < ready; ++i) {
      const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
      handle(static_cast<Source>(tag & 7U), tag >> 3U);
    }
    take_commands();
    take_timers();
    bool closing = false;
    {
      const std::lock_guard lock(mutex_);
      closing = closing_;
    }
    if (closing && !killed_all_) {
      killed_all_ = true;
      give_up = steady_now() + kLeaveBehindAfter;
      for (auto& [key, child] : children_)
        apply_stop(*child, Duration::zero(), "its process table closes");
      timers_.emplace(give_up, std::pair(Key{0}, TimerKind::kDrained));
    }
    if (steady_now() < give_up) continue;
    for (auto& [key, child] : children_)
      log::warn("{}: pid {} does not end after SIGKILL; left behind", child->spec.name,
                child->started.pid);
    return;
  }
}

int ProcessTable::Loop::wait_ms() const {
  if (timers_.empty()) return -1;
  const Duration left = timers_.begin()->first - steady_now();
  if (left <= Duration::zero()) return 0;
  // Rounded up, so that the timer is due when epoll_wait returns.
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(left).count()) + 1;
}

void ProcessTable::Loop::handle(Source source, Key key) {
  if (source == Source::kWake) {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
    return;
  }
  const auto found = children_.find(key);
  if (found == children_.end()) return;  // ended earlier in this round
  Child& child = *found->second;
  switch (source) {
    case Source::kReport:
      return read_report(child);
    case Source::kOut:
    case Source::kError: {
      // One read a round, so that a child that floods does not keep the others waiting.
      const bool more = read_output(child, source == Source::kOut ? 0 : 1);
      return more ? void() : finish_if_over(key, false);
    }
    default:
      return reap(child);
  }
}

void ProcessTable::Loop::take_commands() {
  std::deque<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) {
    if (command.kind == Command::Kind::kSpawn) {
      start_one(std::move(command.child));
      continue;
    }
    const auto found = children_.find(command.key);
    if (found == children_.end() || found->second->reaped) continue;
    if (command.kind == Command::Kind::kStop) {
      apply_stop(*found->second, command.grace, command.reason);
    } else {
      ::syscall(SYS_pidfd_send_signal, found->second->started.pid_handle.get(), command.signal,
                nullptr, 0);
    }
  }
}

void ProcessTable::Loop::take_timers() {
  while (!timers_.empty() && timers_.begin()->first <= steady_now()) {
    const auto [key, kind] = timers_.begin()->second;
    timers_.erase(timers_.begin());
    const auto found = children_.find(key);
    if (found == children_.end()) continue;
    if (kind == TimerKind::kDrained) {
      finish_if_over(key, true);
    } else if (!found->second->reaped) {
      kill_now(*found->second);
    }
  }
}

void ProcessTable::Loop::start_one(std::unique_ptr<Child> owned) {
  Child& child = *owned;
  children_.emplace(child.key, std::move(owned));
  child.since = steady_now();
  if (killed_all_) return fail_start(child, "its process table closes");
  child.exit.memory_limit = child.spec.address_space_max;
  child.own_memory_at_start = own_memory();
  std::string procs;
  if (!child.spec.cgroup_parent.empty()) {
    auto cgroup = ChildCgroup::create(child.spec.cgroup_parent,
                                      fmt::format("rank-{}-{}", ::getpid(), child.key),
                                      child.spec.memory_max);
    if (!cgroup) return fail_start(child, cgroup.error().message);
    child.cgroup = std::move(*cgroup);
    procs = child.cgroup->procs_file();
    if (child.spec.memory_max) child.exit.memory_limit = child.spec.memory_max;
  }
  child.oom_kills_before = cgroups_.oom_kills().value_or(0);
  auto started = start_child(child.spec, procs);
  if (!started) return fail_start(child, started.error().message);
  child.started = std::move(*started);
  const bool watched = watch(child.started.report.get(), Source::kReport, child.key) &&
                       watch(child.started.output[0].get(), Source::kOut, child.key) &&
                       watch(child.started.output[1].get(), Source::kError, child.key) &&
                       watch(child.started.pid_handle.get(), Source::kOver, child.key);
  if (watched) return;
  const std::string why = fmt::format("epoll: {}", std::strerror(errno));
  kill_group(child, SIGKILL);
  ::waitpid(child.started.pid, nullptr, 0);
  fail_start(child, why);
}

void ProcessTable::Loop::fail_start(Child& child, const std::string& why) {
  child.exit.kind = ProcessExit::Kind::kNotStarted;
  child.exit.start_error = why;
  child.reaped = true;
  finish_if_over(child.key, true);
}

void ProcessTable::Loop::read_report(Child& child) {
  ChildFailure failure;
  const ssize_t got = ::read(child.started.report.get(), &failure, sizeof failure);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  child.started.report.reset();  // also takes it out of epoll
  if (got == static_cast<ssize_t>(sizeof failure)) {
    child.exit.kind = ProcessExit::Kind::kNotStarted;
    child.exit.start_error = child_failure_text(child.spec, failure);
    return;
  }
  child.running = true;
  if (child.events.on_started) child.events.on_started(child.started.pid);
}

bool ProcessTable::Loop::read_output(Child& child, std::size_t stream) {
  const int file = child.started.output[stream].get();
  if (file < 0) return false;
  const ssize_t got = ::read(file, buffer_.data(), buffer_.size());
  if (got > 0) {
    if (child.events.on_output)
      child.events.on_output(stream == 0 ? OutputStream::kOut : OutputStream::kError,
                             std::string_view(buffer_.data(), static_cast<std::size_t>(got)));
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) child.started.output[stream].reset();
  return false;
}

void ProcessTable::Loop::reap(Child& child) {
  // While it is not reaped its id, and that of its group, cannot be given to anybody else.
  kill_group(child, SIGKILL);
  if (child.cgroup) child.cgroup->kill_all();
  siginfo_t info{};
  struct rusage usage {};
  const long waited = ::syscall(SYS_waitid, kPidHandle, child.started.pid_handle.get(), &info,
                                WEXITED | WNOHANG, &usage);
  if (waited == 0 && info.si_pid == 0) return;  // not yet
  if (child.started.report.open()) read_report(child);
  child.reaped = true;
  child.started.pid_handle.reset();
  ProcessExit& exit = child.exit;
  exit.wall = steady_now() - child.since;
  if (waited != 0) {
    exit.kind = ProcessExit::Kind::kNotStarted;
    exit.start_error = fmt::format("waitid: {}: somebody else reaped it", std::strerror(errno));
  } else if (exit.kind != ProcessExit::Kind::kNotStarted) {
    const bool exited = info.si_code == CLD_EXITED;
    exit.kind = exited ? ProcessExit::Kind::kExited : ProcessExit::Kind::kSignalled;
    (exited ? exit.code : exit.signal) = info.si_status;
    exit.core_dumped = info.si_code == CLD_DUMPED;
    exit.cpu = of(usage.ru_utime) + of(usage.ru_stime);
    const Bytes peak{usage.ru_maxrss * 1024};
    if (peak > child.own_memory_at_start) exit.peak_memory = peak;
    exit.oom_kills = child.cgroup ? child.cgroup->oom_kills()
                                  : cgroups_.oom_kills().value_or(0) - child.oom_kills_before;
  }
  timers_.emplace(steady_now() + options_.drain, std::pair(child.key, TimerKind::kDrained));
  finish_if_over(child.key, false);
}

void ProcessTable::Loop::finish_if_over(Key key, bool drained) {
  const auto found = children_.find(key);
  if (found == children_.end()) return;
  Child& child = *found->second;
  auto& output = child.started.output;
  if (!child.reaped || (!drained && (output[0].open() || output[1].open()))) return;
  for (std::size_t stream = 0; stream < output.size(); ++stream) {
    // What it wrote itself is at most a pipe's content; more comes from whoever holds it open.
    for (int i = 0; i < kReadsAtEnd && read_output(child, stream); ++i) continue;
  }
  const std::unique_ptr<Child> last = std::move(found->second);
  children_.erase(found);
  last->started = {};
  last->cgroup = nullptr;
  std::erase_if(timers_, [key](const Timer& timer) { return timer.second.first == key; });
  // Before the callback, so that it may start the next one.
  live_.fetch_sub(1, std::memory_order_acq_rel);
  if (last->events.on_exit) last->events.on_exit(last->exit);
}

void ProcessTable::Loop::kill_group(const Child& child, int signal) const {
  ::kill(-child.started.pid, signal);
  if (child.started.pid_handle.open())
    ::syscall(SYS_pidfd_send_signal, child.started.pid_handle.get(), signal, nullptr, 0);
}

void ProcessTable::Loop::kill_now(Child& child) {
  child.exit.we_killed = true;
  kill_group(child, SIGKILL);
}

void ProcessTable::Loop::apply_stop(Child& child, Duration grace, const std::string& reason) {
  if (child.reaped) return;
  if (child.exit.stop_reason.empty()) child.exit.stop_reason = reason;
  if (grace <= Duration::zero()) return kill_now(child);
  kill_group(child, SIGTERM);
  kill_group(child, SIGCONT);  // a stopped process cannot handle SIGTERM
  timers_.emplace(steady_now() + grace, std::pair(child.key, TimerKind::kKill));
}

ProcessTable::ProcessTable(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
ProcessTable::~ProcessTable() = default;

result<std::unique_ptr<ProcessTable>> ProcessTable::open(ProcessTableOptions options) {
  auto loop = std::make_unique<Loop>(std::move(options));
  TROUPE_TRY_VOID(loop->start());
  return std::unique_ptr<ProcessTable>(new ProcessTable(std::move(loop)));
}

result<ProcessTable::Key> ProcessTable::spawn(ProcessSpec spec, ProcessEvents events) {
  return loop_->spawn(std::move(spec), std::move(events));
}
void ProcessTable::stop(Key key, Duration grace, std::string reason) {
  loop_->stop(key, grace, std::move(reason));
}
void ProcessTable::signal(Key key, int signal) { loop_->signal(key, signal); }
std::size_t ProcessTable::size() const { return loop_->size(); }

}  // namespace troupe::runtime

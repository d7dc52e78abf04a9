#include "actors/sandbox/sandbox_worker.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace troupe::actors::sandbox {
namespace {

constexpr std::size_t kReadBytes = 65536;
constexpr std::size_t kErrorBytesKept = 2048;
constexpr const char* kClosedInput = "closed its input";

/// The end of what a process complained about, on one line.
std::string shown(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  constexpr std::size_t kShown = 300;
  if (text.size() > kShown) text = "…" + text.substr(text.size() - kShown);
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

std::string with_errors(std::string text, const std::string& errors) {
  const std::string last = shown(errors);
  return last.empty() ? text : fmt::format("{}; it said: {}", text, last);
}

}  // namespace

std::size_t Worker::room() const {
  if (!running() || close_after_ || deaf_ || failure_) return 0;
  const std::int64_t left =
      options_.samples_per_worker - served_ - static_cast<std::int64_t>(asked_.size());
  // Refilled by halves, so that budgets and wake-ups are shared by several lines.
  const auto ahead = static_cast<std::size_t>(options_.samples_ahead);
  if (asked_.size() > ahead / 2) return 0;
  return std::min(ahead - asked_.size(), static_cast<std::size_t>(std::max<std::int64_t>(left, 0)));
}

result<void> Worker::start(bool isolate, std::int64_t serial) {
  retire();
  TROUPE_TRY(process_, SandboxProcess::start(options_, isolate));
  serial_ = serial;
  to_write_.clear();
  read_.clear();
  errors_.clear();
  detail_.clear();
  written_ = scanned_ = 0;
  served_ = 0;
  close_after_ = answered_any_ = surplus_ = deaf_ = false;
  failure_.reset();
  refused_.reset();
  return {};
}

void Worker::ask(std::size_t line, std::string_view text, bool last) {
  if (asked_.empty()) front_since_ = steady_now();
  asked_.push_back(line);
  to_write_.append(text).push_back('\n');
  close_after_ = last;
}

void Worker::begin_work() {
  const auto samples = static_cast<std::int64_t>(asked_.size());
  const Duration start = answered_any_ ? Duration::zero() : options_.limits.start;
  process_->set_budget(options_.limits.sample_cpu * samples + start, true);
  write_input();
}

void Worker::rest() {
  if (running()) process_->set_budget(options_.limits.sample_cpu, false);
}

void Worker::add_waits(std::vector<pollfd>& waits) const {
  const bool writes = written_ < to_write_.size() && process_->input().is_open();
  waits.push_back({.fd = process_->output().value(), .events = POLLIN, .revents = 0});
  waits.push_back({.fd = process_->errors().value(), .events = POLLIN, .revents = 0});
  waits.push_back({.fd = process_->control().value(), .events = POLLIN, .revents = 0});
  if (writes) waits.push_back({.fd = process_->input().value(), .events = POLLOUT, .revents = 0});
}

std::optional<TimePoint> Worker::late_at() const {
  if (asked_.empty()) return std::nullopt;
  const auto samples = static_cast<std::int64_t>(options_.whole_batches ? asked_.size() : 1);
  const Duration start = answered_any_ ? Duration::zero() : options_.limits.start;
  return front_since_ + options_.limits.sample_wall * samples + start;
}

bool Worker::advance(TimePoint now, std::vector<WorkerNews>& news) {
  write_input();
  read_errors();
  const Notices& notices = process_->hear();
  if (notices.refused) {
    refused_ = notices.refused;
    return true;
  }
  if (read_output(now, news)) return true;
  if (deaf_ && asked_.empty()) {
    set_failure(SandboxFailure::kExited, kClosedInput);
    return true;
  }
  if (notices.over_limit || notices.status || notices.closed) {
    set_failure(SandboxFailure::kExited, "");  // `fail_front` finds out more
    return true;
  }
  const auto late = late_at();
  if (late && now >= *late) {
    set_failure(SandboxFailure::kWallTime,
                fmt::format("no answer in {:.3f} s", seconds(now - front_since_)));
    return true;
  }
  return false;
}

void Worker::write_input() {
  while (written_ < to_write_.size() && process_->input().is_open()) {
    const ssize_t size = ::write(process_->input().value(), to_write_.data() + written_,
                                 to_write_.size() - written_);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size < 0) {
      retract_unread();
      return;
    }
    written_ += static_cast<std::size_t>(size);
  }
  if (written_ < to_write_.size()) return;
  to_write_.clear();
  written_ = 0;
  if (close_after_) process_->close_input();
}

void Worker::retract_unread() {
  deaf_ = true;
  process_->close_input();
  for (std::size_t at = written_; at < to_write_.size(); ++at) {
    if (to_write_[at] != '\n' || asked_.empty()) continue;
    retracted_.push_front(asked_.back());
    asked_.pop_back();
  }
  to_write_.clear();
  written_ = 0;
}

void Worker::read_errors() {
  std::array<char, 4096> bytes;
  // Bounded a round, so that a flood here does not keep others waiting.
  for (int i = 0; i < 16 && process_->errors().is_open(); ++i) {
    const ssize_t size = ::read(process_->errors().value(), bytes.data(), bytes.size());
    if (size <= 0) break;
    errors_.append(bytes.data(), static_cast<std::size_t>(size));
    if (errors_.size() > 2 * kErrorBytesKept) errors_.erase(0, errors_.size() - kErrorBytesKept);
  }
}

bool Worker::read_output(TimePoint now, std::vector<WorkerNews>& news) {
  for (;;) {
    const std::size_t had = read_.size();
    read_.resize(had + kReadBytes);
    const ssize_t size = ::read(process_->output().value(), read_.data() + had, kReadBytes);
    read_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return false;  // nothing more for now
    if (size == 0) {
      // A last line may lack its end.
      if (!read_.empty() && !asked_.empty()) give(now, std::exchange(read_, {}), news);
      set_failure(SandboxFailure::kExited, "closed its output");
      return true;
    }
    if (take_lines(now, news)) return true;
  }
}

bool Worker::take_lines(TimePoint now, std::vector<WorkerNews>& news) {
  const auto answer_max = static_cast<std::size_t>(options_.limits.answer.value);
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = read_.find('\n', std::max(begin, scanned_));
    const std::size_t stop = end == std::string::npos ? read_.size() : end;
    if (stop - begin > answer_max) {
      set_failure(SandboxFailure::kOutput,
                  fmt::format("a line of more than {}", to_string(options_.limits.answer)));
      return true;
    }
    if (end == std::string::npos) break;
    if (asked_.empty()) {
      surplus_ = true;
      set_failure(SandboxFailure::kAnswer, "more lines than samples");
      return true;
    }
    give(now, std::string_view(read_).substr(begin, end - begin), news);
    begin = end + 1;
    scanned_ = begin;
    if (deaf_ && !asked_.empty()) {
      // It may never have read the others: they go elsewhere.
      set_failure(SandboxFailure::kExited, kClosedInput);
      return true;
    }
  }
  read_.erase(0, begin);
  scanned_ = read_.size();
  return false;
}

void Worker::give(TimePoint now, std::string_view line, std::vector<WorkerNews>& news) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  news.push_back(
      {.line = asked_.front(), .answer = {.line = std::string(line), .failure = {}, .detail = {}}});
  asked_.pop_front();
  front_since_ = now;
  ++served_;
  if (!std::exchange(answered_any_, true)) begin_work();  // the start is over: a tighter budget
}

void Worker::set_failure(SandboxFailure failure, std::string detail) {
  if (failure_) return;
  failure_ = failure;
  detail_ = std::move(detail);
}

void Worker::explain_ending(const Notices& notices) {
  // What was seen from outside is the reason, unless it is only that the process ended.
  if (failure_ != SandboxFailure::kExited) return;
  if (notices.over_limit) {
    switch (*notices.over_limit) {
      case Limit::kCpu:
        failure_ = SandboxFailure::kCpuTime;
        break;
      case Limit::kMemory:
        failure_ = SandboxFailure::kMemory;
        break;
      case Limit::kProcesses:
        failure_ = SandboxFailure::kProcesses;
        break;
    }
    detail_ = fmt::format("over its limit of {}", sandbox_failure_name(*failure_));
  } else if (notices.status && WIFSIGNALED(*notices.status)) {
    const int signal = WTERMSIG(*notices.status);
    failure_ = signal == SIGXCPU   ? SandboxFailure::kCpuTime
               : signal == SIGXFSZ ? SandboxFailure::kScratch
                                   : SandboxFailure::kCrashed;
    detail_ = fmt::format("ended by signal {} ({})", signal, ::strsignal(signal));
  } else if (notices.status) {
    detail_ = fmt::format("exited with {}", WEXITSTATUS(*notices.status));
  }
}

void Worker::fail_front(std::vector<WorkerNews>& news, std::vector<std::size_t>& again) {
  if (failure_ == SandboxFailure::kExited) {
    // The helper tells how it ended a moment after the pipes closed.
    const Deadline deadline = Deadline::in(std::chrono::seconds(1));
    while (!process_->hear().closed && !process_->hear().status && !process_->hear().over_limit &&
           !deadline.passed()) {
      pollfd wait{.fd = process_->control().value(), .events = POLLIN, .revents = 0};
      ::poll(&wait, 1, 10);
    }
  }
  read_errors();
  const Notices notices = process_->end();
  process_.reset();
  if (notices.refused) refused_ = notices.refused;
  explain_ending(notices);
  const std::string detail = with_errors(detail_, errors_);
  // A process that had read on while deaf owes nothing; others fail by their first open line.
  const bool all_fail = options_.whole_batches;
  const bool none_fails = refused_.has_value() || (deaf_ && detail_ == kClosedInput);
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    if (none_fails || (i > 0 && !all_fail)) {
      again.push_back(asked_[i]);
    } else {
      news.push_back(
          {.line = asked_[i], .answer = {.line = {}, .failure = failure_, .detail = detail}});
    }
  }
  again.insert(again.end(), retracted_.begin(), retracted_.end());
  asked_.clear();
  retracted_.clear();
}

void Worker::retire() {
  asked_.clear();
  retracted_.clear();
  if (process_) process_->end();
  process_.reset();
}

}  // namespace troupe::actors::sandbox

#include "actors/sandbox/sandbox_pool.hpp"

#include "actors/sandbox/sandbox_worker.hpp"
#include "runtime/base/log.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <utility>

namespace troupe::actors {

using sandbox::Notices;
using sandbox::Worker;
using sandbox::WorkerNews;

std::string_view sandbox_failure_name(SandboxFailure failure) {
  constexpr std::array<std::string_view, kSandboxFailures> kNames{
      "wall_time", "cpu_time", "memory", "processes", "scratch",
      "output",    "crashed",  "exited", "answer"};
  return kNames[static_cast<std::size_t>(failure)];
}

namespace {

/// Writing to a process that is gone is an error here, not a signal that ends this process.
class PipeSignalGuard {
 public:
  PipeSignalGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  PipeSignalGuard(const PipeSignalGuard&) = delete;
  PipeSignalGuard& operator=(const PipeSignalGuard&) = delete;
  ~PipeSignalGuard() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace

class SandboxPool::Impl {
 public:
  explicit Impl(SandboxOptions options) : options_(std::move(options)) {
    for (int i = 0; i < options_.workers; ++i) {
      seats_.push_back(std::make_unique<Worker>(options_));
      idle_.push_back(seats_.back().get());
    }
  }

  result<void> begin();
  result<std::vector<SandboxAnswer>> run(std::span<const std::string> lines, Deadline deadline);
  const SandboxOptions& options() const { return options_; }
  SandboxStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  class Drive;
  result<std::vector<Worker*>> lease(std::size_t wanted, Deadline deadline);
  void give_back(const std::vector<Worker*>& workers);
  result<void> start(Worker& worker);
  template <class Change>
  void count(Change change) {
    const std::lock_guard lock(mutex_);
    change(stats_);
  }

  const SandboxOptions options_;
  std::vector<std::unique_ptr<Worker>> seats_;
  std::atomic<bool> isolate_{true};
  std::atomic<bool> answered_{false};  // the command has answered something, ever
  std::atomic<int> failures_at_start_{0};

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable returned_;
  std::vector<Worker*> idle_;
  SandboxStats stats_;
};

/// One call: hands lines to workers and collects what comes back.
class SandboxPool::Impl::Drive {
 public:
  Drive(Impl& pool, std::span<const std::string> lines, std::vector<Worker*> workers)
      : pool_(pool),
        lines_(lines),
        workers_(std::move(workers)),
        answers_(lines.size()),
        given_to_(lines.size(), kNobody) {
    for (std::size_t i = 0; i < lines.size(); ++i) waiting_.push_back(i);
    batch_ = (lines.size() + workers_.size() - 1) / workers_.size();
  }

  result<void> run(Deadline deadline) {
    while (open() > 0) {
      if (deadline.passed())
        return fail(ErrorCode::kDeadline, "{}: {} of {} samples have no answer at the deadline",
                    pool_.options_.name, open(), lines_.size());
      for (Worker* worker : workers_) TROUPE_TRY_VOID(feed(*worker));
      wait(deadline);
      for (Worker* worker : workers_) TROUPE_TRY_VOID(advance(*worker));
    }
    return {};
  }
  std::vector<SandboxAnswer> take() { return std::move(answers_); }
  /// Ends what is under way, or lets the workers rest.
  void finish() {
    for (Worker* worker : workers_) {
      if (!worker->running()) continue;
      if (!worker->asked_nothing() || pool_.options_.whole_batches) {
        worker->retire();
      } else {
        worker->rest();
      }
    }
  }

 private:
  static constexpr std::int64_t kNobody = 0;  // serials begin at 1

  std::size_t open() const { return lines_.size() - done_; }

  result<void> feed(Worker& worker) {
    if (waiting_.empty()) return {};
    const bool whole = pool_.options_.whole_batches;
    if (worker.running() && worker.asked_nothing() && (worker.used_up() || whole)) {
      if (worker.used_up() || worker.answered_any()) {
        worker.retire();
        pool_.count([](SandboxStats& stats) { ++stats.workers_recycled; });
      }
    }
    if (!worker.running()) TROUPE_TRY_VOID(pool_.start(worker));
    std::size_t room = whole ? (worker.asked_nothing() ? batch_ : 0) : worker.room();
    if (room == 0) return {};
    // Slow samples want many hands: no worker takes more than its share of what is left.
    const std::size_t share = (waiting_.size() + workers_.size() - 1) / workers_.size();
    for (room = std::min(room, share); room > 0; --room) {
      const std::size_t line = waiting_.front();
      waiting_.pop_front();
      given_to_[line] = worker.serial();
      worker.ask(line, lines_[line], whole && room == 1);
    }
    worker.begin_work();
    return {};
  }

  void wait(Deadline deadline) {
    waits_.clear();
    TimePoint until = deadline.at;
    for (const Worker* worker : workers_) {
      if (!worker->running()) continue;
      worker->add_waits(waits_);
      if (const auto late = worker->late_at()) until = std::min(until, *late);
    }
    constexpr std::int64_t kLongestMs = 1000;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_now()).count();
    ::poll(waits_.data(), static_cast<nfds_t>(waits_.size()),
           static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongestMs)));
  }

  result<void> advance(Worker& worker) {
    if (!worker.running()) return {};
    std::vector<WorkerNews> news;
    const bool over = worker.advance(steady_now(), news);
    if (!news.empty()) {
      pool_.answered_ = true;
      if (pool_.failures_at_start_ != 0) pool_.failures_at_start_ = 0;
    }
    if (!over) {
      take_news(news);
      return {};
    }
    const bool idle = worker.asked_nothing();
    std::vector<std::size_t> again;
    worker.fail_front(news, again);
    if (const auto refused = worker.refused()) {
      waiting_.insert(waiting_.begin(), again.begin(), again.end());
      return fail(sandbox::refusal_error(pool_.options_.name, *refused, pool_.options_));
    }
    take_news(news);
    for (const std::size_t line : again) given_to_[line] = kNobody;
    waiting_.insert(waiting_.begin(), again.begin(), again.end());
    if (worker.wrote_surplus()) distrust(worker);
    if (idle && !worker.wrote_surplus()) {
      pool_.count([](SandboxStats& stats) { ++stats.workers_recycled; });
      return {};  // it ended between samples: a fresh one takes over
    }
    pool_.count([](SandboxStats& stats) { ++stats.workers_killed; });
    return still_hopeful(news);
  }

  /// A command that has never answered anything is broken.
  result<void> still_hopeful(const std::vector<WorkerNews>& news) {
    if (pool_.answered_ || ++pool_.failures_at_start_ < pool_.options_.failures_at_start_max)
      return {};
    std::string last = "nothing";
    for (const WorkerNews& one : news) {
      if (one.answer.failure)
        last = fmt::format("{}: {}", sandbox_failure_name(*one.answer.failure), one.answer.detail);
    }
    return fail(ErrorCode::kAborted, "{}: {} has never answered, after {} processes; the last: {}",
                pool_.options_.name, pool_.options_.command.front(),
                pool_.failures_at_start_.load(), last);
  }

  void take_news(std::vector<WorkerNews>& news) {
    for (WorkerNews& one : news) {
      ++done_;
      if (one.answer.failure) count_failure(*one.answer.failure);
      answers_[one.line] = one.answer;
    }
  }

  /// Lines do not tell which sample they are of: one too many, and none of them can be believed.
  void distrust(const Worker& worker) {
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      if (given_to_[i] != worker.serial() || answers_[i].failure) continue;
      answers_[i] = {.line = {},
                     .failure = SandboxFailure::kAnswer,
                     .detail = "its process wrote more lines than it had samples"};
      count_failure(SandboxFailure::kAnswer);
    }
  }

  void count_failure(SandboxFailure failure) {
    pool_.count(
        [failure](SandboxStats& stats) { ++stats.failures[static_cast<std::size_t>(failure)]; });
  }

  Impl& pool_;
  std::span<const std::string> lines_;
  std::vector<Worker*> workers_;
  std::vector<SandboxAnswer> answers_;
  std::vector<std::int64_t> given_to_;  // serials of processes
  std::deque<std::size_t> waiting_;
  std::vector<pollfd> waits_;
  std::size_t batch_ = 1;
  std::size_t done_ = 0;
};

result<void> SandboxPool::Impl::begin() {
  const PipeSignalGuard guard;
  Worker& first = *seats_.front();
  TROUPE_TRY_VOID(start(first));
  Notices notices = first.process().wait_ready(Deadline::in(options_.limits.start));
  if (!notices.isolation) {
    const Error refused =
        notices.refused ? sandbox::refusal_error(options_.name, *notices.refused, options_)
                        : Error{.code = ErrorCode::kUnsupported,
                                .message = fmt::format("{}: its helper ended before it was ready",
                                                       options_.name),
                                .origin = {},
                                .causes = {}};
    if (options_.require_isolation || !notices.refused ||
        notices.refused->notice != sandbox::Notice::kRefused)
      return fail(refused);
    log::warn(
        "{}: RUNS WITHOUT ISOLATION: {}; the command can reach the network and whatever this user "
        "can write (require_isolation refuses this)",
        options_.name, refused.message);
    stats_.weakness = refused.message;
    isolate_ = false;
    TROUPE_TRY_VOID(start(first));
    notices = first.process().wait_ready(Deadline::in(options_.limits.start));
    if (!notices.isolation)
      return fail(ErrorCode::kUnsupported, "{}: its helper does not start", options_.name);
  }
  stats_.isolated = isolate_;
  for (std::size_t i = 1; i < seats_.size(); ++i) TROUPE_TRY_VOID(start(*seats_[i]));
  return {};
}

result<void> SandboxPool::Impl::start(Worker& worker) {
  std::int64_t serial = 0;
  count([&serial](SandboxStats& stats) { serial = ++stats.processes_started; });
  return worker.start(isolate_, serial);
}

result<std::vector<Worker*>> SandboxPool::Impl::lease(std::size_t wanted, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!returned_.wait_until(lock, deadline.at, [this] { return !idle_.empty(); }))
    return fail(ErrorCode::kDeadline, "{}: all {} workers are busy with other calls", options_.name,
                options_.workers);
  const std::size_t count = std::min(std::max<std::size_t>(wanted, 1), idle_.size());
  std::vector<Worker*> leased(idle_.end() - static_cast<std::ptrdiff_t>(count), idle_.end());
  idle_.resize(idle_.size() - count);
  return leased;
}

void SandboxPool::Impl::give_back(const std::vector<Worker*>& workers) {
  {
    const std::lock_guard lock(mutex_);
    idle_.insert(idle_.end(), workers.begin(), workers.end());
  }
  returned_.notify_all();
}

result<std::vector<SandboxAnswer>> SandboxPool::Impl::run(std::span<const std::string> lines,
                                                          Deadline deadline) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find('\n') != std::string::npos)
      return fail(ErrorCode::kInvalidArgument, "{}: sample {} has a line end", options_.name, i);
  }
  if (lines.empty()) return std::vector<SandboxAnswer>{};
  TROUPE_TRY(const std::vector<Worker*> workers, lease(lines.size(), deadline));
  const PipeSignalGuard guard;
  Drive drive(*this, lines, workers);
  result<void> driven = drive.run(deadline);
  drive.finish();
  give_back(workers);
  if (!driven) return fail(std::move(driven).error());
  count(
      [&lines](SandboxStats& stats) { stats.samples += static_cast<std::int64_t>(lines.size()); });
  return drive.take();
}

SandboxPool::SandboxPool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SandboxPool::~SandboxPool() = default;

result<std::unique_ptr<SandboxPool>> SandboxPool::open(SandboxOptions options) {
  TROUPE_TRY_VOID(options.check());
  auto impl = std::make_unique<Impl>(std::move(options));
  TROUPE_TRY_VOID(impl->begin());
  return std::unique_ptr<SandboxPool>(new SandboxPool(std::move(impl)));
}

result<std::vector<SandboxAnswer>> SandboxPool::run(std::span<const std::string> lines,
                                                    Deadline deadline) {
  return impl_->run(lines, deadline);
}

const SandboxOptions& SandboxPool::options() const { return impl_->options(); }
SandboxStats SandboxPool::stats() const { return impl_->stats(); }

}  // namespace troupe::actors

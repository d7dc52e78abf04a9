#include "runtime/cluster/log_forwarder.hpp"

#include "runtime/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::runtime {
namespace {

/// What a line costs in the queue and in a batch, about.
std::size_t cost_of(const LogLine& line) { return line.text.size() + line.group.size() + 32; }

}  // namespace

class LogForwarder::Impl {
 public:
  Impl(LogForwarderOptions options, Sink sink)
      : options_(std::move(options)), sink_(std::move(sink)), thread_([this] { run(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Id open(const std::string& job, const std::string& group, RankId rank) {
    const std::lock_guard lock(mutex_);
    const Id id = ++last_id_;
    sources_.emplace(
        id, Source{.job = job, .group = group, .rank = rank, .lines = LogLines(options_.limits)});
    return id;
  }

  void feed(Id id, std::size_t stream, std::string_view bytes) {
    bool full = false;
    {
      const std::lock_guard lock(mutex_);
      const auto found = sources_.find(id);
      if (found == sources_.end()) return;
      std::vector<std::string> lines;
      found->second.lines.feed(stream, bytes, steady_now(), lines);
      full = put(found->second, std::move(lines)) >= options_.batch_bytes;
      if (std::exchange(dirty_, true) && !full) return;
      urgent_ = urgent_ || full;
    }
    wake_.notify_one();
  }

  std::vector<std::string> last_lines(Id id) const {
    const std::lock_guard lock(mutex_);
    const auto found = sources_.find(id);
    return found == sources_.end() ? std::vector<std::string>() : found->second.lines.last_lines();
  }

  std::vector<std::string> close(Id id) {
    std::vector<std::string> last;
    std::string job;
    {
      const std::lock_guard lock(mutex_);
      const auto found = sources_.find(id);
      if (found == sources_.end()) return last;
      std::vector<std::string> lines;
      found->second.lines.finish(steady_now(), lines);
      put(found->second, std::move(lines));
      last = found->second.lines.last_lines();
      job = found->second.job;
      sources_.erase(found);
    }
    send(job);
    return last;
  }

  void drop_job(const std::string& job) {
    const std::lock_guard lock(mutex_);
    queues_.erase(job);
  }

 private:
  struct Source {
    std::string job;
    std::string group;
    RankId rank;
    LogLines lines;
  };
  struct Queue {
    std::deque<LogLine> lines;
    std::size_t bytes = 0;
    std::uint64_t dropped = 0;
  };

  /// Bytes queued for the job afterwards. Called with mutex_ held.
  std::size_t put(const Source& source, std::vector<std::string> lines) {
    if (lines.empty()) return 0;
    Queue& queue = queues_[source.job];
    for (std::string& text : lines) {
      LogLine line{.group = source.group, .rank = source.rank, .text = std::move(text)};
      const std::size_t cost = cost_of(line);
      if (queue.bytes + cost > options_.queue_bytes_max) {
        ++queue.dropped;
        continue;
      }
      queue.bytes += cost;
      queue.lines.push_back(std::move(line));
    }
    return queue.bytes;
  }

  /// Gives the sink what `job` has queued, in batches, until it refuses.
  void send(const std::string& job) {
    const std::lock_guard one_at_a_time(sink_mutex_);
    for (;;) {
      LogBatch batch{.node = options_.node, .lines = {}, .lines_dropped = 0};
      std::size_t bytes = 0;
      {
        const std::lock_guard lock(mutex_);
        const auto found = queues_.find(job);
        if (found == queues_.end()) return;
        Queue& queue = found->second;
        if (queue.lines.empty() && queue.dropped == 0) {
          queues_.erase(found);
          return;
        }
        batch.lines_dropped = std::exchange(queue.dropped, 0);
        while (!queue.lines.empty() && (bytes == 0 || bytes < options_.batch_bytes)) {
          bytes += cost_of(queue.lines.front());
          batch.lines.push_back(std::move(queue.lines.front()));
          queue.lines.pop_front();
        }
        queue.bytes -= bytes;
      }
      if (sink_(job, batch)) continue;
      put_back(job, std::move(batch), bytes);
      return;
    }
  }

  void put_back(const std::string& job, LogBatch batch, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Queue& queue = queues_[job];
    queue.dropped += batch.lines_dropped;
    queue.bytes += bytes;
    queue.lines.insert(queue.lines.begin(), std::make_move_iterator(batch.lines.begin()),
                       std::make_move_iterator(batch.lines.end()));
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      if (!dirty_) wake_.wait(lock, [this] { return dirty_ || closing_; });
      wake_.wait_for(lock, options_.flush_every, [this] { return urgent_ || closing_; });
      urgent_ = false;
      const TimePoint now = steady_now();
      bool waiting = false;
      for (auto& [id, source] : sources_) {
        std::vector<std::string> lines;
        if (source.lines.next_tick() <= now) source.lines.tick(now, lines);
        put(source, std::move(lines));
        waiting = waiting || source.lines.next_tick() != TimePoint::max();
      }
      std::vector<std::string> jobs;
      for (const auto& [job, queue] : queues_) jobs.push_back(job);
      lock.unlock();
      for (const std::string& job : jobs) send(job);
      lock.lock();
      // A sink that refused, and lines held back, are looked at again.
      dirty_ = waiting || !queues_.empty();
    }
  }

  const LogForwarderOptions options_;
  const Sink sink_;
  std::mutex sink_mutex_;     // held while the sink runs; taken before mutex_
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::map<Id, Source> sources_;
  std::map<std::string, Queue> queues_;
  Id last_id_ = 0;
  bool dirty_ = false;
  bool urgent_ = false;
  bool closing_ = false;
  std::thread thread_;
};

LogForwarder::LogForwarder(LogForwarderOptions options, Sink sink)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(sink))) {}
LogForwarder::~LogForwarder() = default;
LogForwarder::Id LogForwarder::open(const std::string& job, const std::string& group, RankId rank) {
  return impl_->open(job, group, rank);
}
void LogForwarder::feed(Id id, std::size_t stream, std::string_view bytes) {
  impl_->feed(id, stream, bytes);
}
std::vector<std::string> LogForwarder::last_lines(Id id) const { return impl_->last_lines(id); }
std::vector<std::string> LogForwarder::close(Id id) { return impl_->close(id); }
void LogForwarder::drop_job(const std::string& job) { impl_->drop_job(job); }

std::string to_text(const LogBatch& batch) {
  std::string text;
  const std::string node = batch.node.empty() ? "" : batch.node + " ";
  if (batch.lines_dropped > 0)
    text += fmt::format("[{}] dropped {} lines: too many at once\n",
                        batch.node.empty() ? "log" : batch.node, batch.lines_dropped);
  for (const LogLine& line : batch.lines)
    text += fmt::format("[{}{}/{}] {}\n", node, line.group, line.rank.value, line.text);
  return text;
}

}  // namespace troupe::runtime

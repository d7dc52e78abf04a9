#include "runtime/link/channel_pair.hpp"

#include "runtime/link/endpoint.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace troupe::runtime {
namespace {

/// One thread for the pairs of a process, as a hub has one for its sockets. It starts with the
/// first pair and is joined when the process ends.
class PairThread {
 public:
  PairThread() : thread_([this] { run(); }) {}
  ~PairThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  PairThread(const PairThread&) = delete;
  PairThread& operator=(const PairThread&) = delete;

  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  void post_at(TimePoint at, std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      later_.emplace(at, std::move(work));
    }
    changed_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      const TimePoint now = steady_now();
      std::function<void()> next;
      if (!later_.empty() && later_.begin()->first <= now) {
        next = std::move(later_.begin()->second);
        later_.erase(later_.begin());
      } else if (!work_.empty()) {
        next = std::move(work_.front());
        work_.pop_front();
      } else if (later_.empty()) {
        changed_.wait(lock);
        continue;
      } else {
        changed_.wait_until(lock, later_.begin()->first);
        continue;
      }
      lock.unlock();
      next();
      next = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::multimap<TimePoint, std::function<void()>> later_;
  bool stop_ = false;
  std::thread thread_;
};

PairThread& pair_thread() {
  static PairThread thread;
  return thread;
}

class PairTransport;

/// Both ends, kept until the pair goes down.
struct PairState : RefCounted {
  std::mutex mutex;  // guards ends
  std::array<Ref<Endpoint>, 2> ends;

  Ref<Endpoint> end(std::size_t index) {
    const std::lock_guard lock(mutex);
    return ends[index];
  }
  /// Takes both ends down: `by` with `cause`, the other with a dead peer.
  void down(std::size_t by, const Error& cause) {
    std::array<Ref<Endpoint>, 2> gone;
    {
      const std::lock_guard lock(mutex);
      gone.swap(ends);
    }
    if (gone[by]) gone[by]->down(cause);
    const Ref<Endpoint>& other = gone[1 - by];
    if (other)
      other->down(Error(cause).wrap(ErrorCode::kRankDead,
                                    fmt::format("{}: closed the channel", other->place())));
  }
};

class PairTransport final : public ChannelTransport {
 public:
  PairTransport(Ref<PairState> state, std::size_t own, std::size_t bytes_max)
      : state_(std::move(state)), own_(own), bytes_max_(bytes_max) {}

  result<void> send(std::vector<std::byte> envelope, bool urgent) override {
    const std::size_t size = envelope.size();
    const std::size_t queued = bytes_.fetch_add(size) + size;
    if (queued > bytes_max_ && !urgent) {
      bytes_ -= size;
      const auto self = state_->end(own_);
      return fail(ErrorCode::kResourceExhausted,
                  "{}: {} bytes are queued and {} more do not fit, at most {}",
                  self ? self->place() : "channel pair", queued - size, size, bytes_max_);
    }
    pair_thread().post([self = Ref<PairTransport>(this), frame = std::move(envelope)] {
      self->bytes_ -= frame.size();
      const Ref<Endpoint> target = self->state_->end(1 - self->own_);
      if (!target) return;
      const auto outcome = target->received(frame);
      if (!outcome) self->state_->down(1 - self->own_, outcome.error());
    });
    return {};
  }
  std::size_t bytes_queued() const override { return bytes_; }
  void close(const Error& cause) override {
    pair_thread().post(
        [self = Ref<PairTransport>(this), cause] { self->state_->down(self->own_, cause); });
  }
  void wake_at(TimePoint at) override {
    pair_thread().post_at(at, [self = Ref<PairTransport>(this)] {
      if (const Ref<Endpoint> end = self->state_->end(self->own_)) end->expire(steady_now());
    });
  }
  void stop() override {}

 private:
  const Ref<PairState> state_;
  const std::size_t own_;
  const std::size_t bytes_max_;
  std::atomic<std::size_t> bytes_{0};
};

}  // namespace

std::pair<Ref<Channel>, Ref<Channel>> make_channel_pair(std::shared_ptr<ChannelService> a,
                                                        std::shared_ptr<ChannelService> b,
                                                        const ChannelPairOptions& options) {
  const auto state = make_ref<PairState>();
  const EndpointLimits limits{options.frame_bytes_max, options.requests_max};
  const auto make = [&](std::size_t own, const PeerName& peer,
                        std::shared_ptr<ChannelService> service) {
    auto end = make_ref<Endpoint>(peer, "local", limits,
                                  make_ref<PairTransport>(state, own, options.queue_bytes_max));
    end->set_service(std::move(service));
    return end;
  };
  const auto first = make(0, options.second, std::move(a));
  const auto second = make(1, options.first, std::move(b));
  {
    const std::lock_guard lock(state->mutex);
    state->ends = {first, second};
  }
  return {first, second};
}

}  // namespace troupe::runtime

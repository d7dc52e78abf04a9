#include "runtime/comm/transfer_gloo.hpp"

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>

namespace troupe::runtime {

TransferTimer::~TransferTimer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TransferTimer::set(TimePoint at, std::weak_ptr<Alarm> alarm) {
  const std::lock_guard lock(mutex_);
  // Transfers that ended long ago wait for their time too; few deadlines make many alarms.
  std::erase_if(alarms_, [](const auto& entry) { return entry.second.expired(); });
  alarms_.emplace(at, std::move(alarm));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  if (at < awake_at_) changed_.notify_all();
}

void TransferTimer::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const TimePoint now = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<Alarm>> due;
    while (!alarms_.empty() && alarms_.begin()->first <= now) {
      if (auto alarm = alarms_.begin()->second.lock()) due.push_back(std::move(alarm));
      alarms_.erase(alarms_.begin());
    }
    if (!due.empty()) {
      lock.unlock();
      for (const auto& alarm : due) alarm->on_time();
      due.clear();
      lock.lock();
      continue;
    }
    // Alarms that are withdrawn do not wake it: it looks again at the time that it had.
    awake_at_ = alarms_.empty() ? now + std::chrono::hours(1) : alarms_.begin()->first;
    changed_.wait_until(lock, awake_at_);
  }
}

/// To ask a buffer whose connection has closed whether it came through. A wait that runs out of
/// time in Gloo closes all connections, which is what follows a loss in any case.
constexpr std::chrono::milliseconds kNoWait{1};

class GlooTransfer final : public Transfer,
                           public TransferTimer::Alarm,
                           public std::enable_shared_from_this<GlooTransfer> {
 public:
  explicit GlooTransfer(TransferTimer& timer) : timer_(timer) {}
  GlooTransfer(const GlooTransfer&) = delete;
  GlooTransfer& operator=(const GlooTransfer&) = delete;

  /// False when the peer of a part is gone.
  bool post(gloo::Context& context, std::vector<TransferPart> parts, TransferEnd& lost) {
    // Receives first: a send that finds its receive posted goes out at once.
    std::stable_partition(parts.begin(), parts.end(),
                          [](const TransferPart& part) { return !part.outgoing; });
    for (TransferPart& part : parts) {
      if (part.bytes == 0) continue;
      try {
        auto buffer = context.createUnboundBuffer(part.data, part.bytes);
        if (part.outgoing) {
          buffer->send(part.peer, part.slot, 0, part.bytes);
        } else {
          buffer->recv(part.peer, part.slot, 0, part.bytes);
        }
        buffers_.push_back({std::move(buffer), part.peer, part.outgoing});
      } catch (const std::exception& error) {
        lost = {TransferEnd::Kind::kLost, part.peer, error.what()};
        return false;
      }
    }
    return true;
  }

  TransferEnd wait(Deadline limit) override {
    if (!buffers_.empty()) timer_.set(limit.at, weak_from_this());
    for (const Posted& posted : buffers_) {
      try {
        for (auto span = kForGloo; !posted.wait(span); span = kNoWait) {
          if (late_.load()) return {TransferEnd::Kind::kLate, posted.peer};
          if (stopped_.load()) return {TransferEnd::Kind::kStopped, posted.peer};
        }
      } catch (const std::exception& error) {
        const auto why = closed(posted.peer);
        return {TransferEnd::Kind::kLost, posted.peer, why ? *why : error.what()};
      }
    }
    return {};
  }

  void stop() override {
    stopped_.store(true);
    for (const Posted& posted : buffers_) posted.abort();
  }

  /// Ends waits for what goes to or comes from `peer`, unless it has come through.
  void lose(int peer, const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      closed_.emplace(peer, why);
    }
    for (const Posted& posted : buffers_) {
      if (posted.peer == peer) posted.abort();
    }
  }

  void on_time() override {
    late_.store(true);
    for (const Posted& posted : buffers_) posted.abort();
  }

 private:
  struct Posted {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    int peer = 0;
    bool outgoing = false;

    bool wait(std::chrono::milliseconds limit) const {
      return outgoing ? buffer->waitSend(nullptr, limit) : buffer->waitRecv(nullptr, limit);
    }
    void abort() const { outgoing ? buffer->abortWaitSend() : buffer->abortWaitRecv(); }
  };
  std::optional<std::string> closed(int peer) {
    const std::lock_guard lock(mutex_);
    const auto found = closed_.find(peer);
    return found == closed_.end() ? std::nullopt : std::optional(found->second);
  }

  TransferTimer& timer_;
  std::vector<Posted> buffers_;
  std::atomic<bool> late_{false};
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // guards closed_
  std::map<int, std::string> closed_;
};

std::shared_ptr<Transfer> GlooTransfers::start(std::vector<TransferPart> parts,
                                               TransferEnd& lost) {
  auto transfer = std::make_shared<GlooTransfer>(timer_);
  if (!transfer->post(*context_, std::move(parts), lost)) return nullptr;
  std::map<int, std::string> closed;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(live_, [](const auto& other) { return other.expired(); });
    live_.push_back(transfer);
    closed = closed_;
  }
  // Connections that closed while it was posted.
  for (const auto& [peer, why] : closed) transfer->lose(peer, why);
  return transfer;
}

void GlooTransfers::on_closed(int peer, const std::string& why) {
  std::vector<std::shared_ptr<GlooTransfer>> live;
  {
    const std::lock_guard lock(mutex_);
    closed_.emplace(peer, why);
    for (const auto& transfer : live_) {
      if (auto held = transfer.lock()) live.push_back(std::move(held));
    }
  }
  for (const auto& transfer : live) transfer->lose(peer, why);
}

}  // namespace troupe::runtime

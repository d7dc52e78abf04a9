#include "runtime/comm/transfer_gloo.hpp"

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <atomic>
#include <exception>
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

namespace {

class GlooTransfer final : public Transfer,
                           public TransferTimer::Alarm,
                           public std::enable_shared_from_this<GlooTransfer> {
 public:
  explicit GlooTransfer(TransferTimer& timer) : timer_(timer) {}

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
        const bool through = posted.outgoing ? posted.buffer->waitSend(nullptr, kForGloo)
                                             : posted.buffer->waitRecv(nullptr, kForGloo);
        if (through) continue;
        const bool late = late_.load();
        return {late ? TransferEnd::Kind::kLate : TransferEnd::Kind::kStopped, posted.peer};
      } catch (const std::exception& error) {
        return {TransferEnd::Kind::kLost, posted.peer, error.what()};
      }
    }
    return {};
  }

  void stop() override {
    for (const Posted& posted : buffers_) {
      if (posted.outgoing) {
        posted.buffer->abortWaitSend();
      } else {
        posted.buffer->abortWaitRecv();
      }
    }
  }

  void on_time() override {
    late_.store(true);
    stop();
  }

 private:
  struct Posted {
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    int peer = 0;
    bool outgoing = false;
  };
  TransferTimer& timer_;
  std::vector<Posted> buffers_;
  std::atomic<bool> late_{false};
};

}  // namespace

std::shared_ptr<Transfer> start_gloo_transfer(const std::shared_ptr<gloo::Context>& context,
                                              TransferTimer& timer, std::vector<TransferPart> parts,
                                              TransferEnd& lost) {
  auto transfer = std::make_shared<GlooTransfer>(timer);
  if (!transfer->post(*context, std::move(parts), lost)) return nullptr;
  return transfer;
}

}  // namespace troupe::runtime

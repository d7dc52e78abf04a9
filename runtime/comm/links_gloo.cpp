// Gloo's unbound buffers carry everything: `send` posts memory, the peer posts where it goes, and
// a wait returns when the bytes have moved. A wait that times out in Gloo closes all connections,
// so no wait here has a limit of Gloo's; it is ended from outside with `abortWait…` instead.

#include "runtime/comm/links_gloo.hpp"

#include "runtime/base/index.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/group_frame.hpp"
#include "runtime/comm/transfer_gloo.hpp"

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr std::uint64_t kFrameSlot = 1;
constexpr std::uint64_t kWatchSlot = 2;
/// Between seeing a connection closed and saying so: frames that came before it are in first.
constexpr Duration kClosedGrace = std::chrono::milliseconds(50);

using GlooBuffer = gloo::transport::UnboundBuffer;

/// Gloo writes to sockets that a peer may have closed; that is no reason to die. What a program has
/// chosen to do about the signal stays.
void ignore_broken_pipes() {
  struct sigaction present {};
  if (sigaction(SIGPIPE, nullptr, &present) == 0 && present.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
}

/// Gloo's rendezvous over ours.
class StoreForGloo final : public gloo::rendezvous::Store {
 public:
  StoreForGloo(RendezvousStore& store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    if (auto done = store_.set(prefix_ + key, std::string(data.begin(), data.end())); !done)
      throw gloo::IoException(done.error().message);
  }
  std::vector<char> get(const std::string& key) override {
    return get_within(key, kDefaultTimeout);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, kDefaultTimeout); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) get_within(key, timeout);
  }

 private:
  std::vector<char> get_within(const std::string& key, std::chrono::milliseconds timeout) {
    auto value = store_.get(prefix_ + key, Deadline::in(timeout));
    if (!value) throw gloo::IoException(value.error().message);
    return {value->begin(), value->end()};
  }

  RendezvousStore& store_;
  const std::string prefix_;
};

/// Finds the connections of a context that close, on a thread of its own: by receives that no peer
/// answers, and that Gloo fails.
class ClosedWatch {
 public:
  using OnClosed = std::function<void(int peer, const std::string& why)>;
  ClosedWatch(std::shared_ptr<gloo::Context> context, int rank, int size)
      : context_(std::move(context)), rank_(rank), nothing_(index(size)) {}
  ClosedWatch(const ClosedWatch&) = delete;
  ClosedWatch& operator=(const ClosedWatch&) = delete;
  ~ClosedWatch() { stop(); }

  /// Calls back `grace` after it has seen a connection closed.
  void start(Duration grace, OnClosed on_closed) {
    thread_ = std::thread([this, grace, call = std::move(on_closed)] { run(grace, call); });
  }
  void stop();

 private:
  void run(Duration grace, const OnClosed& on_closed);
  bool pause(Duration span);

  const std::shared_ptr<gloo::Context> context_;
  const int rank_;
  std::vector<std::byte> nothing_;  // what Gloo may write to as long as the buffer exists
  std::thread thread_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::unique_ptr<GlooBuffer> buffer_;
};

void ClosedWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (buffer_) buffer_->abortWaitRecv();
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
  buffer_.reset();
}

bool ClosedWatch::pause(Duration span) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, span, [this] { return stopping_; });
}

void ClosedWatch::run(Duration grace, const OnClosed& on_closed) {
  std::vector<char> closed(nothing_.size(), 0);
  closed[index(rank_)] = 1;
  for (;;) {
    std::vector<std::pair<int, std::string>> fresh;
    GlooBuffer* buffer = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      buffer_ = context_->createUnboundBuffer(nothing_.data(), nothing_.size());
      buffer = buffer_.get();
    }
    int left = 0;
    for (std::size_t peer = 0; peer < closed.size(); ++peer) {
      if (closed[peer] != 0) continue;
      try {
        buffer->recv(static_cast<int>(peer), kWatchSlot, peer, 1);
        ++left;
      } catch (const std::exception& error) {
        closed[peer] = 1;
        fresh.emplace_back(static_cast<int>(peer), error.what());
      }
    }
    if (!fresh.empty()) {
      if (!pause(grace)) return;
      for (const auto& [peer, why] : fresh) on_closed(peer, why);
      continue;
    }
    if (left == 0) return;
    try {
      if (!buffer->waitRecv(nullptr, kForGloo)) return;
    } catch (const std::exception&) {
      // the next round finds whose connection it was
    }
  }
}

class Links final : public GlooLinks {
 public:
  Links(Options options, std::shared_ptr<gloo::transport::Device> device,
        std::shared_ptr<gloo::Context> words, std::shared_ptr<gloo::Context> payload)
      : options_(std::move(options)),
        device_(std::move(device)),
        words_(std::move(words)),
        payload_(std::move(payload)),
        transfers_(payload_),
        words_watch_(words_, options_.rank, options_.size),
        payload_watch_(payload_, options_.rank, options_.size),
        outgoing_(index(options_.size)),
        received_(index(options_.size)) {}
  ~Links() override {
    stop();
    outgoing_.clear();  // before the connections that its buffers belong to
  }

  void start(Listener& listener) override;
  void stop() override;
  bool send(int peer, std::vector<std::byte> frame) override;
  std::uint64_t received(int peer) const override { return received_[index(peer)].load(); }
  void acknowledge(int peer, std::uint64_t frames) override;
  void flush(Deadline deadline) override;
  std::shared_ptr<Transfer> start_transfer(std::vector<TransferPart> parts,
                                           TransferEnd& lost) override {
    return transfers_.start(std::move(parts), lost);
  }
  void break_off() override { payload_->closeConnections(); }

 private:
  struct Frame {
    std::vector<std::byte> bytes;
    std::unique_ptr<GlooBuffer> buffer;
  };
  struct Outgoing {
    std::mutex mutex;  // guards all
    std::deque<Frame> frames;
    std::uint64_t let_go = 0;
  };

  void get_frames(Listener& listener);
  bool await_frame(int* peer);
  bool stopping() const;
  std::vector<int> open_peers();

  const Options options_;
  const std::shared_ptr<gloo::transport::Device> device_;
  // Apart, so that frames never wait behind payload, and outlive its connections.
  const std::shared_ptr<gloo::Context> words_;
  const std::shared_ptr<gloo::Context> payload_;
  GlooTransfers transfers_;
  ClosedWatch words_watch_;
  ClosedWatch payload_watch_;
  std::vector<Outgoing> outgoing_;
  std::vector<std::atomic<std::uint64_t>> received_;
  // What Gloo may write to as long as the buffer below exists.
  std::vector<std::byte> frame_ = std::vector<std::byte>(kGroupFrameBytes);
  std::thread getter_;

  mutable std::mutex mutex_;  // guards what follows
  bool stopping_ = false;
  std::unique_ptr<GlooBuffer> getting_;
};

void Links::start(Listener& listener) {
  getter_ = std::thread([this, &listener] { get_frames(listener); });
  words_watch_.start(kClosedGrace, [&listener](int peer, const std::string& why) {
    listener.on_closed(peer, why);
  });
  payload_watch_.start(
      {}, [this](int peer, const std::string& why) { transfers_.on_closed(peer, why); });
}

void Links::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (getting_) getting_->abortWaitRecv();
  }
  if (getter_.joinable()) getter_.join();
  getting_.reset();
  words_watch_.stop();
  payload_watch_.stop();
}

bool Links::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

/// False when the links stop. Throws what Gloo throws.
bool Links::await_frame(int* peer) {
  GlooBuffer* buffer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
    buffer = getting_.get();
  }
  return buffer->waitRecv(peer, kForGloo);
}

/// Peers whose connection takes a receive; the receive is never answered.
std::vector<int> Links::open_peers() {
  std::vector<int> open;
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer == options_.rank) continue;
    try {
      std::byte nothing{};
      const auto probe = words_->createUnboundBuffer(&nothing, 1);
      probe->recv(peer, kWatchSlot, 0, 1);
      open.push_back(peer);
    } catch (const std::exception&) {
    }
  }
  return open;
}

void Links::get_frames(Listener& listener) {
  std::vector<int> peers;
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.rank) peers.push_back(peer);
  }
  while (!peers.empty() && !stopping()) {
    int peer = -1;
    try {
      {
        const std::lock_guard lock(mutex_);
        if (!getting_) getting_ = words_->createUnboundBuffer(frame_.data(), frame_.size());
      }
      getting_->recv(peers, kFrameSlot, 0, frame_.size());
      if (!await_frame(&peer)) return;
    } catch (const std::exception&) {
      peers = open_peers();
      const std::lock_guard lock(mutex_);
      getting_.reset();
      continue;
    }
    received_[index(peer)].fetch_add(1);
    listener.on_frame(peer, frame_);
  }
}

bool Links::send(int peer, std::vector<std::byte> frame) {
  Outgoing& out = outgoing_[index(peer)];
  const std::lock_guard lock(out.mutex);
  try {
    Frame kept{std::move(frame), nullptr};
    kept.buffer = words_->createUnboundBuffer(kept.bytes.data(), kept.bytes.size());
    kept.buffer->send(peer, kFrameSlot, 0, kept.bytes.size());
    out.frames.push_back(std::move(kept));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void Links::acknowledge(int peer, std::uint64_t frames) {
  Outgoing& out = outgoing_[index(peer)];
  const std::lock_guard lock(out.mutex);
  while (out.let_go < frames && !out.frames.empty()) {
    out.frames.pop_front();
    ++out.let_go;
  }
}

void Links::flush(Deadline deadline) {
  for (Outgoing& out : outgoing_) {
    std::deque<Frame> frames;  // waited for without the lock, which the peers' answers need
    {
      const std::lock_guard lock(out.mutex);
      frames.swap(out.frames);
      out.let_go += frames.size();
    }
    try {
      for (const Frame& frame : frames) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            deadline.at - std::chrono::steady_clock::now());
        // A limit of Gloo's own closes these connections, which is what comes next anyway.
        frame.buffer->waitSend(std::max(left, std::chrono::milliseconds(1)));
      }
    } catch (const std::exception&) {
      // that peer is gone, or does not read
    }
  }
}

}  // namespace

result<std::unique_ptr<GlooLinks>> GlooLinks::connect(const Options& options,
                                                      RendezvousStore& store) {
  ignore_broken_pipes();
  try {
    const gloo::transport::tcp::attr attributes(options.host.c_str());
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(attributes);
    const auto mesh = [&](const char* what) {
      auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
      // Gloo takes up to five times as long for one connection.
      context->setTimeout(
          std::chrono::duration_cast<std::chrono::milliseconds>(options.connect_wait));
      StoreForGloo keys(store, options.prefix + what);
      context->connectFullMesh(keys, device);
      return context;
    };
    auto words = mesh("words/");
    auto payload = mesh("payload/");
    return std::unique_ptr<GlooLinks>(
        std::make_unique<Links>(options, std::move(device), std::move(words), std::move(payload)));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kDeadline, "{}: rank {} on {} cannot connect to its peers: {}",
                options.name, options.rank, options.host, error.what());
  }
}

}  // namespace troupe::runtime

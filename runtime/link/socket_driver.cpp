#include "runtime/link/socket_driver.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/caf_io.hpp"

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <set>

namespace troupe::runtime {
namespace {

/// Enough for some hundred control frames, so that one read gives many.
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
/// Reads of one socket before the others have their turn.
constexpr std::size_t kReadsInARow = 8;

constexpr int kWake = 1;
constexpr int kTick = 2;
constexpr int kQuit = 3;

/// The door for exceptions: nothing may leave a handler of the broker.
template <class Call>
void guarded(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    log::error("link: the I/O thread caught: {}", error.what());
  } catch (...) {
    log::error("link: the I/O thread caught an exception that is no std::exception");
  }
}

/// Sends the broker its ticks. Not CAF's delayed messages: one that is on its way when the system
/// ends keeps the broker for ever.
struct Ticks {
  explicit Ticks(CallTimer& by, Duration each) : timer(by), every(each) {}

  static void arm_locked(const std::shared_ptr<Ticks>& ticks) {
    ticks->next = ticks->timer.add(steady_now() + ticks->every, [ticks] {
      const std::lock_guard lock(ticks->mutex);
      if (!ticks->broker) return;
      if (!ticks->pending.exchange(true)) send_from_outside(ticks->broker, kTick);
      arm_locked(ticks);
    });
  }
  static void start(const std::shared_ptr<Ticks>& ticks, const caf::actor& broker) {
    const std::lock_guard lock(ticks->mutex);
    ticks->broker = broker;
    arm_locked(ticks);
  }
  static void hurry(const std::shared_ptr<Ticks>& ticks) {
    const std::lock_guard lock(ticks->mutex);
    ticks->every = std::chrono::milliseconds(2);
    if (ticks->timer.remove(ticks->next)) arm_locked(ticks);
  }
  void stop() {
    const std::lock_guard lock(mutex);
    broker = nullptr;
    timer.remove(next);
  }

  CallTimer& timer;
  std::atomic<bool> pending{false};  // sent, and not handled yet
  std::mutex mutex;                  // guards what follows
  Duration every;
  caf::actor broker;
  CallTimer::Id next{};
};

}  // namespace

struct SocketDriver::Native {
  Native(SocketEvents& told, CallTimer& timer, Duration tick)
      : events(told),
        ticks(std::make_shared<Ticks>(timer, tick)),
        prepared(configure(config)),
        system(config) {}

  static bool configure(caf::actor_system_config& config) {
    ActorSystem::Native::configure(config, ActorSystemOptions{});
    load_middleman(config);
#if TROUPE_CAF_1
    config.set("caf.middleman.max-consecutive-reads", kReadsInARow);
#else
    config.set("middleman.max-consecutive-reads", kReadsInARow);
#endif
    return true;
  }

  caf::behavior behave(caf::io::broker* self) {
    broker = self;
    return {
        [this](const caf::io::new_data_msg& message) {
          guarded(
              [&] { events.on_bytes(message.handle.id(), std::as_bytes(std::span(message.buf))); });
        },
        [this](const caf::io::new_connection_msg& message) {
          broker->ack_writes(message.handle, true);
          broker->configure_read(message.handle, caf::io::receive_policy::at_most(kReadBytes));
          guarded([&] { events.on_accepted(message.source.id(), message.handle.id()); });
        },
        [this](const caf::io::data_transferred_msg& message) {
          if (message.remaining == 0) busy.erase(message.handle.id());
          guarded([&] {
            events.on_written(message.handle.id(), static_cast<std::size_t>(message.remaining));
          });
        },
        [this](const caf::io::connection_closed_msg& message) {
          busy.erase(message.handle.id());
          guarded([&] { events.on_closed(message.handle.id()); });
        },
        [](const caf::io::acceptor_closed_msg&) {},
        [this](int order) { obey(order); },
    };
  }

  void obey(int order) {
    if (order == kWake) guarded([&] { events.on_wake(); });
    if (order == kTick) {
      ticks->pending = false;
      guarded([&] { events.on_tick(); });
    }
    if (order == kQuit) {
      for (const auto& handle : broker->connections()) ::shutdown(descriptor(handle), SHUT_RDWR);
      broker->quit();
    }
  }

  /// CAF numbers its connections by their descriptors.
  static int descriptor(caf::io::connection_handle handle) { return static_cast<int>(handle.id()); }
  static caf::io::connection_handle handle(SocketId socket) {
    return caf::io::connection_handle::from_int(socket);
  }

  SocketEvents& events;
  const std::shared_ptr<Ticks> ticks;
  caf::actor_system_config config;
  bool prepared;
  caf::actor_system system;
  caf::io::broker* broker = nullptr;  // I/O thread only; lives as long as `actor`
  std::set<SocketId> busy;            // I/O thread only: CAF has bytes of them to write
  caf::actor actor;
};

SocketDriver::SocketDriver(std::unique_ptr<Native> native) : native_(std::move(native)) {}

std::unique_ptr<SocketDriver> SocketDriver::start(SocketEvents& events, CallTimer& timer,
                                                  Duration tick) {
  auto native = std::make_unique<Native>(events, timer, tick);
  native->actor = native->system.middleman().spawn_broker(
      // An argument rather than a capture: CAF dereferences a null tuple when there is none.
      [](caf::io::broker* self, Native* here) { return here->behave(self); }, native.get());
  Ticks::start(native->ticks, native->actor);
  return std::unique_ptr<SocketDriver>(new SocketDriver(std::move(native)));
}

SocketDriver::~SocketDriver() { stop(); }

void SocketDriver::wake() { send_from_outside(native_->actor, kWake); }

void SocketDriver::hurry() { Ticks::hurry(native_->ticks); }

void SocketDriver::stop() {
  if (!native_) return;
  native_->ticks->stop();
  send_from_outside(native_->actor, kQuit);
  native_->actor = nullptr;
  native_.reset();  // waits for the broker and joins CAF's threads
}

SocketId SocketDriver::adopt(int descriptor) {
  const auto handle = native_->broker->add_scribe(descriptor);
  native_->broker->ack_writes(handle, true);
  native_->broker->configure_read(handle, caf::io::receive_policy::at_most(kReadBytes));
  return handle.id();
}

SocketId SocketDriver::adopt_listener(int descriptor) {
  return native_->broker->add_doorman(descriptor).id();
}

std::vector<char>& SocketDriver::write_buffer(SocketId socket) {
  auto& buffer = native_->broker->wr_buf(Native::handle(socket));
#if TROUPE_CAF_1
  return reinterpret_cast<std::vector<char>&>(buffer);  // of std::byte; the same representation
#else
  return buffer;
#endif
}

void SocketDriver::flush(SocketId socket) {
  native_->busy.insert(socket);
  native_->broker->flush(Native::handle(socket));
}

std::size_t SocketDriver::flush_now(SocketId socket) {
  std::vector<char>& buffer = write_buffer(socket);
  std::size_t gone = 0;
  // CAF would watch the socket, and write in the next turn of its loop. Errors are left to it.
  if (!native_->busy.contains(socket)) {
    const ssize_t sent =
        ::send(static_cast<int>(socket), buffer.data(), buffer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    gone = sent > 0 ? static_cast<std::size_t>(sent) : 0;
    buffer.erase(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(gone));
  }
  if (!buffer.empty()) flush(socket);
  return gone;
}

void SocketDriver::abort(SocketId socket) {
  if (!native_) return;
  const auto handle = Native::handle(socket);
  if (native_->broker->valid(handle)) ::shutdown(Native::descriptor(handle), SHUT_RDWR);
}

void SocketDriver::close_listener(SocketId listener) {
  native_->broker->close(caf::io::accept_handle::from_int(listener));
}

std::string SocketDriver::peer_host(SocketId socket) const {
  return native_->broker->remote_addr(Native::handle(socket));
}

std::uint16_t SocketDriver::peer_port(SocketId socket) const {
  return native_->broker->remote_port(Native::handle(socket));
}

}  // namespace troupe::runtime

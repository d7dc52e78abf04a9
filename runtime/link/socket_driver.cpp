#include "runtime/link/socket_driver.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/caf_io.hpp"

#include <sys/socket.h>

#include <exception>

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

}  // namespace

struct SocketDriver::Native {
  explicit Native(SocketEvents& told, Duration every)
      : events(told), tick(every), prepared(configure(config)), system(config) {}

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
    send_later(self, self, tick, kTick);
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
          guarded([&] {
            events.on_written(message.handle.id(), static_cast<std::size_t>(message.remaining));
          });
        },
        [this](const caf::io::connection_closed_msg& message) {
          guarded([&] { events.on_closed(message.handle.id()); });
        },
        [](const caf::io::acceptor_closed_msg&) {},
        [this](int order) { obey(order); },
    };
  }

  void obey(int order) {
    if (order == kWake) guarded([&] { events.on_wake(); });
    if (order == kTick) {
      send_later(broker, broker, tick, kTick);
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
  Duration tick;
  caf::actor_system_config config;
  bool prepared;
  caf::actor_system system;
  caf::io::broker* broker = nullptr;  // I/O thread only; lives as long as `actor`
  caf::actor actor;
};

SocketDriver::SocketDriver(std::unique_ptr<Native> native) : native_(std::move(native)) {}

std::unique_ptr<SocketDriver> SocketDriver::start(SocketEvents& events, Duration tick) {
  auto native = std::make_unique<Native>(events, tick);
  native->actor = native->system.middleman().spawn_broker(
      [here = native.get()](caf::io::broker* self) { return here->behave(self); });
  return std::unique_ptr<SocketDriver>(new SocketDriver(std::move(native)));
}

SocketDriver::~SocketDriver() { stop(); }

void SocketDriver::wake() { send_from_outside(native_->actor, kWake); }

void SocketDriver::stop() {
  if (!native_) return;
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

void SocketDriver::flush(SocketId socket) { native_->broker->flush(Native::handle(socket)); }

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

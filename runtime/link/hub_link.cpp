#include "runtime/base/check.hpp"
#include "runtime/link/hub_core.hpp"

#include <openssl/rand.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace troupe::runtime {
namespace {

/// Bytes in the driver's write buffer beyond which the rest waits in the queue, whose bound counts.
constexpr std::size_t kBufferBytes = std::size_t{256} << 10;
/// How long the last words may take to leave.
constexpr Duration kLinger = std::chrono::seconds(1);

Nonce fresh_nonce() {
  Nonce nonce{};
  const int made = RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), nonce.size());
  TROUPE_CHECK(made == 1, "link: OpenSSL gives no random bytes");
  return nonce;
}

ConnectionOptions connection_options(const LinkOptions& options, const Ref<Dial>& dial) {
  return {.handshake = {.self = options.self,
                        .token = options.token,
                        .nonce = fresh_nonce(),
                        .peer = dial ? dial->peer : std::nullopt},
          .heartbeat = options.heartbeat,
          .dead_after = options.dead_after,
          .handshake_within = options.handshake_within,
          .frame_bytes_max = options.frame_bytes_max};
}

LinkSide side_of(const Ref<Dial>& dial) { return dial ? LinkSide::kDialler : LinkSide::kAcceptor; }

}  // namespace

HubLink::HubLink(HubCore& hub, SocketId socket, Ref<Dial> dial, const Listener* listener)
    : hub_(hub),
      socket_(socket),
      dial_(std::move(dial)),
      listener_(listener),
      host_(dial_ ? dial_->address.host : hub.driver().peer_host(socket)),
      address_(ListenAddress{host_, dial_ ? dial_->address.port : hub.driver().peer_port(socket)}
                   .to_string()),
      connection_(side_of(dial_), connection_options(hub.options(), dial_),
                  hub.tls_stream(side_of(dial_), host_), *this, steady_now()) {}

result<void> HubLink::send(std::vector<std::byte> envelope, bool urgent) {
  const std::size_t size = envelope.size();
  const std::lock_guard lock(mutex_);
  if (stopped_) return fail(ErrorCode::kRankDead, "{}: the channel is down", address_);
  if (!urgent && bytes_queued() + size > hub_.options().queue_bytes_max)
    return fail(ErrorCode::kResourceExhausted,
                "{} ({}): {} bytes are queued and {} more do not fit, at most {}",
                endpoint_ ? endpoint_->peer().to_string() : "peer", address_, bytes_queued(), size,
                hub_.options().queue_bytes_max);
  queue_.push_back(std::move(envelope));
  queued_bytes_ += size;
  if (!std::exchange(dirty_, true)) hub_.mark(Ref<HubLink>(this));
  return {};
}

void HubLink::close(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || close_cause_) return;
  close_cause_ = cause;
  if (!std::exchange(dirty_, true)) hub_.mark(Ref<HubLink>(this));
}

void HubLink::wake_at(TimePoint at) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || (timer_ && timer_->first <= at)) return;
  if (timer_) hub_.timer().remove(timer_->second);
  timer_.emplace(at, hub_.timer().add(at, [self = Ref<HubLink>(this)] { self->fired(); }));
}

void HubLink::fired() {
  Ref<Endpoint> endpoint;
  {
    const std::lock_guard lock(mutex_);
    timer_.reset();
    endpoint = endpoint_;
  }
  if (endpoint) endpoint->expire(steady_now());
}

void HubLink::stop() {
  Ref<Endpoint> dropped;  // after the lock
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  dropped = std::exchange(endpoint_, nullptr);
  if (timer_) hub_.timer().remove(timer_->second);
  timer_.reset();
}

/// Lets `append` write to the socket's buffer and keeps count of what is in it, where `counted`
/// bytes of it are already. With `now` nothing else waits for `written`.
template <class Fill>
result<void> HubLink::fill(const Fill& append, bool now, std::size_t counted) {
  std::vector<char>& out = hub_.driver().write_buffer(socket_);
  const std::size_t before = out.size();
  result<void> outcome = append(out);
  const std::size_t added = out.size() - before;
  buffered_bytes_ += added - counted;  // at once: senders must not see room that there is not
  if (added > 0 && now) {
    buffered_bytes_ -= hub_.driver().flush_now(socket_);
  } else if (added > 0) {
    hub_.driver().flush(socket_);
  }
  return outcome;
}

void HubLink::start(TimePoint now) {
  const auto begun = fill([&](std::vector<char>& out) { return connection_.start(out); }, true);
  if (!begun) end(begun.error(), true, now);
}

void HubLink::take_bytes(std::span<const std::byte> bytes, TimePoint now) {
  if (state_ >= State::kLinger) return;
  const auto taken =
      fill([&](std::vector<char>& out) { return connection_.received(bytes, now, out); }, true);
  if (!taken) end(taken.error(), taken.error().code != ErrorCode::kRankDead, now);
}

void HubLink::written(std::size_t waiting, TimePoint now) {
  buffered_bytes_ = waiting;
  pump(now);
}

void HubLink::closed() {
  const bool by_peer = state_ < State::kLinger;
  const ErrorCode code = state_ == State::kUp ? ErrorCode::kRankDead : ErrorCode::kIo;
  if (by_peer)
    end(Error{.code = code,
              .message = state_ == State::kUp ? "the connection was lost"
                                              : "the connection was closed during the handshake",
              .origin = {},
              .causes = {}},
        false, steady_now());
  state_ = State::kGone;
  const std::lock_guard lock(mutex_);
  queue_.clear();
  queued_bytes_ = 0;
  buffered_bytes_ = 0;
}

void HubLink::tick(TimePoint now) {
  if (state_ == State::kLinger && now >= linger_until_) hub_.driver().abort(socket_);
  if (state_ >= State::kLinger) return;
  if (state_ == State::kShaking && dial_ && dial_->out.done()) {
    end(runtime::cancelled("nobody waits for this connection any more"), true, now);
    return;
  }
  const bool idle = buffered_bytes_ == 0;
  const auto alive =
      fill([&](std::vector<char>& out) { return connection_.tick(now, idle, out); }, true);
  if (!alive) end(alive.error(), false, now);
}

void HubLink::settle(TimePoint now) {
  std::optional<Error> cause;
  {
    const std::lock_guard lock(mutex_);
    dirty_ = false;
    cause = close_cause_;
  }
  if (state_ == State::kGone) return;
  if (cause && state_ < State::kLinger) {
    end(*cause, true, now);
  } else {
    pump(now);
  }
}

/// Moves frames from the queue to `batch_`, as many as the write buffer should hold. True: that
/// were all.
bool HubLink::take_batch() {
  batch_.clear();
  batch_bytes_ = 0;
  const std::lock_guard lock(mutex_);
  std::size_t room = kBufferBytes - std::min<std::size_t>(kBufferBytes, buffered_bytes_);
  while (!queue_.empty() && room > 0) {
    room -= std::min(room, FrameWriter::frame_bytes(queue_.front().size()));
    batch_bytes_ += queue_.front().size();
    buffered_bytes_ += queue_.front().size();
    queued_bytes_ -= queue_.front().size();
    batch_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return queue_.empty();
}

void HubLink::pump(TimePoint now) {
  if (state_ == State::kGone) return;
  if (connection_.established()) {
    const bool all = take_batch();
    const auto write = [&](std::vector<char>& out) -> result<void> {
      for (const auto& envelope : batch_) connection_.send(envelope, out);
      return batch_.empty() ? result<void>{} : connection_.flush(now, out);
    };
    const auto sent = fill(write, all, batch_bytes_);
    batch_.clear();
    if (!sent) end(sent.error(), false, now);
  }
  if (state_ != State::kLinger) return;
  if (last_words_ && queued_bytes_ == 0) {
    const Error words = *std::exchange(last_words_, std::nullopt);
    (void)fill(
        [&](std::vector<char>& out) -> result<void> {
          connection_.last_words(words, out);
          return {};
        },
        false);
  }
  if (!last_words_ && buffered_bytes_ == 0) hub_.driver().abort(socket_);
}

Error HubLink::located(const Error& error) const {
  Error placed = error;
  const std::string place = peer_ ? fmt::format("{} ({})", peer_->to_string(), address_) : address_;
  placed.message = fmt::format("{}: {}", place, error.message);
  return placed;
}

void HubLink::end(const Error& cause, bool tell, TimePoint now) {
  if (state_ >= State::kLinger) return;
  const bool was_shaking = std::exchange(state_, State::kLinger) == State::kShaking;
  linger_until_ = now + kLinger;
  hub_.shaken(socket_);
  if (!dial_ && peer_ && !was_shaking) hub_.forget(*peer_);
  Ref<Endpoint> endpoint;
  bool own_cause = false;
  {
    const std::lock_guard lock(mutex_);
    endpoint = endpoint_;
    own_cause = close_cause_.has_value();
    if (!tell) {
      queue_.clear();
      queued_bytes_ = 0;
    }
  }
  const Error placed = own_cause ? cause : located(cause);
  if (was_shaking && dial_) {
    hub_.timer().remove(dial_->timer);
    dial_->out.fail(placed);
  } else if (was_shaking) {
    hub_.complain(host_, placed);
  } else if (!own_cause && cause.code == ErrorCode::kCorrupt) {
    hub_.complain(host_, placed);
  }
  if (endpoint) endpoint->down(placed);
  stop();
  if (tell) {
    last_words_ = cause;
    pump(now);
  } else {
    hub_.driver().abort(socket_);
  }
}

result<void> HubLink::on_peer(const PeerName& peer) {
  peer_ = peer;
  const EndpointLimits limits{hub_.options().frame_bytes_max, hub_.options().requests_max};
  const auto endpoint = make_ref<Endpoint>(peer, address_, limits, Ref<ChannelTransport>(this));
  if (dial_) {
    endpoint->set_service(dial_->service);
  } else {
    TROUPE_TRY_VOID(hub_.admit(peer, listener_->options.unique_names));
  }
  {
    const std::lock_guard lock(mutex_);
    endpoint_ = endpoint;
  }
  if (!dial_) {
    const auto admitted = admit(endpoint);
    if (!admitted) {
      hub_.forget(peer);
      return admitted;
    }
  }
  state_ = State::kUp;
  hub_.shaken(socket_);
  if (!dial_) return {};
  hub_.timer().remove(dial_->timer);
  if (dial_->out.complete(Ref<Channel>(endpoint))) return {};
  return fail(ErrorCode::kCancelled, "nobody waits for this connection any more");
}

/// Asks the listener's owner for the service of a new peer.
result<void> HubLink::admit(const Ref<Endpoint>& endpoint) {
  result<std::shared_ptr<ChannelService>> service;
  try {
    service = listener_->accept(endpoint->peer(), endpoint);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInternal, "accepting threw: {}", error.what());
  }
  if (!service) return fail(std::move(service).error());
  if (*service == nullptr)
    return fail(ErrorCode::kAborted, "{} is not wanted here", endpoint->peer().to_string());
  endpoint->set_service(std::move(*service));
  return {};
}

result<void> HubLink::on_envelope(std::span<const std::byte> envelope) {
  if (state_ != State::kUp) return {};
  Ref<Endpoint> endpoint;
  {
    const std::lock_guard lock(mutex_);
    endpoint = endpoint_;
  }
  return endpoint ? endpoint->received(envelope) : result<void>();
}

}  // namespace troupe::runtime

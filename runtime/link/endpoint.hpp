#pragma once

// `Endpoint`: what every channel does above its transport: matches replies to requests, keeps
// deadlines, calls the service, fails what is open when the line goes down.
//
// Ownership: the transport's owner (hub, pair) holds a Ref from up to down; so do users. The
// endpoint holds its transport. Internal to runtime/link.
// **Threads:** Channel methods from any thread; `received`, `down` on the I/O thread; `expire`
// from whichever thread the transport's timer has.
// **Invariants:** each open request is in `open_` until it ends, and only who takes it out ends it:
// exactly one outcome. No lock is held while services, completers or the transport are called.

#include "runtime/batch/envelope_codec.hpp"
#include "runtime/link/channel.hpp"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace troupe::runtime {

/// Carries encoded envelopes to the peer, in order.
class ChannelTransport : public RefCounted {
 public:
  /// Bounded: kResourceExhausted when full, unless `urgent` (small answers that must not be lost).
  virtual result<void> send(std::vector<std::byte> envelope, bool urgent) = 0;
  virtual std::size_t bytes_queued() const = 0;
  /// Sends what is queued, tells the peer and has `Endpoint::down` called on the I/O thread.
  virtual void close(const Error& cause) = 0;
  /// Calls `Endpoint::expire` at `at` or soon after. A later call replaces the time.
  virtual void wake_at(TimePoint at) = 0;
  /// The line is down: no timer fires any more, `send` refuses.
  virtual void stop() = 0;
};

struct EndpointLimits {
  std::size_t frame_bytes_max = kControlFrameBytesMax;
  std::size_t requests_max = std::size_t{1} << 16;
};

class Endpoint final : public Channel {
 public:
  Endpoint(PeerName peer, std::string address, const EndpointLimits& limits,
           Ref<ChannelTransport> transport);

  /// Before the first `received`.
  void set_service(std::shared_ptr<ChannelService> service) { service_ = std::move(service); }

  const PeerName& peer() const override { return peer_; }
  std::string address() const override { return address_; }
  pending<std::vector<std::byte>> request(std::string_view method, std::vector<std::byte> payload,
                                          Deadline deadline) override;
  result<void> notify(std::string_view method, std::vector<std::byte> payload) override;
  void close(Error cause) override;
  std::optional<Error> failure() const override;
  std::size_t bytes_queued() const override { return transport_->bytes_queued(); }

  /// One envelope from the peer. kCorrupt when it is none; the transport then gives the line up.
  /// A peer that says goodbye is kRankDead with its reason as cause.
  result<void> received(std::span<const std::byte> envelope);
  /// The line is gone. The first call fails what is open and tells the service.
  void down(Error cause);
  /// Ends requests whose deadline has passed and asks to be woken for the next.
  void expire(TimePoint now);

  /// How errors call this channel: `node gpu-1 (127.0.0.1:4711)`.
  std::string place() const;

 private:
  struct Open {
    completer<std::vector<std::byte>> out;
    std::string method;
  };
  using Due = std::pair<TimePoint, std::uint64_t>;

  ~Endpoint() override = default;
  void reply(std::uint64_t call, result<std::vector<std::byte>> outcome) override;
  void dropped(std::uint64_t call) noexcept override;

  result<std::vector<std::byte>> encode(const Envelope& envelope) const;
  /// Takes a slot in `open_` and returns its number; wakes the transport's timer.
  result<std::uint64_t> enter(const completer<std::vector<std::byte>>& out, std::string_view method,
                              Deadline deadline);
  std::optional<Open> take(std::uint64_t call);
  void push_due_locked(Due due);
  void serve_request(const Envelope& envelope, std::span<const std::byte> payload);
  void send_reply(std::uint64_t call, result<std::vector<std::byte>> outcome);

  const PeerName peer_;
  const std::string address_;
  const EndpointLimits limits_;
  const Ref<ChannelTransport> transport_;
  std::shared_ptr<ChannelService> service_;  // I/O thread only

  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<std::uint64_t, Open> open_;
  std::vector<Due> due_;  // heap, earliest first; entries of requests that ended linger
  std::optional<TimePoint> woken_at_;
  std::uint64_t last_call_ = 0;
  std::size_t serving_ = 0;  // requests of the peer that are unanswered
  std::optional<Error> failure_;
  bool down_ = false;
};

}  // namespace troupe::runtime

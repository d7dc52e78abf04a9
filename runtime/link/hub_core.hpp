#pragma once

// `HubCore`: what is behind LinkHub: links by socket, listeners, dials, and the way from other
// threads to the I/O thread. `HubLink`: one socket, from its first byte to its last.
//
// Internal to runtime/link. Ownership: LinkHub owns the core; the core holds a Ref to each link
// until its socket is closed.
// **Threads:** as said per member; whatever is not said otherwise belongs to the I/O thread.
// **Invariants:** lock order is link, then core, then timer. No lock is held while endpoints,
// services or completers are called.

#include "runtime/group/actor_system.hpp"
#include "runtime/link/connection.hpp"
#include "runtime/link/dialler.hpp"
#include "runtime/link/endpoint.hpp"
#include "runtime/link/link_hub.hpp"
#include "runtime/link/socket_driver.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

namespace troupe::runtime {

/// A call of LinkHub::connect on its way.
struct Dial : RefCounted {
  HostPort address;
  std::shared_ptr<ChannelService> service;
  std::optional<PeerName> peer;
  completer<Ref<Channel>> out;
  CallTimer::Id timer{};
};

struct Listener {
  AcceptPeer accept;
  ListenOptions options;
};

class HubCore;

class HubLink final : public ChannelTransport, private ConnectionEvents {
 public:
  /// `dial` for a socket that this side dialled, else `listener`.
  HubLink(HubCore& hub, SocketId socket, Ref<Dial> dial, const Listener* listener);

  // From any thread, as ChannelTransport says.
  result<void> send(std::vector<std::byte> envelope, bool urgent) override;
  std::size_t bytes_queued() const override { return queued_bytes_ + buffered_bytes_; }
  void close(const Error& cause) override;
  void wake_at(TimePoint at) override;
  void stop() override;

  void start(TimePoint now);
  void take_bytes(std::span<const std::byte> bytes, TimePoint now);
  void written(std::size_t waiting, TimePoint now);
  void closed();
  void tick(TimePoint now);
  /// Sends what was queued since.
  void settle(TimePoint now);
  /// Takes the link down. With `tell` the peer hears why after what is queued; else at once.
  void end(const Error& cause, bool tell, TimePoint now);

  bool shaking() const { return state_ == State::kShaking; }
  const std::string& host() const { return host_; }

 private:
  enum class State : std::uint8_t { kShaking, kUp, kLinger, kGone };

  result<void> on_peer(const PeerName& peer) override;
  result<void> on_envelope(std::span<const std::byte> envelope) override;
  result<void> admit(const Ref<Endpoint>& endpoint);
  void fired();
  void pump(TimePoint now);
  bool take_batch();
  template <class Fill>
  result<void> fill(const Fill& append, bool now, std::size_t counted = 0);
  Error located(const Error& error) const;

  HubCore& hub_;
  const SocketId socket_;
  const Ref<Dial> dial_;
  const Listener* const listener_;
  std::string host_;
  std::string address_;
  Connection connection_;
  State state_ = State::kShaking;
  std::optional<PeerName> peer_;
  std::optional<Error> last_words_;  // to be said once the queue is empty
  TimePoint linger_until_{};
  std::vector<std::vector<std::byte>> batch_;
  std::size_t batch_bytes_ = 0;                 // of batch_, counted in buffered_bytes_
  std::atomic<std::size_t> buffered_bytes_{0};  // in the driver's write buffer

  mutable std::mutex mutex_;  // guards what follows
  std::deque<std::vector<std::byte>> queue_;
  std::atomic<std::size_t> queued_bytes_{0};  // read without the lock
  Ref<Endpoint> endpoint_;
  std::optional<Error> close_cause_;
  std::optional<std::pair<TimePoint, CallTimer::Id>> timer_;
  bool dirty_ = false;
  bool stopped_ = false;
};

class HubCore final : private SocketEvents {
 public:
  HubCore(ActorSystem& system, LinkOptions options, std::unique_ptr<TlsContext> tls);
  ~HubCore() override;
  HubCore(const HubCore&) = delete;
  HubCore& operator=(const HubCore&) = delete;

  // From any thread.
  const LinkOptions& options() const { return options_; }
  CallTimer& timer() { return system_.timer(); }
  result<ListenAddress> listen(const std::string& host, std::uint16_t port, AcceptPeer accept,
                               const ListenOptions& options);
  pending<Ref<Channel>> connect(const std::string& address, std::shared_ptr<ChannelService> service,
                                Deadline deadline, std::optional<PeerName> peer);
  /// The link has something for `settle`.
  void mark(Ref<HubLink> link);

  SocketDriver& driver() { return *driver_; }
  std::optional<TlsStream> tls_stream(LinkSide side, const std::string& host) const;
  /// Whether a peer that proved itself may come in; counts it when so.
  result<void> admit(const PeerName& peer, bool unique);
  void forget(const PeerName& peer);
  void shaken(SocketId socket) { shaking_.erase(socket); }
  /// Logs what a stranger did, at most once in ten seconds for each host.
  void complain(const std::string& host, const Error& error);

 private:
  void on_accepted(SocketId listener, SocketId socket) override;
  void on_bytes(SocketId socket, std::span<const std::byte> bytes) override;
  void on_written(SocketId socket, std::size_t waiting) override;
  void on_closed(SocketId socket) override;
  void on_wake() override;
  void on_tick() override;

  void post(std::function<void()> order);
  void settle();
  void adopt(const Ref<Dial>& dial, result<int> descriptor);
  void add_link(SocketId socket, const Ref<HubLink>& link);
  void evict_oldest_stranger(TimePoint now);
  void take_all_down();
  void let_go();
  bool on_io_thread() const;
  Ref<HubLink> find(SocketId socket) const;

  struct Complaint {
    TimePoint at;
    std::size_t silent = 0;
  };

  ActorSystem& system_;
  const LinkOptions options_;
  const std::unique_ptr<TlsContext> tls_;

  std::unordered_map<SocketId, Ref<HubLink>> links_;
  std::map<SocketId, Listener> listeners_;
  std::multiset<PeerName> names_;  // of accepted peers
  std::map<SocketId, std::uint64_t> shaking_;
  std::map<std::string, Complaint> complaints_;
  std::uint64_t accepted_ = 0;
  bool stopping_ = false;
  static constexpr int kTurnsToGo = 4;  // of the I/O loop, once no link is left
  int turns_to_go_ = kTurnsToGo;

  std::mutex mutex_;  // guards what follows
  std::condition_variable emptied_;
  std::vector<Ref<HubLink>> dirty_;
  std::vector<std::function<void()>> orders_;
  bool woken_ = false;
  bool closed_ = false;  // no order is taken any more
  bool empty_ = false;   // stopping, and no link is left

  std::unique_ptr<SocketDriver> driver_;
  std::unique_ptr<Dialler> dialler_;
};

}  // namespace troupe::runtime

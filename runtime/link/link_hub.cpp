#include "runtime/link/link_hub.hpp"

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/link/hub_core.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace troupe::runtime {
namespace {

constexpr Duration kTickMax = std::chrono::milliseconds(100);
constexpr Duration kComplainEvery = std::chrono::seconds(10);
constexpr std::size_t kComplaintsMax = 1024;
constexpr Duration kCloseWithin = std::chrono::milliseconds(1500);
/// Descriptors that connections leave for files and everything else.
constexpr std::size_t kDescriptorsSpared = 128;

thread_local const HubCore* io_of_this_thread = nullptr;

/// Accepted connections that fit into what the system grants: beyond it `accept` would fail.
std::size_t connections_possible(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto granted = static_cast<std::size_t>(limit.rlim_cur);
  return std::min(wanted, granted - std::min(granted / 2, kDescriptorsSpared));
}

result<void> check_options(const LinkOptions& options) {
  TROUPE_TRY_VOID(check_peer_name(options.self));
  if (options.heartbeat <= Duration{0} || options.dead_after < 2 * options.heartbeat)
    return fail(ErrorCode::kConfig, "link: dead after {:.3f} s with a heartbeat each {:.3f} s",
                seconds(options.dead_after), seconds(options.heartbeat));
  if (options.handshake_within <= Duration{0})
    return fail(ErrorCode::kConfig, "link: handshake within {:.3f} s, wanted more than 0",
                seconds(options.handshake_within));
  if (options.frame_bytes_max < 1024 || options.frame_bytes_max > kControlFrameBytesMax)
    return fail(ErrorCode::kConfig, "link: frames of at most {} bytes, wanted 1024..{}",
                options.frame_bytes_max, kControlFrameBytesMax);
  if (options.queue_bytes_max < options.frame_bytes_max || options.requests_max == 0 ||
      options.connections_max == 0 || options.unauthenticated_max == 0)
    return fail(ErrorCode::kConfig,
                "link: queue {} bytes, {} requests, {} connections, {} unauthenticated: wanted a "
                "queue of a frame or more and the others above 0",
                options.queue_bytes_max, options.requests_max, options.connections_max,
                options.unauthenticated_max);
  return {};
}

}  // namespace

std::string ListenAddress::to_string() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

HubCore::HubCore(ActorSystem& system, LinkOptions options, std::unique_ptr<TlsContext> tls)
    : system_(system), options_(std::move(options)), tls_(std::move(tls)) {
  driver_ = SocketDriver::start(*this, timer(), std::min(kTickMax, options_.heartbeat / 4));
  dialler_ = std::make_unique<Dialler>();
}

HubCore::~HubCore() {
  TROUPE_CHECK(!on_io_thread(), "link hub: destroyed on its own I/O thread");
  dialler_.reset();  // its dials end first
  post([this] { take_all_down(); });
  driver_->hurry();
  {
    std::unique_lock lock(mutex_);
    emptied_.wait_for(lock, kCloseWithin, [this] { return empty_; });
    closed_ = true;
  }
  driver_->stop();
  // What the I/O thread did not get to.
  std::vector<std::function<void()>> orders;
  {
    const std::lock_guard lock(mutex_);
    orders.swap(orders_);
    dirty_.clear();
  }
  orders.clear();
  for (const auto& entry : links_) entry.second->closed();
  links_.clear();
}

void HubCore::take_all_down() {
  stopping_ = true;
  const TimePoint now = steady_now();
  const Error cause{.code = ErrorCode::kAborted,
                    .message = "the link hub is closing",
                    .origin = {},
                    .causes = {}};
  const auto links = links_;
  for (const auto& entry : links) entry.second->end(cause, true, now);
}

/// Once all links are gone: closes the listeners, and some turns of the I/O loop later lets the
/// destructor go on. CAF keeps a listener for ever that is closed in the turn in which it was
/// opened.
void HubCore::let_go() {
  if (!stopping_ || !links_.empty()) return;
  if (turns_to_go_ == kTurnsToGo - 1)
    for (const auto& entry : listeners_) driver_->close_listener(entry.first);
  if (--turns_to_go_ > 0) return;
  const std::lock_guard lock(mutex_);
  empty_ = true;
  emptied_.notify_all();
}

bool HubCore::on_io_thread() const { return io_of_this_thread == this; }

void HubCore::post(std::function<void()> order) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    orders_.push_back(std::move(order));
    wake = !on_io_thread() && !std::exchange(woken_, true);
  }
  if (wake) driver_->wake();
}

void HubCore::mark(Ref<HubLink> link) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    dirty_.push_back(std::move(link));
    wake = !on_io_thread() && !std::exchange(woken_, true);
  }
  if (wake) driver_->wake();
}

/// Does what other threads, or the event at hand, asked for. Each event ends with it.
void HubCore::settle() {
  constexpr int kPassesMax = 64;
  for (int pass = 0; pass < kPassesMax; ++pass) {
    std::vector<Ref<HubLink>> dirty;
    std::vector<std::function<void()>> orders;
    {
      const std::lock_guard lock(mutex_);
      woken_ = false;
      dirty.swap(dirty_);
      orders.swap(orders_);
    }
    if (dirty.empty() && orders.empty()) return;
    for (const auto& order : orders) order();
    const TimePoint now = steady_now();
    for (const auto& link : dirty) link->settle(now);
  }
  driver_->wake();  // sockets have their turn in between
}

Ref<HubLink> HubCore::find(SocketId socket) const {
  const auto found = links_.find(socket);
  return found == links_.end() ? Ref<HubLink>() : found->second;
}

void HubCore::on_accepted(SocketId listener, SocketId socket) {
  io_of_this_thread = this;
  const auto found = listeners_.find(listener);
  if (stopping_ || found == listeners_.end()) {
    driver_->abort(socket);
    return;
  }
  shaking_.emplace(socket, ++accepted_);
  const auto link = make_ref<HubLink>(*this, socket, nullptr, &found->second);
  add_link(socket, link);
  if (shaking_.size() > options_.unauthenticated_max) evict_oldest_stranger(steady_now());
  settle();
}

void HubCore::add_link(SocketId socket, const Ref<HubLink>& link) {
  links_[socket] = link;
  link->start(steady_now());
}

/// Strangers that hold connections must not keep others out: an honest handshake takes less time
/// than it takes to fill the table again.
void HubCore::evict_oldest_stranger(TimePoint now) {
  const auto oldest =
      std::min_element(shaking_.begin(), shaking_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const SocketId socket = oldest->first;
  const Ref<HubLink> link = find(socket);
  shaking_.erase(oldest);
  if (!link) return;
  link->end(Error{.code = ErrorCode::kResourceExhausted,
                  .message = fmt::format("more than {} connections are in their handshake",
                                         options_.unauthenticated_max),
                  .origin = {},
                  .causes = {}},
            false, now);
}

void HubCore::on_bytes(SocketId socket, std::span<const std::byte> bytes) {
  io_of_this_thread = this;
  if (const auto link = find(socket)) link->take_bytes(bytes, steady_now());
  settle();
}

void HubCore::on_written(SocketId socket, std::size_t waiting) {
  io_of_this_thread = this;
  if (const auto link = find(socket)) link->written(waiting, steady_now());
  settle();
}

void HubCore::on_closed(SocketId socket) {
  io_of_this_thread = this;
  const Ref<HubLink> link = find(socket);
  if (link) {
    link->closed();
    links_.erase(socket);
  }
  settle();
}

void HubCore::on_wake() {
  io_of_this_thread = this;
  settle();
}

void HubCore::on_tick() {
  io_of_this_thread = this;
  const TimePoint now = steady_now();
  for (const auto& entry : links_) entry.second->tick(now);
  settle();
  let_go();
}

std::optional<TlsStream> HubCore::tls_stream(LinkSide side, const std::string& host) const {
  if (!tls_) return std::nullopt;
  return tls_->stream(side, host);
}

result<void> HubCore::admit(const PeerName& peer, bool unique) {
  const std::size_t most = connections_possible(options_.connections_max);
  if (names_.size() >= most)
    return fail(ErrorCode::kResourceExhausted, "{} has {} connections, at most {}",
                options_.self.to_string(), names_.size(), most);
  if (unique && names_.contains(peer))
    return fail(ErrorCode::kAlreadyExists, "{} is connected already", peer.to_string());
  names_.insert(peer);
  return {};
}

void HubCore::forget(const PeerName& peer) {
  const auto found = names_.find(peer);
  if (found != names_.end()) names_.erase(found);
}

void HubCore::complain(const std::string& host, const Error& error) {
  const TimePoint now = steady_now();
  const auto found = complaints_.find(host);
  if (found != complaints_.end() && now - found->second.at < kComplainEvery) {
    ++found->second.silent;
    return;
  }
  if (complaints_.size() >= kComplaintsMax && found == complaints_.end())
    std::erase_if(complaints_,
                  [now](const auto& entry) { return now - entry.second.at >= kComplainEvery; });
  if (complaints_.size() >= kComplaintsMax && found == complaints_.end()) return;
  Complaint& complaint = complaints_[host];
  log::warn("link: refused {}: {}{}", error.message, error_code_name(error.code),
            complaint.silent > 0 ? fmt::format(" ({} more in between)", complaint.silent) : "");
  complaint = {now, 0};
}

result<ListenAddress> HubCore::listen(const std::string& host, std::uint16_t port,
                                      AcceptPeer accept, const ListenOptions& options) {
  const bool guarded = !options_.token.empty() && tls_ != nullptr;
  TROUPE_TRY(const int descriptor, open_listener({host, port}, !guarded && !options_.insecure));
  TROUPE_TRY(const std::uint16_t got, port_of(descriptor));
  // The socket is bound and queues who comes; the I/O thread takes it over when it gets there.
  auto listener = std::make_shared<Listener>(Listener{std::move(accept), options});
  post([this, descriptor, listener] {
    if (stopping_) {
      ::close(descriptor);
      return;
    }
    listeners_.emplace(driver_->adopt_listener(descriptor), std::move(*listener));
  });
  return ListenAddress{host, got};
}

pending<Ref<Channel>> HubCore::connect(const std::string& address,
                                       std::shared_ptr<ChannelService> service, Deadline deadline,
                                       std::optional<PeerName> peer) {
  auto parsed = parse_host_port(address);
  if (!parsed) return pending<Ref<Channel>>::of(fail(std::move(parsed).error()));
  auto [channel, out] = make_pending<Ref<Channel>>();
  auto dial = make_ref<Dial>();
  dial->address = *parsed;
  dial->service = std::move(service);
  dial->peer = std::move(peer);
  dial->out = out;
  dial->timer = timer().add(deadline.at, [out, address] {
    out.fail(Error{.code = ErrorCode::kDeadline,
                   .message = fmt::format("{}: no channel by the deadline", address),
                   .origin = {},
                   .causes = {}});
  });
  dialler_->dial(std::move(*parsed), deadline, [this, dial](result<int> descriptor) {
    if (!descriptor) {
      timer().remove(dial->timer);
      dial->out.fail(std::move(descriptor).error());
      return;
    }
    post([this, dial, got = *descriptor] { adopt(dial, got); });
  });
  return std::move(channel);
}

void HubCore::adopt(const Ref<Dial>& dial, result<int> descriptor) {
  if (stopping_ || dial->out.done()) {
    ::close(*descriptor);
    timer().remove(dial->timer);
    dial->out.fail(runtime::cancelled("the link hub is closing"));
    return;
  }
  const SocketId socket = driver_->adopt(*descriptor);
  add_link(socket, make_ref<HubLink>(*this, socket, dial, nullptr));
}

class LinkHub::Impl {
 public:
  Impl(ActorSystem& system, LinkOptions options, std::unique_ptr<TlsContext> tls)
      : core(system, std::move(options), std::move(tls)) {}
  HubCore core;
};

LinkHub::LinkHub(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LinkHub::~LinkHub() = default;

result<std::unique_ptr<LinkHub>> LinkHub::open(ActorSystem& system, LinkOptions options) {
  TROUPE_TRY_VOID(check_options(options));
  std::unique_ptr<TlsContext> tls;
  if (options.tls.enabled()) {
    TROUPE_TRY(tls, TlsContext::open(options.tls));
  }
  return std::unique_ptr<LinkHub>(
      new LinkHub(std::make_unique<Impl>(system, std::move(options), std::move(tls))));
}

result<ListenAddress> LinkHub::listen(const std::string& host, std::uint16_t port,
                                      AcceptPeer accept, ListenOptions options) {
  return impl_->core.listen(host, port, std::move(accept), options);
}

pending<Ref<Channel>> LinkHub::connect(const std::string& address,
                                       std::shared_ptr<ChannelService> service, Deadline deadline,
                                       std::optional<PeerName> peer) {
  return impl_->core.connect(address, std::move(service), deadline, std::move(peer));
}

const LinkOptions& LinkHub::options() const { return impl_->core.options(); }

}  // namespace troupe::runtime

#include "runtime/link/dialler.hpp"

#include "runtime/base/check.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

namespace troupe::runtime {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

result<Addresses> look_up(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int code =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (code != 0)
    return fail(ErrorCode::kIo, "{}: unknown host: {}", address.host, ::gai_strerror(code));
  return Addresses(list);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, address, sizeof v4);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, address, sizeof v6);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

/// What a look-up shares with the dialler, which may be gone before it ends.
struct Doorbell {
  const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::atomic<int> look_ups{0};

  Doorbell() = default;
  ~Doorbell() {
    if (event >= 0) ::close(event);
  }
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;
  void ring() const {
    const std::uint64_t one = 1;
    (void)!::write(event, &one, sizeof one);  // a full counter rings as well
  }
};

/// The answer of a look-up, once it is there.
struct LookUp {
  std::mutex mutex;  // guards answer
  std::optional<result<Addresses>> answer;
};

/// One attempt: the addresses of a host, tried in turn.
struct Attempt {
  HostPort address;
  Deadline deadline;
  Dialler::Connected connected;
  std::shared_ptr<LookUp> look_up{};  ///< while the name is being looked up
  Addresses addresses{};
  const addrinfo* next = nullptr;
  int descriptor = -1;
  std::string last_reason = "no address";

  Error error(ErrorCode code, const std::string& reason) const {
    return Error{.code = code,
                 .message = fmt::format("{}:{}: {}", address.host, address.port, reason),
                 .origin = {},
                 .causes = {}};
  }
  void end(result<int> outcome) {
    if (!outcome && descriptor >= 0) ::close(descriptor);
    descriptor = -1;
    connected(std::move(outcome));
  }
};

/// Starts on the next address; true while there is something to wait for.
bool try_next(Attempt& attempt) {
  while (attempt.next != nullptr) {
    const addrinfo& address = *std::exchange(attempt.next, attempt.next->ai_next);
    attempt.descriptor =
        ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (attempt.descriptor < 0) {
      attempt.last_reason = system_message(errno);
      continue;
    }
    const int on = 1;
    ::setsockopt(attempt.descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const int code = ::connect(attempt.descriptor, address.ai_addr, address.ai_addrlen);
    if (code == 0 || errno == EINPROGRESS) return true;
    attempt.last_reason = system_message(errno);
    ::close(std::exchange(attempt.descriptor, -1));
  }
  return false;
}

/// Starts to connect; true when the attempt is over and has called back.
bool connect(Attempt& attempt, result<Addresses> addresses) {
  attempt.look_up = nullptr;
  if (!addresses) {
    attempt.end(fail(std::move(addresses).error()));
    return true;
  }
  attempt.addresses = *std::move(addresses);
  attempt.next = attempt.addresses.get();
  if (try_next(attempt)) return false;
  attempt.end(fail(attempt.error(ErrorCode::kIo, attempt.last_reason)));
  return true;
}

/// True when the attempt is over and has called back.
bool advance(Attempt& attempt, bool writable) {
  if (attempt.look_up != nullptr) {
    std::optional<result<Addresses>> answer;
    {
      const std::lock_guard lock(attempt.look_up->mutex);
      answer = std::exchange(attempt.look_up->answer, std::nullopt);
    }
    if (answer) return connect(attempt, *std::move(answer));
    if (!attempt.deadline.passed()) return false;
    attempt.end(fail(attempt.error(ErrorCode::kDeadline, "name not looked up by the deadline")));
    return true;
  }
  if (writable) {
    int code = 0;
    socklen_t size = sizeof code;
    ::getsockopt(attempt.descriptor, SOL_SOCKET, SO_ERROR, &code, &size);
    if (code == 0) {
      attempt.end(std::exchange(attempt.descriptor, -1));
      return true;
    }
    attempt.last_reason = system_message(code);
    ::close(std::exchange(attempt.descriptor, -1));
    if (!try_next(attempt)) {
      attempt.end(fail(attempt.error(ErrorCode::kIo, attempt.last_reason)));
      return true;
    }
  }
  if (!attempt.deadline.passed()) return false;
  attempt.end(fail(attempt.error(ErrorCode::kDeadline, "not connected by the deadline")));
  return true;
}

}  // namespace

result<HostPort> parse_host_port(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort parsed;
  bool good = colon != std::string::npos && colon > 0;
  if (good) {
    parsed.host = address.substr(0, colon);
    if (parsed.host.front() == '[' && parsed.host.back() == ']')
      parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    const char* const end = address.data() + address.size();
    const auto [stop, code] = std::from_chars(address.data() + colon + 1, end, parsed.port);
    good = code == std::errc() && stop == end && parsed.port != 0 && !parsed.host.empty();
  }
  if (!good) return fail(ErrorCode::kInvalidArgument, "address '{}': wanted host:port", address);
  return parsed;
}

struct Dialler::State {
  std::mutex mutex;  // guards incoming and stop
  std::vector<std::unique_ptr<Attempt>> incoming;
  bool stop = false;
  const std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  std::function<void(const std::string&)> before_look_up;
  std::vector<std::unique_ptr<Attempt>> running;  // the thread's own
  std::thread thread;

  void begin(std::unique_ptr<Attempt> attempt) {
    if (auto numeric = look_up(attempt->address, AI_NUMERICHOST)) {
      if (!connect(*attempt, std::move(numeric))) running.push_back(std::move(attempt));
      return;
    }
    if (bell->look_ups.load() >= kLookUpsMax) {
      attempt->end(fail(attempt->error(ErrorCode::kResourceExhausted,
                                       fmt::format("{} names are being looked up", kLookUpsMax))));
      return;
    }
    bell->look_ups.fetch_add(1);
    attempt->look_up = std::make_shared<LookUp>();
    // Nothing can interrupt it, so nobody may have to wait for it.
    auto find = [address = attempt->address, before = before_look_up, bell = bell,
                 answer = attempt->look_up] {
      if (before) before(address.host);
      auto found = look_up(address, 0);
      {
        const std::lock_guard lock(answer->mutex);
        answer->answer = std::move(found);
      }
      bell->look_ups.fetch_sub(1);
      bell->ring();
    };
    try {
      std::thread(std::move(find)).detach();
    } catch (const std::system_error& error) {
      bell->look_ups.fetch_sub(1);
      attempt->end(fail(attempt->error(ErrorCode::kResourceExhausted, error.what())));
      return;
    }
    running.push_back(std::move(attempt));
  }

  void wait_and_advance() {
    std::vector<pollfd> wanted{{bell->event, POLLIN, 0}};
    TimePoint first = TimePoint::max();
    for (const auto& attempt : running) {
      wanted.push_back({attempt->descriptor, POLLOUT, 0});  // -1, during a look-up, is skipped
      first = std::min(first, attempt->deadline.at);
    }
    int limit_ms = -1;
    if (!running.empty()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - steady_now());
      limit_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
    }
    ::poll(wanted.data(), wanted.size(), limit_ms);
    std::uint64_t count = 0;
    (void)!::read(bell->event, &count, sizeof count);
    std::vector<std::unique_ptr<Attempt>> still;
    for (std::size_t i = 0; i < running.size(); ++i) {
      const bool writable = wanted[i + 1].revents != 0;
      if (!advance(*running[i], writable)) still.push_back(std::move(running[i]));
    }
    running = std::move(still);
  }

  void run() {
    while (true) {
      std::vector<std::unique_ptr<Attempt>> fresh;
      {
        const std::lock_guard lock(mutex);
        fresh.swap(incoming);
        if (stop) {
          for (auto& attempt : fresh) running.push_back(std::move(attempt));
          break;
        }
      }
      for (auto& attempt : fresh) begin(std::move(attempt));
      wait_and_advance();
    }
    for (auto& attempt : running)
      attempt->end(fail(attempt->error(ErrorCode::kCancelled, "the hub is closing")));
    running.clear();
  }
};

Dialler::Dialler(std::function<void(const std::string&)> before_look_up)
    : state_(std::make_unique<State>()) {
  state_->before_look_up = std::move(before_look_up);
  TROUPE_CHECK(state_->bell->event >= 0, "dialler: no eventfd: {}", system_message(errno));
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Dialler::~Dialler() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->bell->ring();
  state_->thread.join();
}

void Dialler::dial(HostPort address, Deadline deadline, Connected connected) {
  auto attempt =
      std::make_unique<Attempt>(Attempt{std::move(address), deadline, std::move(connected)});
  {
    const std::lock_guard lock(state_->mutex);
    state_->incoming.push_back(std::move(attempt));
  }
  state_->bell->ring();
}

result<void> check_loopback(const HostPort& address) {
  TROUPE_TRY(const Addresses addresses, look_up(address, AI_PASSIVE));
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    if (!is_loopback(one->ai_addr))
      return fail(ErrorCode::kConfig,
                  "{}:{}: listening beyond loopback needs a join token and TLS, or an insecure "
                  "network declared as trusted",
                  address.host, address.port);
  }
  return {};
}

result<int> open_listener(const HostPort& address, bool only_loopback) {
  if (only_loopback) {
    TROUPE_TRY_VOID(check_loopback(address));
  }
  TROUPE_TRY(const Addresses addresses, look_up(address, AI_PASSIVE));
  constexpr int kBacklog = 1024;
  int reason = EADDRNOTAVAIL;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    const int made = ::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0) {
      reason = errno;
      continue;
    }
    const int on = 1;
    ::setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(made, one->ai_addr, one->ai_addrlen) == 0 && ::listen(made, kBacklog) == 0)
      return made;
    reason = errno;
    ::close(made);
  }
  return fail(ErrorCode::kIo, "{}:{}: cannot listen: {}", address.host, address.port,
              system_message(reason));
}

result<std::uint16_t> port_of(int descriptor) {
  sockaddr_storage found{};
  socklen_t size = sizeof found;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&found), &size) != 0)
    return fail(ErrorCode::kIo, "listener: no address: {}", system_message(errno));
  if (found.ss_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &found, sizeof v6);
    return ntohs(v6.sin6_port);
  }
  sockaddr_in v4{};
  std::memcpy(&v4, &found, sizeof v4);
  return ntohs(v4.sin_port);
}

}  // namespace troupe::runtime

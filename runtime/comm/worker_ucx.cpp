#include "runtime/comm/worker_ucx.hpp"

#include "runtime/base/log.hpp"

#include <poll.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <limits>
#include <mutex>

namespace troupe::runtime {
namespace {

/// What one answer takes to send, at most, when the lane is not TCP alone: one message fewer even
/// if the reader could copy.
constexpr std::int64_t kSmallBytes = std::int64_t{8} << 10;
/// Up to here a message over TCP goes at once: a copy more at the reader costs less than asking.
constexpr std::int64_t kTcpAtOnceBytes = std::int64_t{64} << 10;
/// What UCX reads of a socket at a time; a message that goes at once is never cut.
constexpr std::int64_t kTcpSegmentBytes = std::int64_t{260} << 10;

/// UCX warns about lanes that are named and not there.
bool has_infiniband() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

std::string transports(TransportLanes lanes) {
  switch (lanes) {
    case TransportLanes::kSharedMemory:
      return "posix,sysv";
    case TransportLanes::kTcp:
      return "tcp";
    case TransportLanes::kAuto:
      break;
  }
  // No shared memory: a process killed while it writes to a receiver's queue blocks that queue for
  // all. No cma: it has no error handling, so that a dead peer would never be told. Direct copies
  // (direct_copy.hpp) do the same with errors.
  return has_infiniband() ? "tcp,ib" : "tcp";
}

/// UCX takes over SIGSEGV and its kin when it is loaded; a runtime that is embedded must not.
void restore_signal_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(number);
  });
}

class Config {
 public:
  ~Config() {
    if (config_ != nullptr) ucp_config_release(config_);
  }
  Config() = default;
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  result<void> read() {
    // A prefix of our own: `UCX_…` of the environment is read too, and what we set below wins.
    const ucs_status_t status = ucp_config_read("TROUPE", nullptr, &config_);
    if (status != UCS_OK)
      return fail(ErrorCode::kInternal, "ucx: reading its settings: {}", ucx_reason(status));
    return {};
  }
  result<void> set(const char* name, const std::string& value) {
    const ucs_status_t status = ucp_config_modify(config_, name, value.c_str());
    if (status != UCS_OK)
      return fail(ErrorCode::kConfig, "ucx: setting {} to '{}': {}", name, value,
                  ucx_reason(status));
    return {};
  }
  const ucp_config_t* get() const { return config_; }

 private:
  ucp_config_t* config_ = nullptr;
};

}  // namespace

std::string ucx_version() { return ucp_get_version_string(); }
std::string ucx_reason(ucs_status_t status) { return ucs_status_string(status); }

result<std::unique_ptr<UcxWorker>> UcxWorker::open(TransportLanes lanes,
                                                   const std::string& interfaces,
                                                   Duration keepalive) {
  restore_signal_handlers();
  std::unique_ptr<UcxWorker> worker(new UcxWorker());
  TROUPE_TRY_VOID(worker->make_context(lanes, interfaces, keepalive));
  TROUPE_TRY_VOID(worker->make_worker());
  return worker;
}

result<void> UcxWorker::make_context(TransportLanes lanes, const std::string& interfaces,
                                     Duration keepalive) {
  Config config;
  TROUPE_TRY_VOID(config.read());
  TROUPE_TRY_VOID(config.set("TLS", transports(lanes)));
  if (!interfaces.empty()) TROUPE_TRY_VOID(config.set("NET_DEVICES", interfaces));
  if (lanes == TransportLanes::kSharedMemory) TROUPE_TRY_VOID(config.set("MM_ERROR_HANDLING", "y"));
  // The default, 64 KiB, cuts even a message of 64 KiB in two. A whole message, and a little more,
  // keeps what follows it aligned in UCX's buffer, which shifts remainders.
  if (lanes != TransportLanes::kSharedMemory)
    TROUPE_TRY_VOID(config.set("RX_SEG_SIZE", fmt::format("{}", kTcpSegmentBytes)));
  tcp_only_ = transports(lanes) == "tcp";
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(keepalive);
  TROUPE_TRY_VOID(config.set("KEEPALIVE_INTERVAL", fmt::format("{}ms", milliseconds.count())));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "troupe";
  const ucs_status_t status = ucp_init(&params, config.get(), &context_);
  if (status != UCS_OK)
    return fail(ErrorCode::kUnsupported, "ucx: opening lanes {} on interfaces '{}': {}",
                transports(lanes), interfaces, ucx_reason(status));
  return {};
}

result<void> UcxWorker::make_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucs_status_t status = ucp_worker_create(context_, &params, &worker_);
  if (status != UCS_OK)
    return fail(ErrorCode::kUnsupported, "ucx: making a worker: {}", ucx_reason(status));
  status = ucp_worker_get_efd(worker_, &descriptor_);
  if (status != UCS_OK)
    return fail(ErrorCode::kUnsupported, "ucx: no descriptor to wait on: {}", ucx_reason(status));
  return {};
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

result<std::vector<std::byte>> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK)
    return fail(ErrorCode::kUnsupported, "ucx: no address: {}", ucx_reason(status));
  const auto* first = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(first, first + bytes);
  ucp_worker_release_address(worker_, address);
  return copy;
}

result<std::vector<std::byte>> UcxWorker::network_address() const {
  ucp_worker_attr_t found{};
  found.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  found.address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY;
  const ucs_status_t status = ucp_worker_query(worker_, &found);
  if (status != UCS_OK)
    return fail(ErrorCode::kUnsupported, "ucx: no network address: {}", ucx_reason(status));
  const auto* first = reinterpret_cast<const std::byte*>(found.address);
  std::vector<std::byte> copy(first, first + found.address_length);
  ucp_worker_release_address(worker_, found.address);
  return copy;
}

bool UcxWorker::progress() {
  constexpr int kRoundsMax = 64;  // between looks at our own queue
  int rounds = 0;
  while (rounds < kRoundsMax && ucp_worker_progress(worker_) != 0) ++rounds;
  return rounds > 0;
}

std::int64_t UcxWorker::at_once_bytes(bool watched) const {
  if (!tcp_only_) return kSmallBytes;
  return watched ? kTcpWatchedBytes : kTcpAtOnceBytes;
}

std::int64_t UcxWorker::message_bytes_max(bool watched) const {
  if (tcp_only_) return watched ? kTcpWatchedBytes : kTcpMessageBytes;
  return std::numeric_limits<std::int64_t>::max();
}

void UcxWorker::wait(TimePoint until, std::uint64_t seen) {
  // Either `wake` sees that we sleep, or we see that it was called: both are in one order.
  asleep_.store(true);
  if (wakes_.load() == seen) sleep(until);
  asleep_.store(false);
}

void UcxWorker::sleep(TimePoint until) {
  const ucs_status_t status = ucp_worker_arm(worker_);
  if (status == UCS_ERR_BUSY) return;  // something came in meanwhile
  constexpr std::int64_t kLongest = 60'000;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      until - std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()));
  const auto timeout = std::clamp<std::int64_t>(left.count(), 0, kLongest);
  pollfd descriptor{.fd = descriptor_, .events = POLLIN, .revents = 0};
  (void)::poll(&descriptor, 1, static_cast<int>(timeout));
}

void UcxWorker::wake() {
  wakes_.fetch_add(1);
  if (asleep_.exchange(false)) (void)ucp_worker_signal(worker_);
}

}  // namespace troupe::runtime

// The UCX transport: a progress thread that owns every UCX call, and the queue in front of it.

#include "runtime/base/check.hpp"
#include "runtime/base/log.hpp"
#include "runtime/comm/engine_ucx.hpp"
#include "runtime/comm/spin_budget.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <future>
#include <mutex>
#include <thread>
#include <variant>

namespace troupe::runtime {
namespace {

/// Pulls of one process that wait for the progress thread; far more than callers that block.
constexpr std::size_t kCommandsMax = std::size_t{1} << 16;

class UcxTransport final : public Transport {
 public:
  static result<std::unique_ptr<Transport>> open(TransportOptions options);
  ~UcxTransport() override;

  const std::vector<std::byte>& address() const override { return address_; }
  pending<void> pull(PullRequest request, Deadline deadline) override;
  void peer_lost(const std::vector<std::byte>& address, Error cause) override;
  TransportStatistics statistics() const override { return counters_.read(); }

 private:
  struct PullCommand {
    PullRequest request;
    Deadline deadline;
    completer<void> out;
  };
  struct LoseCommand {
    TransportAddress address;
    Error cause;
  };
  using Command = std::variant<PullCommand, LoseCommand>;
  enum class Taken : std::uint8_t { kNone, kSome, kOver };

  UcxTransport() = default;
  void run(TransportOptions options, std::promise<result<std::vector<std::byte>>> opened);
  void loop(UcxEngine& engine, UcxWorker& worker, Duration spin);
  Taken take_commands(UcxEngine& engine);
  /// False when the transport is over, or full.
  result<void> post(Command command);
  void fall(const Error& cause);

  std::vector<std::byte> address_;
  std::array<std::byte, 16> probe_{};  ///< what readers on this host look for
  TransportCounters counters_;
  std::mutex mutex_;  ///< guards the following
  std::vector<Command> commands_;
  UcxWorker* worker_ = nullptr;  ///< to wake it
  std::optional<Error> over_;
  std::thread thread_;
};

result<void> check(const TransportOptions& options) {
  const auto wrong = [&](std::string_view what, auto found, std::string_view wanted) {
    return fail(ErrorCode::kConfig, "transport of {}: {} is {}, wanted {}", options.name, what,
                found, wanted);
  };
  if (options.chunk_bytes < 4096 || options.chunk_bytes > kChunkBytesMax)
    return wrong("chunk_bytes", options.chunk_bytes, "4 KiB..1 GiB");
  if (options.chunks_in_flight < 1 || options.chunks_in_flight > kChunksOutMax)
    return wrong("chunks_in_flight", options.chunks_in_flight, "1..128");
  if (options.pack_bytes_max < 0)
    return wrong("pack_bytes_max", options.pack_bytes_max, "0 or more");
  if (options.keepalive < std::chrono::milliseconds(10) ||
      options.keepalive > std::chrono::seconds(1))
    return wrong("keepalive in ns", options.keepalive.count(), "10 ms..1 s");
  if (options.copy_threads < 1 || options.copy_threads > 64)
    return wrong("copy_threads", options.copy_threads, "1..64");
  if (options.drain < Duration(0) || options.spin < Duration(0))
    return wrong("drain or spin in ns", std::min(options.drain, options.spin).count(), "0 or more");
  return {};
}

result<std::unique_ptr<Transport>> UcxTransport::open(TransportOptions options) {
  TROUPE_TRY_VOID(check(options));
  std::unique_ptr<UcxTransport> transport(new UcxTransport());
  std::promise<result<std::vector<std::byte>>> opened;
  auto outcome = opened.get_future();
  transport->thread_ = std::thread([self = transport.get(), options = std::move(options),
                                    promise = std::move(opened)]() mutable {
    self->run(std::move(options), std::move(promise));
  });
  TROUPE_TRY(transport->address_, outcome.get());
  return transport;
}

UcxTransport::~UcxTransport() {
  fall(Error{
      .code = ErrorCode::kAborted, .message = "transport: closed", .origin = {}, .causes = {}});
  if (thread_.joinable()) thread_.join();
}

void UcxTransport::fall(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (!over_) over_ = cause;
  if (worker_ != nullptr) worker_->wake();
}

result<void> UcxTransport::post(Command command) {
  const std::lock_guard lock(mutex_);
  if (over_) return fail(*over_);
  if (commands_.size() >= kCommandsMax)
    return fail(ErrorCode::kResourceExhausted, "transport: {} pulls wait", commands_.size());
  commands_.push_back(std::move(command));
  if (commands_.size() == 1 && worker_ != nullptr) worker_->wake();
  return {};
}

pending<void> UcxTransport::pull(PullRequest request, Deadline deadline) {
  auto [outcome, out] = make_pending<void>();
  const result<void> posted =
      post(PullCommand{.request = std::move(request), .deadline = deadline, .out = out});
  if (!posted) out.fail(posted.error());
  return std::move(outcome);
}

void UcxTransport::peer_lost(const std::vector<std::byte>& address, Error cause) {
  result<TransportAddress> decoded = decode_address(address);
  if (!decoded)
    return log::warn("transport: lost a peer of no address: {}", decoded.error().message);
  (void)post(LoseCommand{.address = *std::move(decoded), .cause = std::move(cause)});
}

UcxTransport::Taken UcxTransport::take_commands(UcxEngine& engine) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
    if (over_ && commands.empty()) return Taken::kOver;
  }
  for (Command& command : commands) {
    if (auto* pull = std::get_if<PullCommand>(&command))
      engine.pull(std::move(pull->request), pull->deadline, std::move(pull->out));
    else if (auto* lose = std::get_if<LoseCommand>(&command))
      engine.lose(lose->address, lose->cause);
  }
  return commands.empty() ? Taken::kNone : Taken::kSome;
}

void UcxTransport::loop(UcxEngine& engine, UcxWorker& worker, Duration spin) {
  SpinBudget budget(spin);
  std::optional<TimePoint> idle_since;
  for (std::uint64_t seen = worker.wakes();; seen = worker.wakes()) {
    const Taken taken = take_commands(engine);
    if (taken == Taken::kOver) return;
    const TimePoint now = steady_now();
    if (engine.step(now) || taken == Taken::kSome) {
      if (idle_since) budget.paid();
      idle_since.reset();
      continue;
    }
    if (!idle_since) idle_since = now;
    if (now - *idle_since < budget.get()) continue;
    budget.failed();
    idle_since.reset();
    worker.wait(engine.next_due(now), seen);
  }
}

void UcxTransport::run(TransportOptions options,
                       std::promise<result<std::vector<std::byte>>> opened) {
  const Duration spin = options.spin;
  const std::string name = options.name;
  auto worker = UcxWorker::open(options.lanes, options.interfaces, options.keepalive);
  if (!worker) return opened.set_value(fail(std::move(worker).error()));
  TransportAddress self;
  self.name = options.name;
  self.host = host_identity();
  self.lane_version = ucx_version();
  self.pid = ::getpid();
  const bool random = ::getrandom(&self.epoch, sizeof(self.epoch), 0) == sizeof(self.epoch) &&
                      ::getrandom(probe_.data(), probe_.size(), 0) == ssize_t{16};
  if (!random || self.epoch == 0)
    return opened.set_value(fail(ErrorCode::kIo, "transport of {}: no random numbers", name));
  self.probe = probe_;
  self.probe_place = reinterpret_cast<std::uintptr_t>(probe_.data());
  if (options.direct_copy && options.lanes != TransportLanes::kTcp) permit_direct_reads();
  auto lanes = (*worker)->address();
  if (!lanes) return opened.set_value(fail(std::move(lanes).error()));
  self.lanes = *std::move(lanes);
  // None on a host without a network: then only processes of this host reach it.
  if (auto network = (*worker)->network_address()) self.network_lanes = *std::move(network);
  UcxEngine engine(std::move(options), self, **worker, counters_);
  if (auto listening = engine.listen(); !listening)
    return opened.set_value(fail(std::move(listening).error()));
  {
    const std::lock_guard lock(mutex_);
    worker_ = worker->get();
  }
  opened.set_value(encode_address(self));
  try {
    loop(engine, **worker, spin);
  } catch (...) {
    const Error error = error_of_current_exception();
    log::error("transport of {}: {}", name, error.message);
    fall(error);
  }
  std::vector<Command> rest;
  {
    const std::lock_guard lock(mutex_);
    worker_ = nullptr;
    rest.swap(commands_);
  }
  rest.clear();  // whose pulls end as abandoned
  constexpr Duration kGoodbye = std::chrono::milliseconds(500);
  engine.close(steady_now() + kGoodbye);
  worker->reset();  // before the engine: UCX may still call it, and write to what it keeps
}

}  // namespace

result<std::unique_ptr<Transport>> open_ucx_transport(TransportOptions options) {
  return UcxTransport::open(std::move(options));
}

}  // namespace troupe::runtime

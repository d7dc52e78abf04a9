#include "runtime/group/rank_server.hpp"

#include "runtime/base/log.hpp"
#include "runtime/comm/lane_interfaces.hpp"
#include "runtime/exchange/column_exchange.hpp"
#include "runtime/group/call_trace.hpp"
#include "runtime/group/host_clock.hpp"
#include "runtime/group/served_call.hpp"
#include "runtime/task/failure.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::runtime {
namespace {

/// Results that wait for company are sent after this time at the latest.
constexpr Duration kResultsWait = std::chrono::microseconds(300);
constexpr std::size_t kResultsTogether = 32;
constexpr std::size_t kResultBytesTogether = std::size_t{512} << 10;
/// Ranks on other hosts need a few round trips to meet.
constexpr Duration kRebuildSlice = std::chrono::seconds(1);
constexpr Duration kIntroductionWithin = std::chrono::seconds(30);
/// How long the last words may take to leave.
constexpr Duration kFarewellWithin = std::chrono::milliseconds(500);

/// The controller's store, over the channel to it.
class RemoteRendezvous final : public RendezvousStore {
 public:
  explicit RemoteRendezvous(Ref<Channel> channel) : channel_(std::move(channel)) {}
  result<void> set(const std::string& key, std::string value) override {
    TROUPE_TRY(auto payload, encode_value(StoreEntry{key, std::move(value)}));
    const Deadline deadline = Deadline::in(kIntroductionWithin);
    auto answer = channel_->request(kStoreSet, std::move(payload), deadline).wait(deadline);
    if (!answer) return fail(std::move(answer).error());
    return {};
  }
  result<std::string> get(const std::string& key, Deadline deadline) override {
    TROUPE_TRY(auto payload, encode_value(StoreEntry{key, {}}));
    TROUPE_TRY(const auto answer,
               channel_->request(kStoreGet, std::move(payload), deadline).wait(deadline));
    return decode_value<std::string>(answer);
  }

 private:
  const Ref<Channel> channel_;
};

}  // namespace

class RankServer::State final : public RankOwner, public CallTrace {
 public:
  explicit State(RankServerOptions options) : options_(std::move(options)) {}

  RankOutcome serve(Ref<Channel> controller, Duration engine_within);
  void end(RankEnd how, Error cause);
  RankStatus status() const;

  void on_request(std::string_view method, Responder responder);
  void on_notify(Channel& channel, std::string_view method, std::span<const std::byte> payload);

  void rank_constructed(RankId rank, std::optional<Error> error) override;
  void rank_done(Call& call, RankId rank, result<void> outcome) override;
  void rank_died(RankId rank, Error cause, Call* during) override;
  CallTrace* trace() const override { return const_cast<State*>(this); }
  Duration create_deadline() const override { return create_within_; }
  Duration rebuild_slice() const override { return kRebuildSlice; }
  void on_call(const CallSpan& span) override {
    began_ = span.begin;
    ended_ = span.end;
  }

 private:
  /// A result that is ready to leave; the call keeps its bytes.
  struct Ready {
    Ref<Call> call;
    ResultFrame frame;
  };

  result<void> introduce();
  result<void> match_methods(const RankProgram& program, const RankWelcome& welcome);
  result<void> open_exchange(const RankWelcome& welcome);
  result<std::unique_ptr<Collective>> make_world(Deadline deadline);
  result<OwnedWorker> make_worker(WorkerContext& context);
  template <class Message>
  result<std::vector<std::byte>> ask(std::string_view method, const Message& message);
  template <class Message>
  void tell(std::string_view method, const Message& message);

  result<void> take(std::string_view method, std::span<const std::byte> payload);
  result<void> take_calls(std::span<const std::byte> payload);
  void hold(std::uint64_t round);
  void agree(const GroupAgreed& agreed);
  void abort(const GroupAbort& message);

  void flush_results();
  void flush_late_results();

  const RankServerOptions options_;
  Ref<Channel> channel_;  // set before anything else runs
  Mesh mesh_;
  std::vector<std::byte> spec_;
  std::string holder_;
  Duration create_within_{};
  bool collectives_ = false;
  bool alone_ = false;
  const RankProgram* program_ = nullptr;
  std::vector<const ServedMethod*> methods_;  // by the controller's index
  std::unique_ptr<ColumnExchange> exchange_;
  Ref<Rank> rank_;
  std::atomic<bool> rank_made_{false};  // what is above does not change afterwards

  TimePoint began_;  // engine thread only
  TimePoint ended_;

  std::mutex world_mutex_;  // guards what follows
  Collective* world_ = nullptr;
  std::optional<Error> world_abort_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<RankOutcome> outcome_;
  std::uint64_t hold_round_ = 0;
  CallId failed_{0};  // the engine holds by itself after it

  std::mutex send_mutex_;     // held while results are sent
  std::mutex results_mutex_;  // guards what follows
  std::condition_variable results_changed_;
  std::vector<Ready> results_;
  std::size_t results_bytes_ = 0;
  TimePoint results_since_;
  bool flusher_stop_ = false;
};

/// Between the channel, which keeps its service, and the state, which keeps the channel: lets go of
/// the state when `serve` ends, and waits for the callback that runs.
class RankServerService final : public ChannelService {
 public:
  explicit RankServerService(Ref<RankServer::State> state) : state_(std::move(state)) {}
  void detach() {
    Ref<RankServer::State> dropped;  // after the lock
    const std::lock_guard lock(mutex_);
    std::swap(dropped, state_);
  }
  void on_request(Channel&, std::string_view method, std::span<const std::byte>, Deadline,
                  Responder responder) override {
    const std::lock_guard lock(mutex_);
    if (state_) return state_->on_request(method, std::move(responder));
    responder.reply(fail(ErrorCode::kCancelled, "the rank has ended"));
  }
  void on_notify(Channel& channel, std::string_view method,
                 std::span<const std::byte> payload) override {
    const std::lock_guard lock(mutex_);
    if (state_) state_->on_notify(channel, method, payload);
  }
  void on_down(Channel&, const Error& cause) override {
    const std::lock_guard lock(mutex_);
    if (state_) state_->end(RankEnd::kControllerLost, cause);
  }

 private:
  std::recursive_mutex mutex_;  // guards state_, and is held while it is called
  Ref<RankServer::State> state_;
};

// --- the beginning

template <class Message>
result<std::vector<std::byte>> RankServer::State::ask(std::string_view method,
                                                      const Message& message) {
  TROUPE_TRY(auto payload, encode_value(message));
  const Deadline deadline = Deadline::in(kIntroductionWithin);
  return channel_->request(method, std::move(payload), deadline).wait(deadline);
}

template <class Message>
void RankServer::State::tell(std::string_view method, const Message& message) {
  auto payload = encode_value(message);
  if (!payload) return end(RankEnd::kControllerLost, std::move(payload).error());
  // An error means that the channel is going down, which ends the rank.
  (void)channel_->notify(method, std::move(*payload));
}

result<void> RankServer::State::match_methods(const RankProgram& program,
                                              const RankWelcome& welcome) {
  for (const MethodName& wanted : welcome.methods) {
    const auto found =
        std::find_if(program.methods.begin(), program.methods.end(),
                     [&](const ServedMethod& one) { return one.name == wanted.name; });
    if (found == program.methods.end()) {
      return fail(ErrorCode::kConflict,
                  "program {}: the rank's build has no method {}; its controller's has",
                  welcome.program, wanted.name);
    }
    if (found->signature != wanted.signature) {
      return fail(ErrorCode::kConflict,
                  "program {}: method {} has signature {:016x} in the rank's build, {:016x} in its "
                  "controller's",
                  welcome.program, wanted.name, found->signature, wanted.signature);
    }
    methods_.push_back(&*found);
  }
  return {};
}

result<void> RankServer::State::open_exchange(const RankWelcome& welcome) {
  ExchangeOptions exchange;
  exchange.self = ColumnOwner{options_.record.group, options_.record.rank};
  TransportOptions transport;
  transport.name = fmt::format("{} rank {}", options_.record.group, options_.record.rank.value);
  transport.lanes = options_.lanes;
  transport.interfaces = lane_interfaces(options_.host);
  if (welcome.key.size() != transport.key.size())
    return fail(ErrorCode::kCorrupt, "data plane key of {} bytes", welcome.key.size());
  std::copy(welcome.key.begin(), welcome.key.end(), transport.key.begin());
  TROUPE_TRY(exchange_, ColumnExchange::open(std::move(exchange), std::move(transport)));
  exchange_->set_peer_lookup(
      [channel = channel_](const ColumnOwner& owner,
                           Deadline deadline) -> result<std::vector<std::byte>> {
        TROUPE_TRY(auto payload, encode_value(OwnerName{owner.group, owner.rank}));
        return channel->request(kExchangeLookup, std::move(payload), deadline).wait(deadline);
      });
  exchange_->open_holder(welcome.holder);
  return {};
}

/// Says who it is and learns what it shall be.
result<void> RankServer::State::introduce() {
  TROUPE_TRY(const auto answer, ask(kRankHello, RankHello{.protocol = kRankProtocol,
                                                          .version = options_.version,
                                                          .boot = host_boot_id(),
                                                          .pid = static_cast<int>(getpid())}));
  TROUPE_TRY(RankWelcome welcome, decode_value<RankWelcome>(answer));
  program_ = options_.programs->find(welcome.program);
  if (program_ == nullptr) {
    return fail(ErrorCode::kNotFound, "the rank's build has no program '{}', it has {}",
                welcome.program, fmt::join(options_.programs->names(), ", "));
  }
  TROUPE_TRY_VOID(match_methods(*program_, welcome));
  std::vector<Axis> axes;
  for (const MeshAxis& axis : welcome.mesh) axes.push_back({axis.name, axis.size});
  TROUPE_TRY(mesh_, Mesh::create(std::move(axes)));
  if (options_.record.rank.value >= mesh_.size()) {
    return fail(ErrorCode::kCorrupt, "rank {} of {}", options_.record.rank.value, mesh_.size());
  }
  spec_ = std::move(welcome.spec);
  holder_ = welcome.holder;
  collectives_ = welcome.collectives && mesh_.size() > 1;
  // One rank alone agrees with nobody, but its worker may ask for the group all the same.
  alone_ = welcome.collectives && mesh_.size() == 1 && options_.programs->collectives();
  create_within_ = welcome.create_within;
  RankReady ready;
  if (welcome.exchange) {
    TROUPE_TRY_VOID(open_exchange(welcome));
    ready.address = exchange_->address();
  }
  rank_ = make_ref<Rank>(options_.record.group, options_.record.rank, mesh_, nullptr,
                         exchange_ ? &exchange_->store() : nullptr);
  rank_made_.store(true);
  TROUPE_TRY(const auto empty, ask(kRankReady, ready));
  return {};
}

result<std::unique_ptr<Collective>> RankServer::State::make_world(Deadline deadline) {
  if (!options_.programs->collectives()) {
    return fail(ErrorCode::kUnsupported,
                "the rank's program has no collectives; see RankPrograms::set_collectives");
  }
  CollectiveSite site{.group = options_.record.group,
                      .rank = options_.record.rank.value,
                      .size = mesh_.size(),
                      .host = options_.host,
                      .store = std::make_shared<RemoteRendezvous>(channel_)};
  return options_.programs->collectives()(site, deadline);
}

result<OwnedWorker> RankServer::State::make_worker(WorkerContext& context) {
  if (collectives_) {
    const auto waiting = context.waiting_for("meeting of the ranks");
    TROUPE_TRY(rank_->cell().world, make_world(context.deadline()));
    {
      const std::lock_guard lock(world_mutex_);
      world_ = rank_->cell().world.get();
      if (world_abort_) world_->abort(*world_abort_);
    }
    TROUPE_TRY_VOID(rank_->split_axes(context.deadline()));
  } else if (alone_) {
    TROUPE_TRY(rank_->cell().world, make_world(context.deadline()));
  }
  return program_->make(context, spec_);
}

RankOutcome RankServer::State::serve(Ref<Channel> controller, Duration engine_within) {
  channel_ = std::move(controller);
  if (auto introduced = introduce(); !introduced) {
    Error cause = std::move(introduced).error();
    // The reason reaches the controller as that of the group's start.
    tell(kRankConstructed, RankConstructed{cause});
    end(channel_->failure() ? RankEnd::kControllerLost : RankEnd::kRefused, std::move(cause));
  }
  std::thread flusher;
  if (rank_) {
    flusher = std::thread([this] { flush_late_results(); });
    rank_->start(Ref<RankOwner>(this),
                 [this](WorkerContext& context) { return make_worker(context); });
  }
  RankOutcome outcome;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return outcome_.has_value(); });
    outcome = *outcome_;
  }
  if (rank_) {
    rank_->stop();
    GroupAbort leave;
    leave.cause = cancelled("the rank is closing");
    leave.leaving = true;
    abort(leave);
    outcome.engine_ended = rank_->join(Deadline::in(engine_within));
  }
  flush_results();
  const Deadline farewell = Deadline::in(kFarewellWithin);
  channel_->close(outcome.end == RankEnd::kClosed ? cancelled("the rank has ended")
                                                  : outcome.cause);
  while (channel_->bytes_queued() > 0 && !farewell.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (flusher.joinable()) {
    {
      const std::lock_guard lock(results_mutex_);
      flusher_stop_ = true;
    }
    results_changed_.notify_all();
    flusher.join();
  }
  return outcome;
}

void RankServer::State::end(RankEnd how, Error cause) {
  {
    const std::lock_guard lock(mutex_);
    if (outcome_) return;
    outcome_ = RankOutcome{how, std::move(cause), true};
  }
  changed_.notify_all();
}

RankStatus RankServer::State::status() const {
  if (rank_made_.load()) return rank_->status();
  RankStatus status;
  status.rank = options_.record.rank;
  return status;
}

// --- what the controller says

void RankServer::State::on_request(std::string_view method, Responder responder) {
  if (method != kGroupStatus)
    return responder.reply(fail(ErrorCode::kNotFound, "rank: no method '{}'", method));
  RankReport report = RankReport::of(status());
  if (rank_made_.load()) report.last_begun = rank_->last_begun();
  report.now_ns = steady_now().time_since_epoch().count();
  responder.reply(encode_value(report));
}

void RankServer::State::on_notify(Channel& channel, std::string_view method,
                                  std::span<const std::byte> payload) {
  auto taken = take(method, payload);
  if (taken) return;
  Error error = std::move(taken).error();
  error.message = fmt::format("{}: {}", method, error.message);
  // A controller that cannot be understood cannot be served.
  channel.close(error);
  end(RankEnd::kControllerLost, std::move(error));
}

result<void> RankServer::State::take(std::string_view method, std::span<const std::byte> payload) {
  if (method == kGroupClose) {
    end(RankEnd::kClosed, cancelled("the group is closed"));
    return {};
  }
  if (!rank_made_.load()) return {};  // it was refused, and is about to end
  if (method == kGroupCalls) return take_calls(payload);
  if (method == kGroupHold) {
    TROUPE_TRY(const GroupHold message, decode_value<GroupHold>(payload));
    hold(message.round);
  } else if (method == kGroupPlan) {
    TROUPE_TRY(const GroupAgreed message, decode_value<GroupAgreed>(payload));
    agree(message);
  } else if (method == kGroupAbort) {
    TROUPE_TRY(const GroupAbort message, decode_value<GroupAbort>(payload));
    abort(message);
  } else if (method == kGroupCancel) {
    TROUPE_TRY(const GroupCancel message, decode_value<GroupCancel>(payload));
    rank_->cancel(message.call);
  } else if (method == kExchangeLost) {
    TROUPE_TRY(const OwnerLost message, decode_value<OwnerLost>(payload));
    if (exchange_) exchange_->peer_lost({message.group, message.rank}, message.cause);
  } else if (method.starts_with(kColumnNotices)) {
    if (exchange_) return exchange_->on_lease_notice(holder_, method, payload);
  } else {
    return fail(ErrorCode::kNotFound, "no such notice");
  }
  return {};
}

result<void> RankServer::State::take_calls(std::span<const std::byte> payload) {
  FrameDecoder decoder;
  TROUPE_TRY(const std::vector<CallFrame> frames, decoder.calls(payload));
  for (const CallFrame& frame : frames) {
    if (frame.method >= methods_.size()) {
      return fail(ErrorCode::kCorrupt, "call {} of method {}, there are {}", frame.id.value,
                  frame.method, methods_.size());
    }
    rank_->push(make_ref<ServedCall>(frame, *methods_[frame.method], exchange_.get(),
                                     options_.device_lanes.get()));
  }
  rank_->wake();
  return {};
}

void RankServer::State::hold(std::uint64_t round) {
  CallId last;
  {
    const std::lock_guard lock(mutex_);
    hold_round_ = round;
    last = rank_->hold();
  }
  tell(kGroupHeld, GroupHeld{round, last});
}

void RankServer::State::agree(const GroupAgreed& agreed) {
  const std::lock_guard lock(mutex_);
  if (agreed.round == hold_round_) hold_round_ = 0;
  if (failed_ <= agreed.failed_seen) failed_ = CallId{0};
  const bool go_on = hold_round_ == 0 && failed_.value == 0;
  rank_->adjust(
      [&](Call& call) {
        if (std::find(agreed.skips.begin(), agreed.skips.end(), call.id) != agreed.skips.end())
          call.plan.store(Call::kSkip);
        if (agreed.rebuild_at.value != 0 && call.id == agreed.rebuild_at)
          call.plan.store(Call::kRebuildBase + agreed.rebuild_epoch);
      },
      go_on);
}

void RankServer::State::abort(const GroupAbort& message) {
  if (message.leaving) rank_->cell().leaving.store(true);
  if (message.broken_call.value != 0) {
    rank_->adjust(
        [&](Call& call) {
          if (call.id == message.broken_call) call.broken.store(true);
        },
        false);
  }
  const std::lock_guard lock(world_mutex_);
  if (world_ != nullptr) {
    world_->abort(message.cause);
  } else {
    world_abort_ = message.cause;
  }
}

// --- what the engine says

void RankServer::State::rank_constructed(RankId, std::optional<Error> error) {
  tell(kRankConstructed, RankConstructed{std::move(error)});
}

void RankServer::State::rank_done(Call& call, RankId, result<void> outcome) {
  auto& served = static_cast<ServedCall&>(call);
  ResultFrame frame;
  frame.id = call.id;
  frame.ran = ended_ != TimePoint();
  frame.begin = std::exchange(began_, TimePoint());
  frame.end = std::exchange(ended_, TimePoint());
  std::size_t bytes = 64;
  if (!outcome) {
    frame.error = std::move(outcome).error();
    if (collectives_) {
      frame.broken = rank_->cell().world->failure().has_value();
      const std::lock_guard lock(mutex_);
      failed_ = call.id;
      rank_->hold();
    }
    bytes += frame.error->message.size();
  } else if (served.value()) {
    frame.value = WirePartView{*served.value(), served.value_held()};
    bytes += frame.value->bytes.size();
  }
  bool send_now = !rank_->has_queued();
  bool first_waiting = false;
  {
    const std::lock_guard lock(results_mutex_);
    first_waiting = results_.empty();
    if (first_waiting) results_since_ = steady_now();
    results_.push_back({Ref<Call>(&call), std::move(frame)});
    results_bytes_ += bytes;
    send_now =
        send_now || results_.size() >= kResultsTogether || results_bytes_ >= kResultBytesTogether;
  }
  if (send_now) {
    flush_results();
  } else if (first_waiting) {
    results_changed_.notify_one();
  }
}

void RankServer::State::flush_results() {
  const std::lock_guard order(send_mutex_);
  for (;;) {
    std::vector<Ready> ready;
    {
      const std::lock_guard lock(results_mutex_);
      ready.swap(results_);
      results_bytes_ = 0;
    }
    if (ready.empty()) return;
    std::vector<ResultFrame> frames;
    std::size_t bytes = 0;
    const auto send = [&] {
      if (frames.empty()) return;
      auto sent = channel_->notify(kGroupResults, encode_results(frames));
      // A result that cannot leave would leave the controller waiting.
      if (!sent && !channel_->failure()) {
        channel_->close(sent.error());
        end(RankEnd::kControllerLost, std::move(sent).error());
      }
      frames.clear();
      bytes = 0;
    };
    for (Ready& one : ready) {
      const std::size_t own = one.frame.value ? one.frame.value->bytes.size() : 0;
      if (bytes + own > kResultBytesTogether || frames.size() >= kCallsPerFrameMax) send();
      bytes += own;
      frames.push_back(std::move(one.frame));
    }
    send();
  }
}

void RankServer::State::flush_late_results() {
  std::unique_lock lock(results_mutex_);
  for (;;) {
    results_changed_.wait(lock, [this] { return flusher_stop_ || !results_.empty(); });
    if (flusher_stop_) return;
    const TimePoint due = results_since_ + kResultsWait;
    results_changed_.wait_until(lock, due, [this] { return flusher_stop_; });
    if (results_.empty() || results_since_ + kResultsWait > steady_now()) continue;
    lock.unlock();
    flush_results();
    lock.lock();
  }
}

void RankServer::State::rank_died(RankId, Error cause, Call* during) {
  flush_results();
  RankDied died{.cause = cause, .during = {}};
  if (during != nullptr) {
    died.during = during->id;
    cause.message = fmt::format("{}: {}", during->method, cause.message);
  }
  tell(kRankDied, died);
  end(RankEnd::kDied, std::move(cause));
}

// --- the shell around it

RankServer::RankServer(RankServerOptions options)
    : state_(make_ref<State>(std::move(options))),
      service_(std::make_shared<RankServerService>(state_)) {}
RankServer::~RankServer() { service_->detach(); }

std::shared_ptr<ChannelService> RankServer::service() const { return service_; }
RankOutcome RankServer::serve(Ref<Channel> controller, Duration engine_within) {
  const RankOutcome outcome = state_->serve(std::move(controller), engine_within);
  service_->detach();
  return outcome;
}
void RankServer::close() { state_->end(RankEnd::kClosed, cancelled("closed by its process")); }
RankStatus RankServer::status() const { return state_->status(); }

}  // namespace troupe::runtime

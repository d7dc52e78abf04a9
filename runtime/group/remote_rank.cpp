#include "runtime/group/remote_rank.hpp"

#include "runtime/base/log.hpp"
#include "runtime/group/host_clock.hpp"
#include "runtime/task/when_done.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::runtime {
namespace {

/// With fewer calls on their way each is sent at once, and by whoever made it.
constexpr std::size_t kDirectCalls = 8;
/// More than these are sent without waiting for a result.
constexpr std::size_t kTogetherCalls = 64;
/// Most bytes of arguments that one frame takes, so that with its own words it stays under 1 MiB.
constexpr std::size_t kFrameArgumentBytes = std::size_t{900} << 10;
constexpr Duration kRetryWhenFull = std::chrono::milliseconds(20);

std::size_t argument_bytes(Call& call, RankId rank) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < call.travel->arguments.size(); ++i)
    bytes += call.travel->arguments[i][call.wire().part_of(i, rank)].bytes.size();
  return bytes;
}

CallFrame frame_of(Call& call, RankId rank, TimePoint at) {
  CallFrame frame;
  frame.id = call.id;
  frame.method = static_cast<std::uint16_t>(call.wire().method_place());
  frame.wanted = call.wire().wanted_from(rank);
  const std::int64_t plan = call.plan.load();
  if (plan >= Call::kRebuildBase) frame.rebuild_epoch = plan - Call::kRebuildBase;
  frame.remaining = call.deadline.at - at;
  const auto own = static_cast<std::size_t>(rank.value);
  if (own < call.turns.size() && call.turns[own]) {
    if (auto ticket = call.turns[own]->ticket()) frame.ticket = std::move(*ticket);
  }
  for (std::size_t i = 0; i < call.travel->arguments.size(); ++i) {
    const CallTravel::Part& part = call.travel->arguments[i][call.wire().part_of(i, rank)];
    frame.arguments.push_back({part.bytes, part.held});
  }
  return frame;
}

}  // namespace

/// Keeps the rank alive for as long as its channel.
class RemoteRankService final : public ChannelService {
 public:
  explicit RemoteRankService(Ref<RemoteRank> rank) : rank_(std::move(rank)) {}
  void on_request(Channel&, std::string_view method, std::span<const std::byte> payload,
                  Deadline deadline, Responder responder) override {
    rank_->on_request(method, payload, deadline, std::move(responder));
  }
  void on_notify(Channel&, std::string_view method, std::span<const std::byte> payload) override {
    rank_->on_notify(method, payload);
  }
  void on_down(Channel&, const Error& cause) override { rank_->on_down(cause); }

 private:
  const Ref<RemoteRank> rank_;
};

RemoteRank::RemoteRank(ClusterJob& job, Ref<RemoteRankOwner> owner, std::string group, RankId rank)
    : job_(job),
      system_(job.system()),
      launcher_(job.launcher()),
      report_within_(job.options().exit_report_within),
      job_name_(job.options().job),
      group_(std::move(group)),
      rank_(rank),
      owner_(std::move(owner)) {}

std::string RemoteRank::peer_name() const {
  return fmt::format("{}/{}/{}", job_name_, group_, rank_.value);
}

pending<void> RemoteRank::launch(const RankLaunch& launch) {
  {
    const std::lock_guard lock(mutex_);
    launched_ = true;
  }
  return launcher_.launch(
      launch, [self = Ref<RemoteRank>(this)](Error cause) { self->on_exit(std::move(cause)); });
}

void RemoteRank::not_launched() {
  const std::lock_guard lock(mutex_);
  launched_ = false;
}

result<std::shared_ptr<ChannelService>> RemoteRank::attach(Ref<Channel> channel) {
  const std::lock_guard lock(mutex_);
  if (attached_) return fail(ErrorCode::kAlreadyExists, "{} has dialled in before", peer_name());
  if (closing_ || death_)
    return fail(ErrorCode::kNotFound, "{} is not expected any more", peer_name());
  attached_ = true;
  channel_ = std::move(channel);
  return std::make_shared<RemoteRankService>(Ref<RemoteRank>(this));
}

// --- what goes out

void RemoteRank::push(Ref<Call> call) {
  const std::lock_guard lock(mutex_);
  if (death_ || closing_) return;
  if (in_flight_.empty()) first_since_ = steady_now();
  in_flight_.push_back(call);
  outbox_.push_back(std::move(call));
}

void RemoteRank::wake() {
  {
    const std::lock_guard lock(mutex_);
    const std::size_t sent = in_flight_.size() - outbox_.size();
    if (outbox_.empty() || (sent >= kDirectCalls && outbox_.size() < kTogetherCalls)) return;
  }
  const std::lock_guard order(send_mutex_);
  flush_locked();
}

std::vector<Ref<Call>> RemoteRank::take_outbox() {
  std::vector<Ref<Call>> calls;
  std::size_t bytes = 0;
  const std::lock_guard lock(mutex_);
  while (!outbox_.empty() && calls.size() < kCallsPerFrameMax) {
    bytes += argument_bytes(*outbox_.front(), rank_);
    if (!calls.empty() && bytes > kFrameArgumentBytes) break;
    calls.push_back(std::move(outbox_.front()));
    outbox_.pop_front();
  }
  return calls;
}

void RemoteRank::put_back(const std::vector<Ref<Call>>& calls) {
  const std::lock_guard lock(mutex_);
  if (death_ || closing_) return;
  outbox_.insert(outbox_.begin(), calls.begin(), calls.end());
}

result<void> RemoteRank::send_calls(const std::vector<Ref<Call>>& calls) {
  Ref<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (!channel) return {};
  const TimePoint at = steady_now();
  std::vector<CallFrame> frames;
  frames.reserve(calls.size());
  for (const auto& call : calls) frames.push_back(frame_of(*call, rank_, at));
  return channel->notify(kGroupCalls, encode_calls(frames));
}

void RemoteRank::flush_locked() {
  for (;;) {
    const auto calls = take_outbox();
    if (calls.empty()) return;
    const auto sent = send_calls(calls);
    if (sent) continue;
    if (sent.error().code != ErrorCode::kResourceExhausted) return;  // it is going down
    put_back(calls);
    system_.timer().add(steady_now() + kRetryWhenFull, [self = Ref<RemoteRank>(this)] {
      const std::lock_guard order(self->send_mutex_);
      self->flush_locked();
    });
    return;
  }
}

void RemoteRank::send_bytes(std::string_view method, result<std::vector<std::byte>> payload) {
  const std::lock_guard order(send_mutex_);
  flush_locked();
  Ref<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (!channel) return;
  result<void> sent = payload ? channel->notify(method, std::move(*payload))
                              : result<void>(fail(std::move(payload).error()));
  // What cannot be told to the rank would leave it waiting: it goes.
  if (!sent && !channel->failure()) channel->close(std::move(sent).error());
}

pending<RankReport> RemoteRank::report(Deadline deadline) {
  Ref<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (!channel) {
    return pending<RankReport>::of(fail(ErrorCode::kRankDead, "{} is not connected", peer_name()));
  }
  auto ends = make_pending<RankReport>();
  const TimePoint sent = steady_now();
  when_done<std::vector<std::byte>>(
      channel->request(kGroupStatus, {}, deadline),
      [self = Ref<RemoteRank>(this), out = ends.second,
       sent](result<std::vector<std::byte>> answer) {
        if (!answer) {
          out.fail(std::move(answer).error());
          return;
        }
        auto report = decode_value<RankReport>(*answer);
        if (report) {
          const Duration round_trip = steady_now() - sent;
          const std::lock_guard lock(self->mutex_);
          self->report_ = *report;
          if (!self->same_clock_ &&
              (!self->best_round_trip_ || round_trip < *self->best_round_trip_)) {
            self->best_round_trip_ = round_trip;
            self->clock_offset_ =
                Duration(report->now_ns) - (sent + round_trip / 2).time_since_epoch();
          }
        }
        out.complete(std::move(report));
      });
  return std::move(ends.first);
}

// --- what comes in

void RemoteRank::on_request(std::string_view method, std::span<const std::byte> payload,
                            Deadline deadline, Responder responder) {
  const std::lock_guard callback(callback_mutex_);
  if (!open_) return responder.reply(fail(ErrorCode::kCancelled, "the group is closed"));
  if (method == kRankHello) return responder.reply(hello(payload));
  if (method == kRankReady) return responder.reply(ready(payload));
  job_.serve(group_, method, payload, deadline, std::move(responder));
}

result<std::vector<std::byte>> RemoteRank::hello(std::span<const std::byte> payload) {
  TROUPE_TRY(const RankHello hello, decode_value<RankHello>(payload));
  if (hello.protocol != kRankProtocol) {
    return fail(ErrorCode::kConflict, "{} speaks protocol {}, its controller {}", peer_name(),
                hello.protocol, kRankProtocol);
  }
  Ref<RemoteRankOwner> owner;
  {
    const std::lock_guard lock(mutex_);
    same_clock_ = !hello.boot.empty() && hello.boot == host_boot_id();
    owner = owner_;
  }
  if (!owner) return fail(ErrorCode::kCancelled, "the group is closed");
  return encode_value(owner->welcome(rank_));
}

result<std::vector<std::byte>> RemoteRank::ready(std::span<const std::byte> payload) {
  TROUPE_TRY(RankReady ready, decode_value<RankReady>(payload));
  Ref<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (!ready.address.empty())
    job_.set_address({group_, rank_}, std::move(ready.address), std::move(channel));
  return std::vector<std::byte>();
}

void RemoteRank::on_notify(std::string_view method, std::span<const std::byte> payload) {
  const std::lock_guard callback(callback_mutex_);
  if (!open_) return;
  const auto taken = take_notice(method, payload);
  if (taken) return;
  Ref<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  // A rank that says what cannot be understood cannot be relied on.
  if (channel) {
    Error error = taken.error();
    channel->close(
        std::move(error).wrap(ErrorCode::kCorrupt, fmt::format("{}: {}", peer_name(), method)));
  }
}

result<void> RemoteRank::take_notice(std::string_view method, std::span<const std::byte> payload) {
  if (method == kGroupResults) return take_results(payload);
  Ref<RemoteRankOwner> owner;
  {
    const std::lock_guard lock(mutex_);
    owner = owner_;
  }
  if (!owner) return {};
  if (method == kGroupHeld) {
    TROUPE_TRY(const GroupHeld held, decode_value<GroupHeld>(payload));
    owner->on_held(rank_, held);
  } else if (method == kRankConstructed) {
    TROUPE_TRY(RankConstructed made, decode_value<RankConstructed>(payload));
    owner->on_constructed(rank_, std::move(made.error));
  } else if (method == kRankDied) {
    TROUPE_TRY(RankDied died, decode_value<RankDied>(payload));
    die(std::move(died.cause), died.during);
  } else {
    return fail(ErrorCode::kNotFound, "no such notice");
  }
  return {};
}

Ref<Call> RemoteRank::take_answered(CallId id) {
  const std::lock_guard lock(mutex_);
  if (in_flight_.size() == outbox_.size() || in_flight_.front()->id != id) return {};
  Ref<Call> call = std::move(in_flight_.front());
  in_flight_.pop_front();
  first_since_ = steady_now();
  ++answered_;
  return call;
}

result<void> RemoteRank::take_results(std::span<const std::byte> payload) {
  FrameDecoder decoder;
  TROUPE_TRY(const std::vector<ResultFrame> frames, decoder.results(payload));
  Ref<RemoteRankOwner> owner;
  {
    const std::lock_guard lock(mutex_);
    owner = owner_;
    if (death_ || closing_) return {};
  }
  for (const ResultFrame& frame : frames) {
    const Ref<Call> call = take_answered(frame.id);
    if (!call) {
      const std::lock_guard lock(mutex_);
      if (death_ || closing_) return {};
      return fail(ErrorCode::kCorrupt, "a result for call {} out of turn", frame.id.value);
    }
    owner->on_result(rank_, call, frame);
  }
  wake();  // what waited for results
  return {};
}

// --- how it ends

void RemoteRank::on_down(const Error& cause) {
  bool silent = false;
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    down_ = cause;
    channel_ = nullptr;
    if (death_ || closing_) return;
    silent = peer_was_silent(cause);
    known = exit_.has_value();
  }
  if (silent || known) return end_when_reported();
  system_.timer().add(steady_now() + report_within_,
                      [self = Ref<RemoteRank>(this)] { self->end_when_reported(); });
}

void RemoteRank::on_exit(Error cause) {
  bool known = false;
  {
    const std::lock_guard lock(mutex_);
    exit_ = std::move(cause);
    known = down_ || !attached_;
    changed_.notify_all();
    if (death_ || closing_) return;
  }
  // What the rank said last may still be on its way.
  if (known) return end_when_reported();
  system_.timer().add(steady_now() + report_within_,
                      [self = Ref<RemoteRank>(this)] { self->end_when_reported(); });
}

void RemoteRank::end_when_reported() {
  Error cause;
  {
    const std::lock_guard lock(mutex_);
    if (death_ || closing_) return;
    cause = exit_ ? *exit_ : *down_;
    if (!attached_) cause.message = "its process ended before it had connected: " + cause.message;
    if (!exit_) {
      cause.code = ErrorCode::kRankDead;
      cause.message = "connection: " + cause.message;
    }
  }
  die(std::move(cause), std::nullopt);
}

void RemoteRank::die(Error cause, std::optional<CallId> during) {
  const std::lock_guard callback(callback_mutex_);
  if (!open_) return;
  Ref<RemoteRankOwner> owner;
  Ref<Call> call;
  std::deque<Ref<Call>> dropped;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    if (death_ || closing_) return;
    death_ = cause;
    owner = owner_;
    ended = exit_.has_value();
    if (!in_flight_.empty()) call = in_flight_.front();
    if (during && call && call->id != *during) call = nullptr;
    dropped.swap(in_flight_);
    outbox_.clear();
  }
  job_.owner_lost({group_, rank_}, cause);
  if (!ended) launcher_.stop(group_, rank_);
  if (owner) owner->on_death(rank_, std::move(cause), std::move(call));
}

void RemoteRank::kill(Error cause) {
  Ref<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  die(cause, CallId{0});
  if (channel) channel->close(std::move(cause));
}

void RemoteRank::bury(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (!death_) death_ = cause;
}

void RemoteRank::begin_close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    in_flight_.clear();
    outbox_.clear();
    if (!attached_) return;
  }
  send(kGroupClose, std::monostate());
}

bool RemoteRank::wait_ended(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!launched_) return true;
  return changed_.wait_until(lock, deadline.at, [this] { return exit_.has_value(); });
}

void RemoteRank::force_end() { launcher_.stop(group_, rank_); }

void RemoteRank::finish_close() {
  Ref<RemoteRankOwner> owner;  // dropped after the lock
  Ref<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    std::swap(owner, owner_);
    channel = channel_;
  }
  if (channel) channel->close(cancelled(fmt::format("{}: the group is closed", group_)));
  const std::lock_guard callback(callback_mutex_);
  if (std::exchange(open_, false))
    job_.owner_lost({group_, rank_}, cancelled(fmt::format("{}: the group was destroyed", group_)));
}

// --- what is known

bool RemoteRank::dead() const {
  const std::lock_guard lock(mutex_);
  return death_.has_value();
}

bool RemoteRank::connected() const {
  const std::lock_guard lock(mutex_);
  return static_cast<bool>(channel_);
}

bool RemoteRank::runs(const Call& call) const {
  const std::lock_guard lock(mutex_);
  return !in_flight_.empty() && in_flight_.front().get() == &call;
}

RankStatus RemoteRank::status() const {
  const std::lock_guard lock(mutex_);
  RankStatus status = report_.status(rank_);
  status.dead = death_.has_value();
  if (death_) status.cause = death_->to_string();
  status.calls_done = std::max(status.calls_done, answered_);
  const bool fresh = !in_flight_.empty() && report_.last_begun == in_flight_.front()->id;
  status.busy = !in_flight_.empty() && !status.dead;
  if (!status.busy || !fresh) status.waits_for.clear();
  if (!status.busy) {
    status.method.clear();
    return status;
  }
  status.method = std::string(in_flight_.front()->method);
  status.busy_seconds = seconds(steady_now() - first_since_);
  return status;
}

Duration RemoteRank::clock_offset() const {
  const std::lock_guard lock(mutex_);
  return same_clock_ ? Duration::zero() : clock_offset_;
}

}  // namespace troupe::runtime

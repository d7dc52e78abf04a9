#include "runtime/group/remote_ranks.hpp"

#include "runtime/base/log.hpp"
#include "runtime/exchange/column_exchange.hpp"
#include "runtime/group/call_trace.hpp"
#include "runtime/group/exchange_context.hpp"
#include "runtime/group/group_core.hpp"
#include "runtime/task/failure.hpp"
#include "runtime/task/when_done.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace troupe::runtime {
namespace {

/// An encoded argument above this is held and pulled instead of travelling in the frame.
constexpr std::size_t kPartBytesMax = std::size_t{256} << 10;
/// All arguments of one call to one rank, in the frame.
constexpr std::size_t kCallBytesMax = std::size_t{900} << 10;
/// It travels in the answer to `rank.hello`.
constexpr std::size_t kSpecBytesMax = std::size_t{512} << 10;
/// How long ranks that were told to end for good may take to be reported.
constexpr Duration kForcedEndWithin = std::chrono::seconds(1);

result<CallTravel::Part> part_of(std::vector<std::byte> bytes, ExchangeContext& context) {
  const bool large = bytes.size() > kPartBytesMax;
  if (!large) return CallTravel::Part{std::move(bytes), false};
  TROUPE_TRY(auto held, context.hold(std::move(bytes)));
  return CallTravel::Part{std::move(held), true};
}

}  // namespace

/// What ranks, timers and the core's side share.
class RemoteRanks::Shared final : public RemoteRankOwner {
 public:
  Shared(ClusterJob& job, RemoteProgram program, std::vector<MethodName> methods)
      : job_(job),
        system_(job.system()),
        program_(std::move(program)),
        methods_(std::move(methods)),
        round_(0) {}

  result<void> start(const Ref<GroupCore>& core, Deadline deadline);
  result<void> prepare(Call& call);
  void want(Ref<Call> skipped, std::optional<Error> error, bool rebuild);
  void break_call(Call& call, RankId culprit, const Error& cause, bool others_wait);
  void abort(const Error& cause, CallId broken);
  void bury(RankId rank, const Error& cause);
  void set_leaving() {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  void close(Deadline deadline);
  result<std::vector<RankStatus>> status(Deadline deadline);
  const std::vector<Ref<RemoteRank>>& ranks() const { return ranks_; }
  RemoteRank& at(RankId rank) const { return *ranks_[static_cast<std::size_t>(rank.value)]; }
  bool have_collectives() const { return collectives_; }
  Ref<GroupCore> core() const {
    const std::lock_guard lock(mutex_);
    return core_;
  }

  RankWelcome welcome(RankId rank) override;
  void on_constructed(RankId rank, std::optional<Error> error) override;
  void on_result(RankId rank, const Ref<Call>& call, const ResultFrame& frame) override;
  void on_held(RankId rank, const GroupHeld& held) override;
  void on_death(RankId rank, Error cause, Ref<Call> during) override;

 private:
  struct Want {
    Ref<Call> call;
    std::optional<Error> error;  // breaks the call if it has begun
  };
  struct Watched {
    std::int64_t heartbeat = -1;
    bool asked = false;
    bool said_stuck = false;
  };

  void announce(std::uint64_t round);
  void finish_round();
  /// Decides each wanted skip; returns the calls that run nowhere.
  std::vector<CallId> decide_skips(const std::vector<Want>& wants, CallId last_begun);
  result<void> launch_all(Deadline deadline);
  result<void> check_lanes() const;
  void trace(RankId rank, const Call& call, const ResultFrame& frame) const;
  result<void> take_value(RankId rank, Call& call, std::vector<std::byte> bytes, bool held);
  void watch_again();
  void watch();
  void note_heartbeat(std::size_t rank, const RankReport& report);

  ClusterJob& job_;  // may be gone once the group is closed; see RemoteRank
  ActorSystem& system_;
  const RemoteProgram program_;
  const std::vector<MethodName> methods_;
  std::string name_;
  bool collectives_ = false;
  std::vector<Ref<RemoteRank>> ranks_;  // fixed by start

  mutable std::mutex mutex_;  // guards what follows; taken before the core's and the ranks'
  Ref<GroupCore> core_;
  Deadline create_until_{};
  PlanRound round_;
  std::vector<Want> wants_;
  bool want_rebuild_ = false;
  std::vector<CallId> failed_seen_;
  std::vector<char> broken_;
  std::vector<Watched> watched_;
  std::optional<CallTimer::Id> timer_;
  bool leaving_ = false;
};

// --- starting

result<void> RemoteRanks::Shared::check_lanes() const {
  const GroupOptions& options = core_->options();
  for (std::size_t i = 0; i < options.lanes.size(); ++i) {
    TROUPE_TRY(const auto turn, options.lanes[i]->reserve(LaneRequest{"", "group start"}));
    if (turn->ticket()) continue;
    return fail(ErrorCode::kUnsupported,
                "{}: the lane of rank {} is in this process; a rank process needs its agent's",
                options.name, i);
  }
  return {};
}

result<void> RemoteRanks::Shared::start(const Ref<GroupCore>& core, Deadline deadline) {
  const GroupOptions& options = core->options();
  const auto size = static_cast<std::size_t>(options.mesh.size());
  name_ = options.name;
  collectives_ = options.collectives && size > 1;
  {
    const std::lock_guard lock(mutex_);
    core_ = core;
    create_until_ = deadline;
    round_ = PlanRound(size);
    failed_seen_.resize(size, CallId{0});
    broken_.resize(size, 0);
    watched_.resize(size);
  }
  TROUPE_TRY_VOID(check_job_name("group", name_));
  TROUPE_TRY_VOID(check_lanes());
  if (program_.spec.size() > kSpecBytesMax) {
    return fail(ErrorCode::kInvalidArgument, "{}: a spec of {} bytes, wanted at most {}", name_,
                program_.spec.size(), kSpecBytesMax);
  }
  if (!program_.bundles.empty() && program_.bundles.size() != size) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} bundles for {} ranks", name_,
                program_.bundles.size(), size);
  }
  TROUPE_TRY_VOID(job_.add_group(name_));
  for (std::size_t i = 0; i < size; ++i) {
    ranks_.push_back(make_ref<RemoteRank>(job_, Ref<RemoteRankOwner>(this), name_,
                                          RankId{static_cast<std::int32_t>(i)}));
    job_.expect(ranks_.back());
  }
  return launch_all(deadline);
}

result<void> RemoteRanks::Shared::launch_all(Deadline deadline) {
  std::vector<pending<void>> started;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    RankLaunch launch{.job = job_.options().job,
                      .group = name_,
                      .rank = ranks_[i]->rank(),
                      .reservation = program_.reservation,
                      .bundle = static_cast<int>(i),
                      .controller = job_.address(),
                      .command = program_.command,
                      .environment = job_.options().environment};
    if (!program_.bundles.empty()) launch.bundle = program_.bundles[i];
    if (launch.command.empty()) launch.command = job_.options().command;
    for (const auto& [key, value] : program_.environment) launch.environment[key] = value;
    started.push_back(ranks_[i]->launch(launch));
  }
  for (std::size_t i = 0; i < started.size(); ++i) {
    auto done = started[i].wait(deadline);
    if (done) continue;
    ranks_[i]->not_launched();
    Error error = std::move(done).error();
    error.message = "launch: " + error.message;
    return fail(std::move(error).at({.group = name_, .rank = ranks_[i]->rank(), .node = {}}));
  }
  watch_again();
  return {};
}

RankWelcome RemoteRanks::Shared::welcome(RankId) {
  const std::lock_guard lock(mutex_);
  RankWelcome welcome;
  welcome.program = program_.name;
  welcome.spec = program_.spec;
  welcome.methods = methods_;
  welcome.exchange = job_.exchange() != nullptr;
  const auto key = std::as_bytes(std::span(job_.key()));
  welcome.key.assign(key.begin(), key.end());
  welcome.holder = job_.holder();
  welcome.create_within = create_until_.at - SteadyClock().now();
  if (core_) {
    for (const Axis& axis : core_->options().mesh.axes())
      welcome.mesh.push_back({axis.name, axis.size});
    welcome.collectives = core_->options().collectives;
  }
  return welcome;
}

void RemoteRanks::Shared::on_constructed(RankId rank, std::optional<Error> error) {
  if (const auto own = core()) own->rank_constructed(rank, std::move(error));
}

// --- calls

result<void> RemoteRanks::Shared::prepare(Call& call) {
  call.travel = std::make_unique<CallTravel>();
  ExchangeContext context({.exchange = job_.exchange(), .give = ExchangeContext::Give::kLend});
  const std::size_t count = call.wire().argument_count();
  for (std::size_t i = 0; i < count; ++i) {
    auto encoded = call.wire().encode_argument(i, &context);
    if (!encoded) {
      Error error = std::move(encoded).error();
      error.message = fmt::format("argument {}: {}", i, error.message);
      return fail(std::move(error));
    }
    auto& parts = call.travel->arguments.emplace_back();
    for (auto& bytes : *encoded) {
      auto part = part_of(std::move(bytes), context);
      if (!part) {
        Error error = std::move(part).error();
        error.message = fmt::format("argument {}: {}", i, error.message);
        return fail(std::move(error));
      }
      parts.push_back(std::move(*part));
    }
  }
  call.travel->keep = context.take_keeps();
  for (const auto& rank : ranks_) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i)
      bytes += call.travel->arguments[i][call.wire().part_of(i, rank->rank())].bytes.size();
    if (bytes > kCallBytesMax) {
      return fail(ErrorCode::kResourceExhausted,
                  "{} bytes of arguments for rank {}, a frame takes {}", bytes, rank->rank().value,
                  kCallBytesMax);
    }
  }
  return {};
}

void RemoteRanks::Shared::trace(RankId rank, const Call& call, const ResultFrame& frame) const {
  const auto own = core();
  if (!own || own->options().trace == nullptr || !frame.ran) return;
  const Duration offset = at(rank).clock_offset();
  own->options().trace->on_call(CallSpan{.group = name_,
                                         .rank = rank,
                                         .method = call.method,
                                         .phase = call.phase,
                                         .call = call.id,
                                         .submitted = call.submitted,
                                         .begin = frame.begin - offset,
                                         .end = frame.end - offset,
                                         .ok = !frame.error});
}

result<void> RemoteRanks::Shared::take_value(RankId rank, Call& call, std::vector<std::byte> bytes,
                                             bool held) {
  ExchangeContext context({.exchange = job_.exchange(), .resolve = !call.wire().keeps_columns()});
  try {
    if (held) {
      TROUPE_TRY(bytes, context.fetch(bytes));
    }
    return call.wire().put_value(rank, bytes, &context);
  } catch (...) {
    return fail(error_of_current_exception());
  }
}

void RemoteRanks::Shared::on_result(RankId rank, const Ref<Call>& call, const ResultFrame& frame) {
  const auto own = core();
  if (!own) return;
  call->take_turn(rank).reset();  // the rank has released it, or will never take it
  trace(rank, *call, frame);
  if (frame.error) {
    {
      const std::lock_guard lock(mutex_);
      failed_seen_[static_cast<std::size_t>(rank.value)] = call->id;
      broken_[static_cast<std::size_t>(rank.value)] = frame.broken ? 1 : 0;
    }
    own->rank_done(*call, rank, fail(*frame.error));
    if (collectives_) want({}, {}, false);  // the rank holds until it is told to go on
    return;
  }
  if (!frame.value) {
    // A call is skipped only after it has ended.
    const bool missing = call->wire().wanted_from(rank) && (frame.ran || !call->settled.load());
    own->rank_done(*call, rank,
                   missing ? result<void>(fail(ErrorCode::kCorrupt, "its value did not come"))
                           : result<void>());
    return;
  }
  if (!frame.value->held && !call->wire().value_has_columns()) {
    result<void> put;
    try {
      put = call->wire().put_value(rank, frame.value->bytes, nullptr);
    } catch (...) {
      put = fail(error_of_current_exception());
    }
    own->rank_done(*call, rank, std::move(put));
    return;
  }
  // Payload may have to be pulled, which must not hold up the link.
  std::vector<std::byte> bytes(frame.value->bytes.begin(), frame.value->bytes.end());
  job_.post([self = Ref<Shared>(this), own, rank, call, bytes = std::move(bytes),
             held = frame.value->held]() mutable {
    own->rank_done(*call, rank, self->take_value(rank, *call, std::move(bytes), held));
  });
}

void RemoteRanks::Shared::on_death(RankId rank, Error cause, Ref<Call> during) {
  if (const auto own = core()) own->rank_died(rank, std::move(cause), during.get());
}

// --- agreement

void RemoteRanks::Shared::want(Ref<Call> skipped, std::optional<Error> error, bool rebuild) {
  std::optional<std::uint64_t> round;
  {
    const std::lock_guard lock(mutex_);
    if (!core_ || leaving_) return;
    if (skipped) wants_.push_back({std::move(skipped), std::move(error)});
    want_rebuild_ = want_rebuild_ || rebuild;
    round = round_.want();
  }
  if (round) announce(*round);
}

void RemoteRanks::Shared::announce(std::uint64_t round) {
  for (const auto& rank : ranks_) rank->send(kGroupHold, GroupHold{round});
}

void RemoteRanks::Shared::on_held(RankId rank, const GroupHeld& held) {
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    complete = round_.held(rank, held.round, held.last_begun);
  }
  if (complete) finish_round();
}

std::vector<CallId> RemoteRanks::Shared::decide_skips(const std::vector<Want>& wants,
                                                      CallId last_begun) {
  std::vector<CallId> skips;
  for (const Want& one : wants) {
    if (one.call->id > last_begun) {
      if (one.call->decide(Call::kSkip) == Call::kSkip) skips.push_back(one.call->id);
      continue;
    }
    if (one.call->decide(Call::kRun) == Call::kSkip || !one.error) continue;
    if (!one.call->failed.exchange(true))
      break_call(*one.call, one.error->origin.rank.value_or(RankId{0}), *one.error, true);
  }
  return skips;
}

void RemoteRanks::Shared::finish_round() {
  std::vector<Want> wants;
  Ref<GroupCore> own;
  CallId last_begun;
  GroupAgreed agreed;
  std::vector<CallId> failed;
  {
    const std::lock_guard lock(mutex_);
    own = core_;
    wants.swap(wants_);
    last_begun = round_.last_begun();
    agreed.round = round_.round();
  }
  if (!own) return;
  own->decide_begun(last_begun);
  agreed.skips = decide_skips(wants, last_begun);
  bool rebuild = false;
  {
    const std::lock_guard lock(mutex_);
    // What comes from now on is for the next round; breaking a call above came before.
    round_.decided();
    rebuild = std::exchange(want_rebuild_, false);
    failed = failed_seen_;
    if (!wants_.empty()) (void)round_.want();
  }
  if (rebuild) {
    if (const Ref<Call> first_call = own->plan_rebuild()) {
      agreed.rebuild_at = first_call->id;
      agreed.rebuild_epoch = first_call->plan.load() - Call::kRebuildBase;
    }
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    agreed.failed_seen = failed[i];
    ranks_[i]->send(kGroupPlan, agreed);
  }
  std::optional<std::uint64_t> next;
  {
    const std::lock_guard lock(mutex_);
    next = round_.told();
  }
  if (next) announce(*next);
}

void RemoteRanks::Shared::break_call(Call& call, RankId culprit, const Error& cause,
                                     bool others_wait) {
  if (!collectives_) return;
  bool broken = false;
  {
    const std::lock_guard lock(mutex_);
    broken = broken_[static_cast<std::size_t>(culprit.value)] != 0;
  }
  if (others_wait) {
    call.broken.store(true);
    abort(cause, call.id);
  }
  if (others_wait || broken) want({}, {}, true);
}

void RemoteRanks::Shared::abort(const Error& cause, CallId broken) {
  GroupAbort message{.cause = cause, .broken_call = broken};
  {
    const std::lock_guard lock(mutex_);
    message.leaving = leaving_;
  }
  for (const auto& rank : ranks_) rank->send(kGroupAbort, message);
}

void RemoteRanks::Shared::bury(RankId rank, const Error& cause) {
  at(rank).bury(cause);
  bool complete = false;
  {
    const std::lock_guard lock(mutex_);
    complete = round_.gone(rank);
  }
  if (complete) finish_round();
}

// --- watching and ending

void RemoteRanks::Shared::watch_again() {
  const std::lock_guard lock(mutex_);
  if (!core_) return;
  timer_ = system_.timer().add(SteadyClock().now() + core_->options().heartbeat,
                               [self = Ref<Shared>(this)] { self->watch(); });
}

void RemoteRanks::Shared::watch() {
  const auto own = core();
  if (!own) return;
  const Duration limit = own->options().heartbeat_deadline;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i]->dead() || !ranks_[i]->connected()) continue;
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(watched_[i].asked, true)) continue;
    }
    when_done<RankReport>(
        ranks_[i]->report(Deadline::in(limit)),
        [self = Ref<Shared>(this), i, limit](result<RankReport> report) {
          if (report) return self->note_heartbeat(i, *report);
          // A connection that is down has a cause of its own.
          if (report.error().code != ErrorCode::kDeadline) return;
          self->ranks_[i]->kill(
              Error{.code = ErrorCode::kRankDead,
                    .message = fmt::format("its shell did not answer in {:.1f} s", seconds(limit)),
                    .origin = {},
                    .causes = {}});
        });
  }
  watch_again();
}

void RemoteRanks::Shared::note_heartbeat(std::size_t rank, const RankReport& report) {
  const std::int64_t heartbeat = report.progress + report.calls_done;
  std::string stuck;
  {
    const std::lock_guard lock(mutex_);
    Watched& watched = watched_[rank];
    watched.asked = false;
    if (!core_) return;
    if (heartbeat != watched.heartbeat) {
      watched.heartbeat = heartbeat;
      watched.said_stuck = false;
      return;
    }
    if (watched.said_stuck || !report.busy ||
        report.busy_seconds < seconds(core_->options().stuck_after)) {
      return;
    }
    watched.said_stuck = true;
    stuck = report.status(ranks_[rank]->rank()).to_string();
  }
  log::warn("{}: no progress: {}", name_, stuck);
}

result<std::vector<RankStatus>> RemoteRanks::Shared::status(Deadline deadline) {
  std::vector<pending<RankReport>> asked;
  for (const auto& rank : ranks_) asked.push_back(rank->report(deadline));
  std::vector<RankStatus> statuses;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto report = asked[i].wait(deadline);
    if (ranks_[i]->dead()) {
      statuses.push_back(ranks_[i]->status());
      continue;
    }
    if (!report) {
      return fail(ErrorCode::kDeadline, "status: rank {} did not answer: {}", i,
                  report.error().to_string());
    }
    statuses.push_back(report->status(ranks_[i]->rank()));
  }
  return statuses;
}

void RemoteRanks::Shared::close(Deadline deadline) {
  Ref<GroupCore> own;
  std::optional<CallTimer::Id> timer;
  {
    const std::lock_guard lock(mutex_);
    std::swap(own, core_);
    timer = std::exchange(timer_, std::nullopt);
    wants_.clear();
  }
  if (timer) system_.timer().remove(*timer);
  if (!own) return;
  std::vector<RankStatus> last;
  for (const auto& rank : ranks_) last.push_back(rank->status());
  for (const auto& rank : ranks_) rank->begin_close();
  std::vector<Ref<RemoteRank>> late;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i]->wait_ended(deadline)) continue;
    log::warn("{}: {}: its process did not end in {:.1f} s and is killed", name_,
              last[i].to_string(), seconds(own->options().shutdown_wait));
    ranks_[i]->force_end();
    late.push_back(ranks_[i]);
  }
  const Deadline forced = Deadline::in(kForcedEndWithin);
  for (const auto& rank : late) (void)rank->wait_ended(forced);
  for (const auto& rank : ranks_) rank->finish_close();
  if (!ranks_.empty()) job_.remove_group(name_);
}

std::unique_ptr<GroupRanks> make_remote_ranks(
    ClusterJob& job, RemoteProgram program,
    std::vector<std::pair<std::string, std::uint64_t>> methods) {
  std::vector<MethodName> names;
  for (auto& [name, signature] : methods) names.push_back({std::move(name), signature});
  return std::make_unique<RemoteRanks>(job, std::move(program), std::move(names));
}

ActorSystem& actor_system_of(ClusterJob& job) { return job.system(); }

// --- the core's side

RemoteRanks::RemoteRanks(ClusterJob& job, RemoteProgram program, std::vector<MethodName> methods)
    : shared_(make_ref<Shared>(job, std::move(program), std::move(methods))) {}
RemoteRanks::~RemoteRanks() = default;

result<void> RemoteRanks::start(const Ref<GroupCore>& core, Deadline deadline) {
  return shared_->start(core, deadline);
}
result<void> RemoteRanks::prepare(Call& call) { return shared_->prepare(call); }
void RemoteRanks::push(const Ref<Call>& call) {
  for (const auto& rank : shared_->ranks()) rank->push(call);
}
void RemoteRanks::wake() {
  for (const auto& rank : shared_->ranks()) rank->wake();
}
void RemoteRanks::skip(const Ref<Call>& call) {
  // Nothing is left to agree upon when all ranks are through with it.
  if (call->ranks_left.load() > 0) shared_->want(call, {}, false);
}
void RemoteRanks::cancel(const Call& call) {
  for (const auto& rank : shared_->ranks()) rank->send(kGroupCancel, GroupCancel{call.id});
}
void RemoteRanks::expire(const Ref<Call>& call, const Error& error) {
  shared_->want(call, error, false);
}
void RemoteRanks::break_call(Call& call, RankId culprit, const Error& cause, bool others_wait) {
  shared_->break_call(call, culprit, cause, others_wait);
}
void RemoteRanks::abort(RankId, const Error& cause) {
  if (!shared_->have_collectives()) return;
  shared_->abort(cause, CallId{0});
  shared_->want({}, {}, true);
}
void RemoteRanks::bury(RankId rank, const Error& cause) { shared_->bury(rank, cause); }
void RemoteRanks::leave() { shared_->set_leaving(); }
void RemoteRanks::close(Deadline deadline) { shared_->close(deadline); }
RankStatus RemoteRanks::status_of(RankId rank) const { return shared_->at(rank).status(); }
bool RemoteRanks::runs(RankId rank, const Call& call) const { return shared_->at(rank).runs(call); }
result<std::vector<RankStatus>> RemoteRanks::status(Deadline deadline) {
  return shared_->status(deadline);
}
void RemoteRanks::kill(RankId rank, Error cause) { shared_->at(rank).kill(std::move(cause)); }
void RemoteRanks::request_abort(RankId rank, Error cause) {
  if (const auto own = shared_->core()) own->abort(rank, cause);
}

}  // namespace troupe::runtime

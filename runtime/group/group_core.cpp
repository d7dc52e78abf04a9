#include "runtime/group/group_core.hpp"

#include "runtime/base/log.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::runtime {
namespace {

/// How long the news of a peer's end may come after that of who noticed it.
constexpr Duration kDeathReportWithin = std::chrono::seconds(2);

}  // namespace

GroupCore::GroupCore(ActorSystem& system, GroupOptions options, std::unique_ptr<GroupRanks> ranks)
    : system_(system), options_(std::move(options)), ranks_(std::move(ranks)) {}

GroupCore::~GroupCore() = default;

result<void> GroupCore::check_options() const {
  const auto ranks = static_cast<std::size_t>(options_.mesh.size());
  if (!options_.lanes.empty() && options_.lanes.size() != ranks) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} lanes for {} ranks", options_.name,
                options_.lanes.size(), ranks);
  }
  if (std::count(options_.lanes.begin(), options_.lanes.end(), nullptr) > 0)
    return fail(ErrorCode::kInvalidArgument, "{}: a lane is null", options_.name);
  if (options_.calls_max == 0)
    return fail(ErrorCode::kInvalidArgument, "{}: calls_max is 0, wanted ≥ 1", options_.name);
  return {};
}

result<Ref<GroupCore>> GroupCore::create(ActorSystem& system, GroupOptions options,
                                         std::unique_ptr<GroupRanks> ranks) {
  const Ref<GroupCore> core(new GroupCore(system, std::move(options), std::move(ranks)));
  TROUPE_TRY_VOID(core->check_options());
  auto started = core->start();
  if (!started) {
    core->shutdown();
    return fail(std::move(started).error());
  }
  return core;
}

result<void> GroupCore::start() {
  const Deadline deadline = Deadline::in(options_.create_deadline);
  TROUPE_TRY_VOID(ranks_->start(Ref<GroupCore>(this), deadline));
  std::unique_lock lock(mutex_);
  const bool all = constructed_.wait_until(lock, deadline.at, [&] {
    return construct_error_ || dead_cause_ || constructed_count_ == size();
  });
  // A rank that fails since a peer is gone may say so before the report of that peer's end is here.
  const auto is_consequence = [&] {
    return construct_error_ && (construct_error_->code == ErrorCode::kRankDead ||
                                construct_error_->code == ErrorCode::kAborted);
  };
  if (is_consequence() && !dead_cause_) {
    constructed_.wait_until(lock, std::min(deadline, Deadline::in(kDeathReportWithin)).at,
                            [&] { return dead_cause_.has_value(); });
  }
  if (construct_error_ && !(is_consequence() && dead_cause_)) return fail(*construct_error_);
  if (dead_cause_) return fail(*dead_cause_);
  if (!all) {
    return fail(ErrorCode::kDeadline, "{}: {} of {} workers were constructed in {:.1f} s",
                options_.name, constructed_count_, size(), seconds(options_.create_deadline));
  }
  return {};
}

void GroupCore::rank_constructed(RankId rank, std::optional<Error> error) {
  bool first_error = false;
  {
    const std::lock_guard lock(mutex_);
    ++constructed_count_;
    if (error) {
      error = std::move(*error).at({.group = options_.name, .rank = rank, .node = {}});
      error->message = "constructor: " + error->message;
      first_error = !construct_error_;
      if (first_error) construct_error_ = error;
    }
  }
  if (error) {
    // Peers that wait for this rank in their own constructors go on.
    if (first_error) ranks_->abort(rank, *error);
  }
  constructed_.notify_all();
}

std::optional<Error> GroupCore::refusal_locked() const {
  if (closed_) return cancelled(fmt::format("{}: the group is closed", options_.name));
  if (dead_cause_) {
    Error error = *dead_cause_;
    return std::move(error).wrap(ErrorCode::kRankDead,
                                 fmt::format("{}: the group is dead", options_.name));
  }
  if (open_calls_.size() >= options_.calls_max) {
    return Error{.code = ErrorCode::kResourceExhausted,
                 .message = fmt::format("{}: {} calls in flight, the bound is {}", options_.name,
                                        open_calls_.size(), options_.calls_max),
                 .origin = {},
                 .causes = {}};
  }
  return std::nullopt;
}

result<void> GroupCore::take_lanes(Call& call) {
  if (call.phase.empty() || options_.lanes.empty()) return {};
  const std::lock_guard order(system_.lane_order());
  for (std::size_t i = 0; i < options_.lanes.size(); ++i) {
    TROUPE_TRY(auto turn, options_.lanes[i]->reserve(
                              LaneRequest{.phase = std::string(call.phase),
                                          .owner = fmt::format("{} rank {}", options_.name, i)}));
    call.turns.push_back(std::move(turn));
  }
  return {};
}

void GroupCore::submit(Ref<Call> call, const CancelToken& cancel) {
  call->submitted = steady_now();
  call->ranks_left.store(size(), std::memory_order_relaxed);
  std::optional<Error> refused;
  if (auto ready = ranks_->prepare(*call); !ready) refused = std::move(ready).error();
  {
    const std::lock_guard lock(mutex_);
    if (auto closed = refusal_locked()) refused = std::move(closed);
    if (!refused && call->deadline.at <= call->submitted) {
      refused = Error{.code = ErrorCode::kDeadline,
                      .message = "the deadline had passed before the call",
                      .origin = {},
                      .causes = {}};
    }
    if (!refused && cancel.cancelled()) refused = cancel.reason();
    if (!refused) {
      if (auto lanes = take_lanes(*call); !lanes) refused = std::move(lanes).error();
    }
    if (!refused) {
      call->id = CallId{++last_call_};
      if (rebuild_next_) {
        call->plan.store(Call::kRebuildBase + ++epoch_);
        rebuild_next_ = false;
      }
      open_calls_.push_back(call);
      call->timer = system_.timer().add(
          call->deadline.at, [core = Ref<GroupCore>(this), call] { core->deadline_passed(*call); });
      ranks_->push(call);
    }
  }
  if (refused) {
    call->turns.clear();
    refused->message = fmt::format("{}: {}", call->method, refused->message);
    call->fail(std::move(*refused).at({.group = options_.name, .rank = {}, .node = {}}));
    return;
  }
  ranks_->wake();
  if (cancel.signal() == nullptr) return;
  auto registration = cancel.on_cancel([core = Ref<GroupCore>(this), call](const Error& reason) {
    if (call->settle()) call->fail(reason);
    core->abandon(*call);
  });
  const std::lock_guard lock(mutex_);
  if (!call->over()) call->registration = std::move(registration);
}

void GroupCore::close(Call& call) {
  CancelRegistration registration;  // both destroyed after the lock
  Ref<Call> keep;
  std::optional<CallTimer::Id> timer;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(open_calls_.begin(), open_calls_.end(),
                                    [&](const Ref<Call>& one) { return one.get() == &call; });
    if (found == open_calls_.end()) return;
    keep = std::move(*found);
    open_calls_.erase(found);
    registration = std::move(call.registration);
    timer = std::exchange(call.timer, std::nullopt);
  }
  if (timer) system_.timer().remove(*timer);
}

void GroupCore::abandon(Call& call) {
  call.settle();
  call.abandoned.store(true);
  ranks_->skip(Ref<Call>(&call));
  ranks_->cancel(call);
  close(call);
}

void GroupCore::fail_settled(Call& call, Error error) {
  close(call);  // first, so that who sees the error may call again at once
  call.fail(std::move(error).at({.group = options_.name, .rank = {}, .node = {}}));
}

bool GroupCore::tells_of_a_death(const Error& error) const {
  const Error& root = error.root_cause();
  const std::string& where = root.origin.group;  // of a mesh axis: `policy/…`
  return root.code == ErrorCode::kRankDead && where.starts_with(options_.name) &&
         (where.size() == options_.name.size() || where[options_.name.size()] == '/');
}

bool GroupCore::hold(Call& call, const Error& error) {
  std::optional<CallTimer::Id> timer;  // removed after the lock
  {
    const std::lock_guard lock(mutex_);
    if (call.settled.load()) return false;
    if (closed_ || dead_cause_) return true;  // who said so ends this call
    if (std::exchange(call.held, true)) return true;
    timer = std::exchange(
        call.timer,
        system_.timer().add(std::min(call.deadline, Deadline::in(kDeathReportWithin)).at,
                            [core = Ref<GroupCore>(this), call = Ref<Call>(&call), error] {
                              if (call->settle()) core->fail_settled(*call, error);
                            }));
  }
  if (timer) system_.timer().remove(*timer);
  return true;
}

void GroupCore::rank_done(Call& call, RankId rank, result<void> outcome) {
  if (!outcome) {
    Error error = std::move(outcome).error();
    if (error.origin.rank && (error.origin.rank != rank || error.origin.group != options_.name)) {
      error = std::move(error).wrap(error.code, std::string(call.method));
    } else {
      error.message = fmt::format("{}: {}", call.method, error.message);
    }
    error = std::move(error).at({.group = options_.name, .rank = rank, .node = {}});
    // Settled before peers are freed: their errors are consequences.
    const bool held = tells_of_a_death(error) && hold(call, error);
    const bool first = !held && call.settle();
    if (!call.failed.exchange(true))
      ranks_->break_call(call, rank, error, call.ranks_left.load() > 1);
    if (first) fail_settled(call, std::move(error));
  }
  if (call.ranks_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (call.failed.load() || !call.settle()) return;
  try {
    outcome = call.join();
  } catch (...) {
    outcome = fail(error_of_current_exception());
  }
  if (!outcome) {
    Error error = std::move(outcome).error();
    error.message = fmt::format("{}: joining results: {}", call.method, error.message);
    fail_settled(call, std::move(error));
    return;
  }
  close(call);
  call.deliver();
}

Ref<Call> GroupCore::plan_rebuild() {
  const std::lock_guard lock(mutex_);
  const std::int64_t plan = Call::kRebuildBase + epoch_ + 1;
  for (const auto& open : open_calls_) {
    if (open->decide(plan) == plan) {
      ++epoch_;
      return open;
    }
  }
  rebuild_next_ = true;
  return {};
}

void GroupCore::decide_begun(CallId last_begun) {
  const std::lock_guard lock(mutex_);
  for (const auto& open : open_calls_) {
    if (open->id <= last_begun) open->decide(Call::kRun);
  }
}

std::string GroupCore::waiting_ranks(const Call& call) const {
  std::string in_it;
  std::string before_it;
  for (RankId rank{0}; rank.value < size(); ++rank.value) {
    const RankStatus status = ranks_->status_of(rank);
    const bool here = ranks_->runs(rank, call);
    if (!status.busy && !here) continue;
    std::string& text = here ? in_it : before_it;
    if (text.size() > 200) continue;  // the first few say enough
    text += (text.empty() ? "" : "; ") + status.to_string();
  }
  if (!in_it.empty()) return in_it;
  if (before_it.empty()) return "no rank has begun it";
  return "no rank has begun it; " + before_it;
}

void GroupCore::deadline_passed(Call& call) {
  if (!call.settle()) return;
  ranks_->skip(Ref<Call>(&call));
  Error error{.code = ErrorCode::kDeadline,
              .message = fmt::format("{}: deadline passed after {:.3f} s: {}", call.method,
                                     seconds(steady_now() - call.submitted), waiting_ranks(call)),
              .origin = {.group = options_.name, .rank = {}, .node = {}},
              .causes = {}};
  {
    const std::lock_guard lock(mutex_);
    call.timer.reset();  // it is running
  }
  // The first rank that is in the call is the one to name; one alone is surely the culprit.
  for (RankId rank{0}; rank.value < size() && !error.origin.rank; ++rank.value) {
    if (ranks_->runs(rank, call)) error.origin.rank = rank;
  }
  ranks_->cancel(call);
  call.abandoned.store(true);
  ranks_->expire(Ref<Call>(&call), error);
  fail_settled(call, std::move(error));
}

void GroupCore::rank_died(RankId rank, Error cause, Call* during) {
  if (during != nullptr) cause.message = fmt::format("{}: {}", during->method, cause.message);
  cause = std::move(cause).at({.group = options_.name, .rank = rank, .node = {}});
  std::deque<Ref<Call>> open;
  Error later;
  bool first_death = false;
  {
    const std::lock_guard lock(mutex_);
    first_death = !dead_cause_ && !closed_;
    if (first_death) dead_cause_ = cause;
    later = Error(dead_cause_.value_or(cause))
                .wrap(ErrorCode::kRankDead, fmt::format("{}: the group is dead", options_.name));
    open = open_calls_;
  }
  if (during != nullptr) {
    during->failed.store(true);
    during->broken.store(true);
    if (during->settle()) fail_settled(*during, first_death ? cause : later);
  }
  for (const auto& call : open) {
    call->failed.store(true);
    call->broken.store(true);
    call->decide(Call::kSkip);
    if (!call->settle()) continue;
    Error error = later;
    error.message = fmt::format("{}: {}", call->method, error.message);
    // A call that runs on the dead rank's peers ends with the cause itself.
    const bool running = during == nullptr && call == open.front() && first_death;
    fail_settled(*call, running ? cause : std::move(error));
  }
  ranks_->bury(rank, cause);
  constructed_.notify_all();
  if (!first_death) return;
  ranks_->leave();
  log::error("{}", cause.to_string());
  ranks_->abort(rank, cause);
}

void GroupCore::kill(RankId rank, Error cause) {
  if (rank.value < 0 || rank.value >= options_.mesh.size()) return;
  ranks_->kill(rank, std::move(cause));
}

void GroupCore::request_abort(RankId rank, Error cause) {
  ranks_->request_abort(rank, std::move(cause));
}

void GroupCore::abort(RankId rank, const Error& cause) { ranks_->abort(rank, cause); }

result<std::vector<RankStatus>> GroupCore::status(Deadline deadline) {
  return ranks_->status(deadline);
}

std::optional<Error> GroupCore::dead_cause() const {
  const std::lock_guard lock(mutex_);
  return dead_cause_;
}

std::size_t GroupCore::calls_open() const {
  const std::lock_guard lock(mutex_);
  return open_calls_.size();
}

void GroupCore::shutdown() {
  std::deque<Ref<Call>> open;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    open = open_calls_;
  }
  const Error reason = cancelled(fmt::format("{}: the group was destroyed", options_.name));
  for (const auto& call : open) {
    Error error = reason;
    error.message = fmt::format("{}: {}", call->method, error.message);
    call->failed.store(true);
    call->broken.store(true);
    if (call->settle()) fail_settled(*call, std::move(error));
    abandon(*call);
  }
  ranks_->close(Deadline::in(options_.shutdown_wait));
}

}  // namespace troupe::runtime

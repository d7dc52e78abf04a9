#include "runtime/group/group_core.hpp"

#include "runtime/base/log.hpp"
#include "runtime/group/group_actors.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <utility>

namespace troupe::runtime {

GroupCore::GroupCore(ActorSystem& system, GroupOptions options)
    : system_(system), options_(std::move(options)) {}

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
                                         MakeWorker make_worker) {
  const Ref<GroupCore> core(new GroupCore(system, std::move(options)));
  TROUPE_TRY_VOID(core->check_options());
  auto started = core->start(std::move(make_worker));
  if (!started) {
    core->shutdown();
    return fail(std::move(started).error());
  }
  return core;
}

result<void> GroupCore::start(MakeWorker make_worker) {
  const int size = options_.mesh.size();
  std::vector<std::unique_ptr<Collective>> worlds(static_cast<std::size_t>(size));
  if (options_.collectives) worlds = make_local_group(size, {.name = options_.name});
  for (int i = 0; i < size; ++i) {
    ranks_.push_back(make_ref<Rank>(options_.name, RankId{i}, options_.mesh,
                                    std::move(worlds[static_cast<std::size_t>(i)])));
  }
  actors_ = std::make_unique<GroupActors>(system_, Ref<GroupCore>(this), ranks_);
  for (const auto& rank : ranks_) rank->start(Ref<GroupCore>(this), make_worker);
  const Deadline deadline = Deadline::in(options_.create_deadline);
  std::unique_lock lock(mutex_);
  const bool all = constructed_.wait_until(
      lock, deadline.at, [&] { return construct_error_ || constructed_count_ == ranks_.size(); });
  if (construct_error_) return fail(*construct_error_);
  if (!all) {
    return fail(ErrorCode::kDeadline, "{}: {} of {} workers were constructed in {:.1f} s",
                options_.name, constructed_count_, ranks_.size(),
                seconds(options_.create_deadline));
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
    if (first_error) abort(rank, *error);
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
  call->submitted = SteadyClock().now();
  call->ranks_left.store(static_cast<std::int64_t>(ranks_.size()), std::memory_order_relaxed);
  std::optional<Error> refused;
  {
    const std::lock_guard lock(mutex_);
    refused = refusal_locked();
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
      if (options_.route == CallRoute::kDirect) {
        for (const auto& rank : ranks_) rank->push(call);
      } else {
        actors_->submit(call);
      }
    }
  }
  if (refused) {
    call->turns.clear();
    refused->message = fmt::format("{}: {}", call->method, refused->message);
    call->fail(std::move(*refused).at({.group = options_.name, .rank = {}, .node = {}}));
    return;
  }
  if (options_.route == CallRoute::kDirect) {
    for (const auto& rank : ranks_) rank->wake();
  }
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
  call.decide(Call::kSkip);
  for (const auto& rank : ranks_) {
    RankCell& cell = rank->cell();
    const std::lock_guard lock(cell.mutex);
    if (cell.current == &call) cell.cancelled.store(true);
  }
  close(call);
}

void GroupCore::fail_settled(Call& call, Error error) {
  close(call);  // first, so that who sees the error may call again at once
  call.fail(std::move(error).at({.group = options_.name, .rank = {}, .node = {}}));
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
    const bool first = call.settle();
    if (!call.failed.exchange(true))
      break_communicators(call, rank, error, call.ranks_left.load() > 1);
    if (first) fail_settled(call, std::move(error));
  }
  if (call.ranks_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (!call.settle()) return;
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

void GroupCore::break_communicators(Call& call, RankId rank, const Error& cause, bool others_wait) {
  if (!options_.collectives || ranks_.size() == 1) return;
  Collective& world = *ranks_[index(rank)]->cell().world;
  if (others_wait) {
    call.broken.store(true);
    world.abort(cause);
  }
  if (world.failure()) plan_rebuild();
}

void GroupCore::plan_rebuild() {
  const std::lock_guard lock(mutex_);
  const std::int64_t plan = Call::kRebuildBase + epoch_ + 1;
  for (const auto& open : open_calls_) {
    if (open->decide(plan) == plan) {
      ++epoch_;
      return;
    }
  }
  rebuild_next_ = true;
}

std::string GroupCore::waiting_ranks(const Call& call) const {
  std::string in_it;
  std::string before_it;
  for (const auto& rank : ranks_) {
    bool here = false;
    {
      const std::lock_guard lock(rank->cell().mutex);
      if (!rank->cell().busy) continue;
      here = rank->cell().current == &call;
    }
    std::string& text = here ? in_it : before_it;
    if (text.size() > 200) continue;  // the first few say enough
    text += (text.empty() ? "" : "; ") + rank->status().to_string();
  }
  if (!in_it.empty()) return in_it;
  if (before_it.empty()) return "no rank has begun it";
  return "no rank has begun it; " + before_it;
}

void GroupCore::deadline_passed(Call& call) {
  if (!call.settle()) return;
  const bool begun = call.decide(Call::kSkip) != Call::kSkip;
  Error error{
      .code = ErrorCode::kDeadline,
      .message = fmt::format("{}: deadline passed after {:.3f} s: {}", call.method,
                             seconds(SteadyClock().now() - call.submitted), waiting_ranks(call)),
      .origin = {.group = options_.name, .rank = {}, .node = {}},
      .causes = {}};
  {
    const std::lock_guard lock(mutex_);
    call.timer.reset();  // it is running
  }
  // The first rank that is in the call is the one to name; one alone is surely the culprit.
  for (const auto& rank : ranks_) {
    const std::lock_guard lock(rank->cell().mutex);
    if (rank->cell().current != &call) continue;
    if (!error.origin.rank) error.origin.rank = rank->cell().rank;
    rank->cell().cancelled.store(true);
  }
  call.abandoned.store(true);
  if (!call.failed.exchange(true) && begun)
    break_communicators(call, error.origin.rank.value_or(RankId{0}), error, true);
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
  {
    RankCell& cell = ranks_[index(rank)]->cell();
    const std::lock_guard lock(cell.mutex);
    if (!cell.death) cell.death = cause;
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
  ranks_[index(rank)]->stop();
  if (!first_death) return;
  for (const auto& peer : ranks_) peer->cell().leaving.store(true);
  log::error("{}", cause.to_string());
  abort(rank, cause);
}

void GroupCore::kill(RankId rank, Error cause) {
  if (rank.value < 0 || rank.value >= options_.mesh.size()) return;
  actors_->kill(rank, std::move(cause));
}

void GroupCore::request_abort(RankId rank, Error cause) { actors_->abort(rank, std::move(cause)); }

void GroupCore::abort(RankId rank, const Error& cause) {
  if (options_.collectives && ranks_.size() > 1) {
    ranks_[index(rank)]->cell().world->abort(cause);
    plan_rebuild();
  }
}

result<std::vector<RankStatus>> GroupCore::status(Deadline deadline) {
  return actors_->status(deadline);
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
  for (const auto& rank : ranks_) rank->stop();
  abort(RankId{0}, reason);
  const Deadline deadline = Deadline::in(options_.shutdown_wait);
  for (const auto& rank : ranks_) {
    const RankStatus last = rank->status();
    if (!rank->join(deadline)) {
      log::warn("{}: {}: its engine did not end in {:.1f} s and is left behind", options_.name,
                last.to_string(), seconds(options_.shutdown_wait));
    }
  }
  if (actors_) actors_->stop();
}

}  // namespace troupe::runtime

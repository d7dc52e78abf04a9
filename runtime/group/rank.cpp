#include "runtime/group/rank.hpp"

#include "runtime/base/log.hpp"
#include "runtime/group/call_trace.hpp"
#include "runtime/task/failure.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::runtime {
void Rank::start(Ref<RankOwner> owner, MakeWorker make_worker) {
  thread_ = std::thread(
      [self = Ref<Rank>(this), owner = std::move(owner), make = std::move(make_worker)]() mutable {
        self->engine_main(*owner, make);
        make = nullptr;  // the factory's captures go before `join` returns
        owner = nullptr;
        {
          const std::lock_guard lock(self->mutex_);
          self->over_ = true;
        }
        self->ended_.notify_all();
      });
}

void Rank::push(Ref<Call> call) {
  const std::lock_guard lock(mutex_);
  if (!stop_) queue_.push_back(std::move(call));
}

void Rank::stop() {
  cell_.leaving.store(true);
  std::deque<Ref<Call>> dropped;  // destroyed after the lock
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    dropped.swap(queue_);
  }
  changed_.notify_one();
}

bool Rank::join(Deadline deadline) {
  if (!thread_.joinable()) return true;
  bool over = false;
  {
    std::unique_lock lock(mutex_);
    over = ended_.wait_until(lock, deadline.at, [this] { return over_; });
  }
  if (over) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return over;
}

Ref<Call> Rank::pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stop_ || (!queue_.empty() && !held_); });
  if (stop_) return {};
  Ref<Call> call = std::move(queue_.front());
  queue_.pop_front();
  last_begun_ = call->id;
  return call;
}

CallId Rank::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
  return last_begun_;
}

void Rank::adjust(const std::function<void(Call&)>& plan, bool go_on) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& call : queue_) plan(*call);
    if (!go_on) return;
    held_ = false;
  }
  changed_.notify_one();
}

bool Rank::has_queued() const {
  const std::lock_guard lock(mutex_);
  return !queue_.empty() && !held_;
}

CallId Rank::last_begun() const {
  const std::lock_guard lock(mutex_);
  return last_begun_;
}

void Rank::cancel(const Call& call) {
  const std::lock_guard lock(cell_.mutex);
  if (cell_.current == &call) cell_.cancelled.store(true);
}

void Rank::cancel(CallId call) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& queued : queue_) {
      if (queued->id == call) queued->abandoned.store(true);
    }
    // Begun, and perhaps not yet marked as the current one.
    if (last_begun_ == call) cancelled_call_.store(call.value);
  }
  const std::lock_guard lock(cell_.mutex);
  if (cell_.current != nullptr && cell_.current->id == call) cell_.cancelled.store(true);
}

bool Rank::runs(const Call& call) const {
  const std::lock_guard lock(cell_.mutex);
  return cell_.current == &call;
}

void Rank::bury(const Error& cause) {
  const std::lock_guard lock(cell_.mutex);
  if (!cell_.death) cell_.death = cause;
}

void Rank::engine_main(RankOwner& owner, const MakeWorker& make_worker) {
  if (construct(owner, make_worker)) {
    while (Ref<Call> call = pop()) {
      if (!run_call(owner, *call)) break;
    }
  }
  try {
    worker_.reset();
  } catch (...) {
    log::error("{} rank {}: destructor: {}", cell_.group, cell_.rank.value,
               error_of_current_exception().message);
  }
  stop();
}

result<void> Rank::split_axes(Deadline deadline) {
  cell_.axes.clear();
  if (!cell_.world) return {};
  for (const Axis& axis : cell_.mesh.axes()) {
    if (axis.size == cell_.mesh.size()) continue;  // the world itself
    // Ranks that agree on all other axes share a colour: the first rank of their line.
    const int colour = cell_.mesh.along(cell_.rank, axis.name).front().value;
    const int key = cell_.mesh.coordinate(cell_.rank, axis.name);
    TROUPE_TRY(auto line, cell_.world->split(colour, key, deadline));
    cell_.axes.emplace(axis.name, std::move(line));
  }
  return {};
}

bool Rank::construct(RankOwner& owner, const MakeWorker& make_worker) {
  const Deadline deadline = Deadline::in(owner.create_deadline());
  cell_.deadline.store(deadline.at.time_since_epoch().count());
  begin_work("constructor", nullptr);
  std::optional<Error> error;
  try {
    result<void> ready = cell_.world ? split_axes(deadline) : result<void>();
    if (ready) {
      auto made = make_worker(context_);
      if (made) worker_ = std::move(*made);
      if (!made) ready = fail(std::move(made).error());
    }
    if (!ready) error = std::move(ready).error();
  } catch (...) {
    error = error_of_current_exception();
  }
  const bool good = !error;
  end_work(error);
  owner.rank_constructed(cell_.rank, std::move(error));
  return good;
}

/// Waits for all ranks in short slices: when the call is broken meanwhile, the others may never
/// come, and a rank that was late for an earlier rebuild may spoil one try by its older epoch.
result<void> Rank::rebuild(const Call& call, std::int64_t epoch, Duration slice_of) {
  for (;;) {
    const Deadline slice = std::min(call.deadline, Deadline::in(slice_of));
    auto done = cell_.world->rebuild(epoch, slice);
    if (done) return {};
    const ErrorCode code = done.error().code;
    const bool again = code == ErrorCode::kDeadline || code == ErrorCode::kConflict;
    if (!again || call.broken.load() || cell_.leaving.load()) return done;
    if (call.deadline.passed()) {
      return fail(ErrorCode::kDeadline, "rebuilding of the communicators: {}",
                  done.error().message);
    }
  }
}

/// What comes before the method: rebuilt communicators and the turn in the device's lane.
result<void> Rank::prepare(const RankOwner& owner, Call& call,
                           std::unique_ptr<LaneGate::Turn>& turn) {
  const std::int64_t plan = call.decide(Call::kRun);
  if (plan >= Call::kRebuildBase && cell_.world) {
    const auto waiting = context_.waiting_for("rebuilding of the communicators");
    TROUPE_TRY_VOID(rebuild(call, plan - Call::kRebuildBase, owner.rebuild_slice()));
    TROUPE_TRY_VOID(split_axes(call.deadline));
  }
  if (turn) {
    const auto waiting = context_.waiting_for("lane turn");
    TROUPE_TRY_VOID(turn->wait(call.deadline));
  }
  return {};
}

void Rank::begin_work(std::string_view method, const Call* call) {
  const std::lock_guard lock(cell_.mutex);
  cell_.busy = true;
  cell_.current = call;
  cell_.method = method;
  cell_.busy_since = steady_now();
}

void Rank::end_work(const std::optional<Error>& death) {
  const std::lock_guard lock(cell_.mutex);
  cell_.busy = false;
  cell_.current = nullptr;
  cell_.method = {};
  cell_.waits_for.clear();
  if (death && !cell_.death) cell_.death = death;
}

bool Rank::run_call(RankOwner& owner, Call& call) {
  std::unique_ptr<LaneGate::Turn> turn = call.take_turn(cell_.rank);
  if (call.broken.load() || call.decide(Call::kRun) == Call::kSkip) {
    turn.reset();
    owner.rank_done(call, cell_.rank, {});
    return true;
  }
  CallSpan span{.group = cell_.group,
                .rank = cell_.rank,
                .method = call.method,
                .phase = call.phase,
                .call = call.id,
                .submitted = call.submitted,
                .begin = steady_now(),
                .end = {}};
  begin_work(call.method, &call);
  cell_.deadline.store(call.deadline.at.time_since_epoch().count(), std::memory_order_relaxed);
  cell_.cancelled.store(call.abandoned.load() || cancelled_call_.load() == call.id.value);
  result<void> outcome;
  std::optional<Error> death;
  try {
    outcome = prepare(owner, call, turn);
    span.begin = steady_now();
    if (outcome) outcome = call.run(worker_.get(), cell_.rank, context_);
  } catch (const Failure& failure) {
    outcome = fail(failure.error());
  } catch (...) {
    death = error_of_current_exception();
  }
  turn.reset();
  if (CallTrace* const trace = owner.trace()) {
    span.end = steady_now();
    span.ok = outcome.has_value() && !death;
    trace->on_call(span);
  }
  end_work(death);
  cell_.calls_done.fetch_add(1, std::memory_order_relaxed);
  if (death) {
    owner.rank_died(cell_.rank, std::move(*death), &call);
    return false;
  }
  owner.rank_done(call, cell_.rank, std::move(outcome));
  return true;
}

RankStatus Rank::status() const {
  RankStatus status;
  status.rank = cell_.rank;
  status.calls_done = cell_.calls_done.load();
  status.progress = cell_.progress.load();
  const TimePoint at = steady_now();
  const std::lock_guard lock(cell_.mutex);
  status.dead = cell_.death.has_value();
  if (cell_.death) status.cause = cell_.death->to_string();
  status.busy = cell_.busy;
  if (status.busy) {
    status.method = std::string(cell_.method);
    status.busy_seconds = seconds(at - cell_.busy_since);
    status.waits_for = cell_.waits_for;
    if (!cell_.waits_for.empty()) status.waiting_seconds = seconds(at - cell_.waiting_since);
  }
  return status;
}

}  // namespace troupe::runtime

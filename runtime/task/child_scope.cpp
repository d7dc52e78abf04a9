#include "runtime/task/child_scope.hpp"

#include <optional>

namespace troupe::runtime {
namespace {

/// Waits for any of `events`, for `until`, and for `context`'s token; never throws.
class AnyEvent {
 public:
  AnyEvent(std::vector<Ref<Signal>> events, TaskContext context, TimePoint until = TimePoint::max())
      : events_(std::move(events)), context_(std::move(context)), until_(until) {}
  bool await_ready() const {
    for (const auto& event : events_) {
      if (event->done()) return true;
    }
    return false;
  }
  bool await_suspend(std::coroutine_handle<> handle) {
    const TimePoint* until = until_ == TimePoint::max() ? nullptr : &until_;
    return wait_.suspend(handle, context_, events_, until);
  }
  void await_resume() { wait_.release(); }

 private:
  std::vector<Ref<Signal>> events_;
  TaskContext context_;
  TimePoint until_;
  WaitGuard wait_;
};

/// Happens when all of several pendings have a value, or one has failed.
class Countdown final : public Signal {
 public:
  void expect(std::size_t count) { left_ = count; }
  void child_over(std::size_t index, const std::optional<Error>& error) {
    std::vector<Ref<Observer>> observers;
    {
      const std::lock_guard lock(mutex_);
      if (done()) return;
      if (error) failed_ = index;
      --left_;
      if (!error && left_ > 0) return;
      observers = raise_locked();
    }
    notify_all(observers);
  }
  std::optional<std::size_t> failed() const {
    const std::lock_guard lock(mutex_);
    return failed_;
  }

 private:
  std::size_t left_ = 0;  // guarded by mutex_
  std::optional<std::size_t> failed_;
};

class ChildWatch final : public Observer {
 public:
  ChildWatch(Ref<Countdown> countdown, std::size_t index, const PendingBase* child)
      : countdown_(std::move(countdown)), index_(index), child_(child) {}
  void notify() noexcept override { countdown_->child_over(index_, child_->error()); }

 private:
  Ref<Countdown> countdown_;
  std::size_t index_;
  const PendingBase* child_;  // notifies, so it is alive
};

/// Takes the watches off again, also when the frame is destroyed.
class Subscriptions {
 public:
  Subscriptions() = default;
  Subscriptions(const Subscriptions&) = delete;
  Subscriptions& operator=(const Subscriptions&) = delete;
  ~Subscriptions() {
    for (const auto& [signal, observer] : entries_) signal->unsubscribe(observer.get());
  }
  void add(const Ref<PendingBase>& child, const Ref<Observer>& observer) {
    if (child->subscribe(observer)) {
      entries_.emplace_back(child, observer);
    } else {
      observer->notify();
    }
  }

 private:
  std::vector<std::pair<Ref<Signal>, Ref<Observer>>> entries_;
};

}  // namespace

ChildScope::~ChildScope() {
  for (const auto& child : children_) {
    if (child.is_task && !child.state->done()) context_.executor->destroy_root(child.root);
  }
}

task<void> ChildScope::all_or_throw() {
  if (children_.empty()) co_return;
  const auto countdown = make_ref<Countdown>();
  countdown->expect(children_.size());
  Subscriptions subscriptions;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    subscriptions.add(children_[i].state,
                      make_ref<ChildWatch>(countdown, i, children_[i].state.get()));
  }
  std::vector<Ref<Signal>> events;
  events.emplace_back(countdown);
  AnyEvent wait(std::move(events), context_);
  co_await wait;
  std::optional<Error> error;
  if (const auto failed = countdown->failed()) {
    error = children_[*failed].state->error();
  } else if (!countdown->done()) {
    error = context_.token.reason();
  }
  if (!error) co_return;
  const Error reason =
      cancelled(fmt::format("when_all: called off because another one failed: {}", error->message));
  co_await stop(error->code == ErrorCode::kCancelled ? *error : reason);
  throw Failure(std::move(*error));
}

task<std::size_t> ChildScope::first_or_throw() {
  std::vector<Ref<Signal>> events;
  for (const auto& child : children_) events.emplace_back(child.state);
  task<std::size_t> first = first_of(std::move(events));
  result<std::size_t> index = co_await as_result(std::move(first));
  if (!index) {
    co_await stop(index.error());
    throw Failure(std::move(index).error());
  }
  co_return *index;
}

task<void> ChildScope::over_or_throw(TimePoint until, CancelToken extra) {
  const Ref<PendingBase> child = children_.front().state;
  std::vector<Ref<Signal>> events;
  events.emplace_back(child);
  if (extra.signal() != nullptr) events.emplace_back(Ref<Signal>(extra.signal()));
  AnyEvent wait(std::move(events), context_, until);
  co_await wait;
  if (child->done()) co_return;
  Error reason{.code = ErrorCode::kDeadline,
               .message = "with_deadline: the deadline passed first",
               .origin = {},
               .causes = {}};
  if (context_.token.cancelled()) {
    reason = context_.token.reason();
  } else if (extra.cancelled()) {
    reason = extra.reason();
  }
  co_await stop(reason);
  throw Failure(std::move(reason));
}

task<void> ChildScope::stop(Error reason) {
  std::vector<Ref<PendingBase>> left;
  for (const auto& child : children_) {
    if (child.state->done()) continue;
    if (child.is_task) {
      child.source.cancel(reason);
      left.push_back(child.state);
    } else {
      child.state->cancel(reason);
    }
  }
  const TimePoint until = context_.executor->clock().now() + kChildGrace;
  for (const auto& child : left) {
    std::vector<Ref<Signal>> events;
    events.emplace_back(child);
    AnyEvent wait(std::move(events), TaskContext{context_.executor, CancelToken()}, until);
    co_await wait;
  }
  for (const auto& child : children_) {
    if (child.is_task && !child.state->done()) context_.executor->destroy_root(child.root);
  }
}

task<std::size_t> first_of(std::vector<Ref<Signal>> events) {
  if (events.empty()) {
    throw Failure(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "when_any: nothing to wait for",
                        .origin = {},
                        .causes = {}});
  }
  const TaskContext& context = co_await this_context();
  AnyEvent wait(events, context);
  co_await wait;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i]->done()) co_return i;
  }
  throw Failure(context.token.reason());
}

task<bool> over_by(Ref<Signal> event, TimePoint until) {
  const TaskContext& context = co_await this_context();
  std::vector<Ref<Signal>> events;
  events.push_back(event);
  AnyEvent wait(std::move(events), context, until);
  co_await wait;
  if (event->done()) co_return true;
  if (context.token.cancelled()) throw Failure(context.token.reason());
  co_return false;
}

}  // namespace troupe::runtime

#include "runtime/task/executor_core.hpp"

#include "runtime/base/check.hpp"
#include "runtime/task/virtual_clock.hpp"

#include <algorithm>

namespace troupe::runtime {
namespace {

/// Where the running coroutine says who goes on after it; null outside `resume_flat`.
thread_local std::coroutine_handle<>* next_slot = nullptr;

class RootStart final : public Runnable {
 public:
  RootStart(ExecutorCore* executor, RootId id) : executor_(executor), id_(id) {}
  void notify() noexcept override {}
  void run() override { executor_->resume_root(id_); }

 private:
  ExecutorCore* executor_;  // runs its own items, so it is alive
  RootId id_;
};

}  // namespace

void resume_flat(std::coroutine_handle<> handle) {
  std::coroutine_handle<> next = handle;
  std::coroutine_handle<>* const outer = std::exchange(next_slot, &next);
  while (next) std::exchange(next, nullptr).resume();
  next_slot = outer;
}

void hand_over(std::coroutine_handle<> next) {
  if (next_slot == nullptr) {
    resume_flat(next);
  } else {
    *next_slot = next;
  }
}

bool ExecutorCore::post(Ref<Runnable> item) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    ready_.push_back(std::move(item));
    any_ready_.store(true, std::memory_order_release);
  }
  posted_.notify_one();
  return true;
}

ExecutorCore::TimerId ExecutorCore::add_timer(TimePoint at, Ref<Observer> observer) {
  const std::lock_guard lock(mutex_);
  const TimerId id{at, ++last_id_};
  if (!closed_) timers_.emplace(id, std::move(observer));
  posted_.notify_one();
  return id;
}

void ExecutorCore::remove_timer(const TimerId& id) {
  Ref<Observer> dropped;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  const auto found = timers_.find(id);
  if (found == timers_.end()) return;
  dropped = std::move(found->second);
  timers_.erase(found);
}

void ExecutorCore::start_root(std::coroutine_handle<> root, RootId& id) {
  bool refused = false;
  {
    const std::lock_guard lock(mutex_);
    refused = closed_;
    if (!refused) {
      id = ++last_id_;
      roots_.emplace(id, root);
      root_ids_.emplace(root.address(), id);
      ready_.push_back(make_ref<RootStart>(this, id));
      any_ready_.store(true, std::memory_order_release);
    }
  }
  posted_.notify_one();
  if (refused) root.destroy();
}

void ExecutorCore::resume_root(RootId id) {
  std::coroutine_handle<> root;
  {
    const std::lock_guard lock(mutex_);
    const auto found = roots_.find(id);
    if (found == roots_.end()) return;
    root = found->second;
  }
  resume_flat(root);
}

void ExecutorCore::retire_root(std::coroutine_handle<> root) {
  const std::lock_guard lock(mutex_);
  const auto found = root_ids_.find(root.address());
  if (found == root_ids_.end()) return;
  roots_.erase(found->second);
  root_ids_.erase(found);
  graveyard_.push_back(root);
}

void ExecutorCore::destroy_root(RootId id) {
  std::coroutine_handle<> root;
  {
    const std::lock_guard lock(mutex_);
    const auto found = roots_.find(id);
    if (found == roots_.end()) return;
    root = found->second;
    roots_.erase(found);
    root_ids_.erase(root.address());
  }
  root.destroy();
}

void ExecutorCore::bury() {
  while (!graveyard_.empty()) {
    const auto dead = graveyard_.back();
    graveyard_.pop_back();
    dead.destroy();
  }
}

bool ExecutorCore::run_one() {
  Ref<Runnable> item;
  Ref<Observer> due;
  {
    const std::lock_guard lock(mutex_);
    if (!timers_.empty() && timers_.begin()->first.first <= clock_->now()) {
      due = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    } else if (!ready_.empty()) {
      item = std::move(ready_.front());
      ready_.pop_front();
      any_ready_.store(!ready_.empty(), std::memory_order_relaxed);
    } else {
      return false;
    }
  }
  if (due) {
    due->notify();
  } else {
    item->run();
  }
  bury();
  return true;
}

bool ExecutorCore::wait(TimePoint until) {
  if (virtual_clock_ == nullptr && until > clock_->now() &&
      look_again([this] { return any_ready_.load(std::memory_order_acquire); })) {
    return true;
  }
  std::unique_lock lock(mutex_);
  while (ready_.empty()) {
    const TimePoint timer = timers_.empty() ? TimePoint::max() : timers_.begin()->first.first;
    if (timer <= clock_->now()) return true;
    const TimePoint wake = std::min(until, timer);
    if (wake <= clock_->now()) return false;
    if (virtual_clock_ != nullptr && wake != TimePoint::max()) {
      virtual_clock_->advance_to(wake);
    } else if (wake == TimePoint::max()) {
      posted_.wait(lock);
    } else {
      posted_.wait_until(lock, wake);
    }
  }
  return true;
}

void ExecutorCore::close() {
  std::deque<Ref<Runnable>> ready;
  std::map<TimerId, Ref<Observer>> timers;
  std::unordered_map<RootId, std::coroutine_handle<>> roots;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    ready.swap(ready_);
    timers.swap(timers_);
    roots.swap(roots_);
    root_ids_.clear();
  }
  for (const auto& [id, root] : roots) root.destroy();
  bury();
}

void Waiter::notify() noexcept {
  auto expected = State::kWaiting;
  if (state_.compare_exchange_strong(expected, State::kQueued))
    executor_->post(Ref<Runnable>(this));
}

void Waiter::run() {
  if (state_.exchange(State::kOver) == State::kQueued) resume_flat(handle_);
}

bool Waiter::detach() noexcept { return state_.exchange(State::kOver) == State::kWaiting; }

bool WaitGuard::suspend(std::coroutine_handle<> handle, const TaskContext& context,
                        const std::vector<Ref<Signal>>& events, const TimePoint* until) {
  TROUPE_CHECK(context.executor, "task: awaited outside an executor; start it with run or spawn");
  token_ = context.token;
  executor_ = context.executor;
  waiter_ = make_ref<Waiter>(handle, executor_);
  const Ref<Observer> observer = waiter_;
  bool over = false;
  for (const auto& event : events) {
    if (event->subscribe(observer)) {
      events_.push_back(event);
    } else {
      over = true;
    }
  }
  if (token_.signal() != nullptr && !token_.signal()->subscribe(observer)) over = true;
  if (until != nullptr) {
    if (*until <= executor_->clock().now()) {
      over = true;
    } else {
      timer_ = executor_->add_timer(*until, observer);
      has_timer_ = true;
    }
  }
  // Detaching marks the waiter as over even when a resumption is queued; that one then does
  // nothing, which is right: the coroutine goes on now.
  if (over) waiter_->detach();
  return !over;
}

void WaitGuard::requeue(std::coroutine_handle<> handle, const TaskContext& context) {
  TROUPE_CHECK(context.executor, "task: awaited outside an executor; start it with run or spawn");
  waiter_ = make_ref<Waiter>(handle, context.executor);
  waiter_->notify();
}

void WaitGuard::release() noexcept {
  if (!waiter_) return;
  waiter_->detach();
  for (const auto& event : events_) event->unsubscribe(waiter_.get());
  if (token_.signal() != nullptr) token_.signal()->unsubscribe(waiter_.get());
  if (has_timer_) executor_->remove_timer(timer_);
  has_timer_ = false;
  events_.clear();
  waiter_ = nullptr;
}

}  // namespace troupe::runtime

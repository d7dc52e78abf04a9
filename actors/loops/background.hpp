#pragma once

// Work beside a loop: tasks that run on the loop's executor, and a bell that wakes who waits.
//
// **Ownership:** `BackgroundTasks` owns its tasks; `stop`, and the destructor, end them.
// **Threads:** the executor's thread.
// **Invariants:** no task outlives its owner; memory is bounded by the tasks that are under way.

#include "runtime/task/child_scope.hpp"
#include "runtime/task/executor.hpp"
#include "runtime/task/pending.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Wakes all that wait, each time it is rung. A ring with nobody waiting is not kept: look first.
class Bell {
 public:
  Bell() { renew(); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  void ring() {
    if (!std::exchange(waited_, false)) return;
    const auto rung = end_;
    renew();
    rung.complete({});
  }
  /// Until the next ring, or `until`; throws when cancelled. The bell outlives the wait's start.
  runtime::task<bool> wait(TimePoint until) {
    waited_ = true;
    return runtime::over_by(runtime::Ref<runtime::Signal>(next_.shared()), until);
  }

 private:
  void renew() { std::tie(next_, end_) = runtime::make_pending<void>(); }
  bool waited_ = false;  ///< somebody does since the last ring
  runtime::pending<void> next_;
  runtime::completer<void> end_;
};

class BackgroundTasks {
 public:
  /// `failed` hears of every task that ends by an error other than being called off.
  BackgroundTasks(runtime::Ref<runtime::ExecutorCore> executor,
                  std::function<void(const Error&)> failed)
      : executor_(std::move(executor)), failed_(std::move(failed)) {}
  BackgroundTasks(const BackgroundTasks&) = delete;
  BackgroundTasks& operator=(const BackgroundTasks&) = delete;
  ~BackgroundTasks() {
    for (const Task& one : tasks_)
      if (!one.outcome->done()) executor_->destroy_root(one.root);
  }

  void add(runtime::task<void> work) {
    sweep();
    const runtime::CancelSource source;
    auto started = runtime::start(executor_, guarded(std::move(work), failed_), source.token());
    tasks_.push_back({started.outcome.shared(), source, started.id});
  }
  /// Calls all off and waits for them; what does not end in time is destroyed where it stands.
  runtime::task<void> stop(Error reason) {
    std::vector<Task> left = std::exchange(tasks_, {});
    for (const Task& one : left) one.source.cancel(reason);
    const TimePoint until = executor_->clock().now() + runtime::kChildGrace;
    for (const Task& one : left) {
      if (!one.outcome->done()) co_await runtime::over_by(one.outcome, until);
      if (!one.outcome->done()) executor_->destroy_root(one.root);
    }
  }

 private:
  struct Task {
    runtime::Ref<runtime::PendingState<void>> outcome;
    runtime::CancelSource source;
    runtime::RootId root;
  };
  static runtime::task<void> guarded(runtime::task<void> work,
                                     std::function<void(const Error&)> failed) {
    std::optional<Error> error;
    try {
      co_await std::move(work);
    } catch (...) {
      error = runtime::error_of_current_exception();
    }
    if (error && error->code != ErrorCode::kCancelled) failed(*error);
  }
  void sweep() {
    std::erase_if(tasks_, [](const Task& one) { return one.outcome->done(); });
  }

  runtime::Ref<runtime::ExecutorCore> executor_;
  std::function<void(const Error&)> failed_;
  std::vector<Task> tasks_;
};

}  // namespace troupe::actors

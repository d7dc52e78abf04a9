#pragma once

// `BackgroundJob`: runs what blocks, one piece of work at a time, on a thread of its own, so that
// the controller's coroutines go on: worker groups are made and ended this way.
//
//   WorkerGroup<W> group = co_await job.run<WorkerGroup<W>>([=] { return make(); });
//
// **Ownership:** what the work uses outlives the job. **Threads:** `run` and the destructor on one
// thread; the work on another.
// **Invariants:** the destructor, and a `run` that comes early, wait for the work that is under
// way: it must have a deadline of its own.

#include "runtime/task/failure.hpp"
#include "runtime/task/pending.hpp"

#include <system_error>
#include <thread>
#include <utility>

namespace troupe::actors {

class BackgroundJob {
 public:
  BackgroundJob() = default;
  BackgroundJob(const BackgroundJob&) = delete;
  BackgroundJob& operator=(const BackgroundJob&) = delete;
  ~BackgroundJob() { wait(); }

  /// Starts `work()`, which returns result<T>. kResourceExhausted when there is no thread for it.
  template <class T, class Work>
  runtime::pending<T> run(Work work) {
    wait();
    auto ends = runtime::make_pending<T>();
    try {
      thread_ = std::thread([work = std::move(work), done = ends.second]() mutable {
        result<T> outcome = attempt<T>(work);
        {
          const Work gone = std::move(work);  // what it holds ends before anybody hears of it
        }
        done.complete(std::move(outcome));
      });
    } catch (const std::system_error& error) {
      ends.second.complete(
          fail(ErrorCode::kResourceExhausted, "no thread for a worker group: {}", error.what()));
    }
    return std::move(ends.first);
  }

  /// Blocks until nothing runs.
  void wait() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  template <class T, class Work>
  static result<T> attempt(Work& work) {
    try {
      return work();
    } catch (...) {
      return fail(runtime::error_of_current_exception());
    }
  }

  std::thread thread_;
};

}  // namespace troupe::actors

#include "runtime/task/pending.hpp"

namespace troupe::runtime {
namespace {

/// Wakes a blocked thread.
class ThreadWaiter final : public Observer {
 public:
  void notify() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
  }
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline.at, [this] { return over_; });
  }

 private:
  std::mutex mutex_;  // guards over_
  std::condition_variable changed_;
  bool over_ = false;
};

}  // namespace

bool block_on(Signal& event, Deadline deadline) {
  if (event.done() || (!deadline.passed() && look_again([&] { return event.done(); }))) return true;
  const auto waiter = make_ref<ThreadWaiter>();
  if (!event.subscribe(waiter)) return true;
  if (waiter->wait(deadline)) return true;
  event.unsubscribe(waiter.get());
  return event.done();
}

}  // namespace troupe::runtime

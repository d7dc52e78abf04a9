#include "runtime/task/signal.hpp"

#include <algorithm>

namespace troupe::runtime {

bool Signal::subscribe(Ref<Observer> observer) {
  const std::lock_guard lock(mutex_);
  if (done_.load(std::memory_order_relaxed)) return false;
  observers_.push_back(std::move(observer));
  return true;
}

void Signal::unsubscribe(const Observer* observer) {
  Ref<Observer> dropped;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(observers_.begin(), observers_.end(),
                   [observer](const Ref<Observer>& other) { return other.get() == observer; });
  if (found == observers_.end()) return;
  dropped = std::move(*found);
  observers_.erase(found);
}

std::vector<Ref<Observer>> Signal::raise_locked() {
  done_.store(true, std::memory_order_release);
  return std::exchange(observers_, {});
}

void Signal::notify_all(const std::vector<Ref<Observer>>& observers) noexcept {
  for (const auto& observer : observers) observer->notify();
}

}  // namespace troupe::runtime

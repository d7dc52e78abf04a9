#include "runtime/comm/rendezvous_store.hpp"

#include <utility>

namespace troupe::runtime {

result<void> LocalRendezvous::set(const std::string& key, std::string value) {
  {
    const std::lock_guard lock(mutex_);
    values_[key] = std::move(value);
  }
  changed_.notify_all();
  return {};
}

result<std::string> LocalRendezvous::get(const std::string& key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.at, [&] { return values_.contains(key); }))
    return fail(ErrorCode::kDeadline, "rendezvous: {}: not set by the deadline", key);
  return values_[key];
}

}  // namespace troupe::runtime

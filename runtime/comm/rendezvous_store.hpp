#pragma once

// `RendezvousStore`: small values under names, by which the processes of one group find each other.
//
// In a rank process the controller keeps it, over the rank's authenticated channel: no second port.
// `LocalRendezvous` is one for the threads of a process.
// Ownership: outlives the collectives that use it.
// **Threads:** any.
// **Invariants:** a value that `set` returned for is seen by every later `get`; the last `set` of a
// key stays. Keys of one group start with the group's name. Values are at most 4 KiB.

#include "runtime/base/clock.hpp"
#include "runtime/base/result.hpp"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace troupe::runtime {

class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual result<void> set(const std::string& key, std::string value) = 0;
  /// Waits until the key exists; kDeadline names it.
  virtual result<std::string> get(const std::string& key, Deadline deadline) = 0;
};

/// In this process; also what the keeper of a store for others puts the values in.
class LocalRendezvous final : public RendezvousStore {
 public:
  result<void> set(const std::string& key, std::string value) override;
  result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  std::mutex mutex_;  // guards values_
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace troupe::runtime

#pragma once

// One process per run folder: a lock on `RUN/.lock` for as long as the object lives.
//
// **Ownership:** holds a file descriptor; the kernel frees the lock when the process dies.
// **Threads:** one thread.
// **Invariants:** two live locks on one folder do not exist, in one process or in several.

#include "runtime/base/result.hpp"

#include <filesystem>
#include <utility>

namespace troupe::apps {

class RunLock {
 public:
  /// Makes the folder when it is missing. kConflict names the process that holds it, kIo the path.
  static result<RunLock> take(const std::filesystem::path& folder);
  RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace troupe::apps

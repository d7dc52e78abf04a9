#pragma once

// The state folder of a head while it runs: one head at a time, its address for commands on this
// host, its token, its ledger.
//
// Ownership: holds a lock on `head.lock`, which the kernel frees when the process dies.
// **Threads:** one thread.
// **Invariants:** two heads on one folder do not exist; `address` is removed by a head that ends in
// good order, and one that is left behind by a dead head is overwritten by the next.

#include "runtime/base/file.hpp"
#include "runtime/base/result.hpp"

#include <string>

namespace troupe::apps {

class HeadState {
 public:
  /// Makes the folder (mode 0700). kConflict names the process that holds it.
  static result<HeadState> take(const std::string& folder);
  HeadState(HeadState&&) noexcept = default;
  HeadState& operator=(HeadState&&) = delete;
  ~HeadState();

  /// Tells commands on this host where the head is.
  result<void> publish(const std::string& address);
  const std::string& folder() const { return folder_; }
  std::string ledger_path() const;

 private:
  HeadState(std::string folder, Descriptor lock)
      : folder_(std::move(folder)), lock_(std::move(lock)) {}
  std::string folder_;
  Descriptor lock_;
  bool published_ = false;
};

}  // namespace troupe::apps

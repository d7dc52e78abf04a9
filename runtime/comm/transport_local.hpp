#pragma once

// A data plane inside one process, for tests: the same calls and errors as between processes, with
// faults on demand and nothing that depends on the machine.
//
// **Threads:** any; pulls are carried out on the network's own thread, one after another.
// **Invariants:** as `Transport`. A network outlives its transports.

#include "runtime/comm/transport.hpp"

#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

class LocalNetwork {
 public:
  LocalNetwork();
  ~LocalNetwork();
  LocalNetwork(const LocalNetwork&) = delete;
  LocalNetwork& operator=(const LocalNetwork&) = delete;

  /// A new process, so to speak.
  std::unique_ptr<Transport> open(std::string name, PullSource source);
  /// Kills it: pulls from it, also those under way, end with kRankDead.
  void kill(const std::vector<std::byte>& address);
  /// Stops it as SIGSTOP would: pulls from it wait for their deadline, or for `go_on`.
  void stop(const std::vector<std::byte>& address);
  void go_on(const std::vector<std::byte>& address);

  class Core;

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace troupe::runtime

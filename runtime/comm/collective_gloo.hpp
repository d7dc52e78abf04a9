#pragma once

// Collectives between processes, over Gloo (TCP).
//
//   GlooGroupOptions options{.name = "policy", .rank = 1, .size = 4, .host = "10.0.0.7"};
//   auto group = make_gloo_collective(options, store, deadline);    // on every rank
//
// Same interface, results and errors as the in-process group, to the bit. Rank 0 is where the ranks
// of an operation meet: each says what it calls, rank 0 compares and tells all to go or why not, so
// that a deadline ends an operation on all ranks or on none. Payload then goes straight between the
// ranks. Gloo's own algorithms are not used: they sum in an order of their own, and cannot be ended
// early. docs/collectives.md has the protocol.
// Ownership: the caller owns the handle; destroying it is the death of the rank, told to its peers.
// A process that dies without is noticed by its closed connections, within milliseconds; one that
// is stopped by the deadline of the operation, or by `abort` from whoever learns of it.
// **Threads:** as Collective. Each handle of a whole group has four threads of its own: one gets
// messages, two watch connections, one keeps time; Gloo adds one for its sockets. The first group
// makes the process ignore SIGPIPE, unless it has a handler.
// **Invariants:** waiting operations end within 100 ms of `abort`. A failure while payload moves
// leaves the connections unusable until `rebuild`, also those of groups split from this one.
// `rebuild` is for whole groups: split again afterwards.
// **Cost:** bench/collective: two hops to meet, and per rank all_reduce moves 2 × bytes through one
// scratch buffer of at most `scratch_bytes`.

#include "runtime/comm/collective.hpp"
#include "runtime/comm/rendezvous_store.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace troupe::runtime {

struct GlooGroupOptions {
  std::string name = "group";
  int rank = 0;
  int size = 1;
  /// This host's address that peers reach, e.g. the local end of the channel to the controller.
  std::string host = "127.0.0.1";
  std::int64_t epoch = 0;  ///< the first one
  /// False for a rank that replaces a dead one: it joins with the next `rebuild` of its peers.
  bool join = true;
  std::size_t mailbox_bytes = std::size_t{64} << 20;  ///< unread per (sender, receiver)
  std::size_t scratch_bytes = std::size_t{64} << 20;  ///< of a reduction, per rank
  /// How long payload may stand still past the operation's own deadline, once all ranks have met.
  Duration stall_wait = std::chrono::seconds(5);
  /// How long rank 0 may be silent after a deadline, and connecting may take.
  Duration answer_wait = std::chrono::seconds(3);
};

/// Collective over all ranks: every rank calls it with the same name, size, epoch and store.
/// kDeadline names the ranks that did not come.
result<std::unique_ptr<Collective>> make_gloo_collective(const GlooGroupOptions& options,
                                                         std::shared_ptr<RendezvousStore> store,
                                                         Deadline deadline);

}  // namespace troupe::runtime

#pragma once

// One rank's communicator: carries out what `CommunicatorCore` decides, with NCCL's calls.
//
// One thread of its own makes all calls but aborts, which have a thread each, so that neither a
// call that hangs nor another communicator's abort stands in an abort's way. Initialisation is
// non-blocking and polled; a transfer is one group of sends and receives of raw bytes on a stream
// of the communicator, its end is an event that is polled beside NCCL's asynchronous errors.
// Ownership: the device outlives it. Memory of a transfer belongs to the transfer until its pending
// is over; `stuck()` means that it may never be touched again.
// **Threads:** any.
// **Invariants:** every pending ends by its deadline plus `abort_within`; one transfer at a time;
// one communicator per device of a process, so that there is no order of two to agree on. Leaving
// is an abort: nothing is in flight then. The destructor ends the process by a failed CHECK when a
// call of NCCL's has not come back `abort_within` after the abort: nothing else would free it.

#include "reshard/nccl/communicator_core.hpp"
#include "reshard/nccl/cuda_runtime.hpp"
#include "reshard/nccl/nccl_library.hpp"
#include "runtime/task/pending.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::reshard::nccl {

/// Bytes to or from one peer. Both ends list those between them in the same order, with the same
/// sizes; a size of 0 does not travel.
struct Transfer {
  bool is_send = false;
  std::int32_t peer = 0;  ///< NCCL rank
  std::span<std::byte> memory;
};

struct CommunicatorOptions {
  std::int32_t rank = 0;  ///< of the plan, for messages
  Duration abort_within = std::chrono::seconds(5);
  /// First wait between two looks at NCCL; doubled up to 1 ms while nothing happens.
  Duration poll = std::chrono::microseconds(20);
  Duration idle_poll = std::chrono::milliseconds(50);
};

class Communicator {
 public:
  static result<std::unique_ptr<Communicator>> create(std::shared_ptr<const NcclLibrary> library,
                                                      const CudaDevice& device,
                                                      const CommunicatorOptions& options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Every member must join. Errors name this rank and the epoch; after one, a newer epoch may.
  runtime::pending<void> join(const Membership& membership, Deadline deadline);
  /// `what` names the transfers in messages.
  runtime::pending<void> submit(std::vector<Transfer> transfers, std::string what,
                                Deadline deadline);
  /// Starts to abort whatever is under way; its pendings end with `cause`. Never blocks.
  void abort(Error cause);
  /// Blocks until nothing is under way. kDeadline when the abort has not returned by then.
  result<void> wait_idle(Deadline deadline);

  bool ready() const;
  bool stuck() const;
  std::uint64_t epoch() const;

 private:
  class Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Aborts all of them side by side: one after the other can lock up on each other's device work.
/// kDeadline names the first that is not done.
result<void> abort_all(std::span<Communicator* const> communicators, const Error& cause,
                       Deadline deadline);

}  // namespace troupe::reshard::nccl

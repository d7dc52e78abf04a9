#pragma once

// The control desk of the fake: a shared library that exports the symbols of NCCL and of the CUDA
// runtime that Troupe binds, moves real bytes between ranks of one process, and fails on demand.
//
// Device memory of the fake cannot be read by the host: its addresses are not accessible, so that a
// dereference ends the test. Work on streams is done only when somebody asks for an event.
// **Threads:** any.
// **Invariants:** faults are keyed by NCCL rank and stay until `reset`; what no program may do
// (use after abort, memory freed in use, wrong config) is written into `violations`.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::reshard::nccl::testing {

struct FakeFaults {
  int version = 22809;
  int devices = 256;
  int in_progress_polls = 0;       ///< that each init and each group answer so first
  int abort_ms = 0;                ///< that an abort takes
  std::int64_t delay_queries = 0;  ///< event queries before a ready group runs
};

enum class Fault : int {
  kInitHangs,       ///< the rank's init never takes part; `value` is not used
  kInitCallBlocks,  ///< the call itself does not return before `release`
  kInitFails,       ///< with code `value`, at once
  kInitFailsLater,  ///< with code `value`, by async error
  kErrorNow,        ///< code `value` by async error from now on
  kAsyncError,      ///< code `value` when group `at` is submitted; it never runs
  kGroupHangs,      ///< group `at` never runs and nothing is reported
  kGroupCallFails,  ///< group `at`: GroupEnd answers code `value`
  kCorruptByte,     ///< byte `value` of what group `at` sends first arrives changed
  kCorruptSeal,     ///< byte `value` of the first seal-sized transfer of group `at`
  kShortReceive,    ///< the first receive of group `at` is posted one byte short
  kAbortBlocks,     ///< until `release`
  kEventFails,      ///< event queries of the rank's device answer cuda code `value`
};

struct FakeCounts {
  std::int64_t comms = 0;         ///< alive
  std::int64_t allocations = 0;   ///< alive, device and pinned
  std::int64_t device_bytes = 0;  ///< alive
  std::int64_t groups = 0;        ///< submitted since reset
  std::int64_t transfers = 0;     ///< completed
  std::int64_t bytes = 0;         ///< of these
  std::int64_t aborts = 0;
  std::int64_t aborts_at_once = 0;  ///< most aborts that were inside the call together
};

class FakeDesk {
 public:
  virtual ~FakeDesk() = default;
  virtual void reset(const FakeFaults& faults) = 0;
  virtual void inject(Fault fault, int rank, int at, int value) = 0;
  virtual void clear_faults() = 0;
  /// Lets blocked calls go.
  virtual void release() = 0;
  virtual FakeCounts counts() const = 0;
  virtual std::vector<std::string> violations() const = 0;
  /// What lies in device memory, for the test's eyes only.
  virtual std::vector<std::uint8_t> peek(const void* data, std::size_t bytes) const = 0;
  virtual void poke(void* data, const std::uint8_t* from, std::size_t bytes) = 0;
};

/// Exported as `fake_device_desk`.
using FakeDeskFunction = FakeDesk* (*)();

}  // namespace troupe::reshard::nccl::testing

#pragma once

// `MemoryBook`: where a worker writes down what it keeps on its device.
//
// Two kinds: `DeviceMemory`, the ledger of a device of this process, and `AgentLanes`
// (runtime/cluster/agent_lanes.hpp), which tells the agent that keeps the ledger of the device.
// Ownership: outlives its entries; what the callbacks refer to outlives the entry.
// **Threads:** any. Callbacks run on a thread of the book's choice while the owner has no turn on
// the device, and must not call back into the book.

#include "runtime/device/memory_ledger.hpp"

#include <functional>

namespace troupe::runtime {

/// How to move one entry. An absent callback means there is nothing to do but the bookkeeping.
struct MemoryActions {
  std::function<result<void>()> load;
  std::function<result<void>()> offload;
  std::function<result<void>()> drop;
};

class MemoryBook {
 public:
  virtual ~MemoryBook() = default;
  /// kResourceExhausted with the table of who holds what, kAlreadyExists, kInvalidArgument.
  virtual result<void> add(MemoryEntry entry, MemoryActions actions) = 0;
  virtual result<void> remove(const MemoryKey& key) = 0;               ///< kNotFound
  virtual result<void> resize(const MemoryKey& key, Bytes bytes) = 0;  ///< as MemoryLedger
  virtual result<Bytes> room_in(const Phase& phase) const = 0;         ///< as MemoryLedger
};

}  // namespace troupe::runtime

#pragma once

// The memory ledger of one device with hands: callbacks that really load, offload and drop.
//
// Ownership: holds the callbacks; what they refer to must outlive the entry (remove it first).
// **Threads:** any thread. One phase at a time, which the device's lane provides. Callbacks run on
// the thread that calls `begin`, without the lock, and must not call back into `begin`.
// **Invariants:** those of MemoryLedger; a phase that cannot fit is refused before any callback
// runs; a failed callback leaves the ledger saying what is really where.

#include "runtime/device/lane.hpp"
#include "runtime/device/memory_book.hpp"
#include "runtime/device/memory_ledger.hpp"

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace troupe::runtime {

class DeviceMemory final : public MemoryBook {
 public:
  /// Ends the phase when destroyed. Move-only.
  class PhaseGuard {
   public:
    PhaseGuard(PhaseGuard&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
    PhaseGuard& operator=(PhaseGuard&& other) noexcept;
    ~PhaseGuard() { end(); }
    void end();

   private:
    friend class DeviceMemory;
    explicit PhaseGuard(DeviceMemory* memory) : memory_(memory) {}
    DeviceMemory* memory_;
  };

  DeviceMemory(DeviceId device, Bytes capacity) : ledger_(device, capacity) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  result<void> add(MemoryEntry entry, MemoryActions actions) override;
  result<void> add(MemoryEntry entry) { return add(std::move(entry), {}); }
  result<void> remove(const MemoryKey& key) override;
  result<void> resize(const MemoryKey& key, Bytes bytes) override;

  /// Plans, moves, and starts the phase. Errors: those of MemoryLedger::plan; the error of a
  /// callback, wrapped to name the entry and the phase.
  result<PhaseGuard> begin(const Phase& phase);

  result<Bytes> room_in(const Phase& phase) const override;
  MemoryLedger snapshot() const;  ///< a copy, for status and tests

 private:
  void leave();

  mutable std::mutex mutex_;  // guards ledger_ and actions_
  MemoryLedger ledger_;
  std::map<MemoryKey, MemoryActions> actions_;
};

/// A device as colocated roles see it: its lane and its memory.
struct Device {
  DeviceLane lane;
  DeviceMemory memory;
  Device(DeviceId id, Bytes capacity) : lane({.device = id}), memory(id, capacity) {}
};

/// A turn on the lane with the phase's memory in place; ends the phase, then the turn.
struct DevicePhase {
  DeviceLane::Turn turn;
  DeviceMemory::PhaseGuard memory;
};

/// Waits for the lane, then makes the phase fit. On refusal the lane is free again.
result<DevicePhase> begin_phase(Device& device, const Phase& phase, const std::string& owner,
                                Deadline deadline);

}  // namespace troupe::runtime

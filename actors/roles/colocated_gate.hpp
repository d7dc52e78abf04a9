#pragma once

// One device shared by several roles: a turn in its lane with the phase's memory in place.
//
// A role says once what each of its phases needs; entering a phase drops or offloads what others
// left, or is refused with the table of who holds what.
// **Ownership:** owned by the world; outlives the groups that use it.
// **Threads:** phases and entries are declared before the groups run; turns on engine threads.
// **Invariants:** one phase at a time, in the order of submission.

#include "runtime/device/device_memory.hpp"
#include "runtime/group/lane_gate.hpp"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

class DeviceGate {
 public:
  DeviceGate(DeviceId device, Bytes capacity) : memory_(device, capacity) {}

  runtime::DeviceMemory& memory() { return memory_; }
  runtime::LaneGate& lane() { return lane_; }

 private:
  runtime::OrderedLane lane_;
  runtime::DeviceMemory memory_;
};

/// One role's view of a device: the gate its worker group gets.
class RoleGate final : public runtime::LaneGate {
 public:
  RoleGate(DeviceGate& device, std::string role) : device_(device), role_(std::move(role)) {}

  /// Entries of this role that must be resident in `phase`, by their `what`, and scratch bytes. A
  /// phase that was not declared needs nothing but the turn.
  void declare(const std::string& phase, std::vector<std::string> resident, Bytes scratch = {});

  result<std::unique_ptr<Turn>> reserve(const runtime::LaneRequest& request) override;

 private:
  class MemoryTurn;
  DeviceGate& device_;
  std::string role_;
  std::map<std::string, runtime::Phase> phases_;
};

}  // namespace troupe::actors

#pragma once

// `RankLanes`: how the engine of a rank process takes the turn that its call's ticket stands for.
//
// Ownership: outlives the rank's engine.
// **Threads:** any; `wait` blocks and is for engine threads.

#include "runtime/base/result.hpp"
#include "runtime/group/lane_gate.hpp"
#include "runtime/group/lane_ticket.hpp"

#include <memory>
#include <string>

namespace troupe::runtime {

class RankLanes {
 public:
  virtual ~RankLanes() = default;
  /// Waits until the ticket's turn has come and what `phase` needs is resident. The turn is held
  /// until the returned object is destroyed (its `wait` returns at once). kDeadline names who holds
  /// the lane; kResourceExhausted brings the table of who holds what; after an error the ticket is
  /// over and needs no release.
  virtual result<std::unique_ptr<LaneGate::Turn>> wait(const LaneTicket& ticket,
                                                       const std::string& phase,
                                                       Deadline deadline) = 0;
};

}  // namespace troupe::runtime

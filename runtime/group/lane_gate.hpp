#pragma once

// `LaneGate`: how a rank takes turns on its device with the ranks of other groups.
//
// A place in line is taken when the call is *submitted*, for all ranks at once, and used when the
// engine gets to it. So two groups that share devices have the same order on every device, and
// their collectives cannot lock each other out.
// Ownership: a gate outlives the groups that use it.
// **Threads:** `reserve` on the submitting thread, a turn on the engine thread.
// **Invariants:** strictly first come, first served; destroying a turn, waited for or not, lets
// the next one go.

#include "runtime/base/result.hpp"
#include "runtime/device/lane.hpp"
#include "runtime/group/lane_ticket.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace troupe::runtime {

class LaneGate {
 public:
  class Turn {
   public:
    virtual ~Turn() = default;
    /// Blocks until it is this turn's time; kDeadline names who holds the lane.
    virtual result<void> wait(Deadline deadline) = 0;
    /// Set when another process keeps the lane: then the rank waits there, with this ticket.
    virtual std::optional<LaneTicket> ticket() const { return std::nullopt; }
  };

  virtual ~LaneGate() = default;
  /// Takes the next place in line; never blocks. kResourceExhausted when the line is full.
  virtual result<std::unique_ptr<Turn>> reserve(const LaneRequest& request) = 0;
};

/// A gate of its own over the pure `LaneQueue`.
class OrderedLane final : public LaneGate {
 public:
  explicit OrderedLane(int waiting_max = 4096) : queue_(waiting_max) {}
  result<std::unique_ptr<Turn>> reserve(const LaneRequest& request) override;
  LaneStatus status() const;

 private:
  class Place;
  mutable std::mutex mutex_;  // guards queue_
  std::condition_variable changed_;
  LaneQueue queue_;
};

}  // namespace troupe::runtime

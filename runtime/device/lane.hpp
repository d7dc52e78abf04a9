#pragma once

// One ordered lane per device: colocated roles take turns, first come first served.
//
// `LaneQueue` is the pure core (who holds, who waits); `DeviceLane` is the thin shell that blocks
// threads. A turn is RAII: destroying it hands the device to the next in line.
// Ownership: the lane outlives its turns.
// **Threads:** `DeviceLane` may be used from any thread; `LaneQueue` belongs to one owner.
// **Invariants:** at most one holder; strictly FIFO; every wait has a deadline; at most
// `waiting_max` wait.

#include "runtime/base/clock.hpp"
#include "runtime/base/ids.hpp"
#include "runtime/base/result.hpp"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Who asks for the device, and for what.
struct LaneRequest {
  std::string phase;  ///< e.g. `rollout`, `train`
  std::string owner;  ///< e.g. `policy rank 1`
  bool operator==(const LaneRequest&) const = default;
};

struct LaneEntry {
  LaneRequest request;
  TimePoint since;  ///< waiting or holding since
  std::uint64_t ticket = 0;
};

struct LaneStatus {
  std::optional<LaneEntry> holder;
  std::vector<LaneEntry> waiting;  ///< in the order they will be served
  std::int64_t turns_taken = 0;
};

/// Pure FIFO core. Tickets count from 1 and are never reused.
class LaneQueue {
 public:
  explicit LaneQueue(int waiting_max) : waiting_max_(waiting_max) {}

  /// Joins the line; becomes the holder at once when the lane is free. kResourceExhausted when
  /// `waiting_max` already wait.
  result<std::uint64_t> enter(LaneRequest request, TimePoint now);
  /// The holder leaves, or a waiter gives up. Returns the ticket that holds now because of it.
  std::optional<std::uint64_t> leave(std::uint64_t ticket, TimePoint now);
  bool holds(std::uint64_t ticket) const { return holder_ && holder_->ticket == ticket; }
  LaneStatus status() const;

 private:
  std::optional<LaneEntry> holder_;
  std::deque<LaneEntry> waiting_;
  int waiting_max_;
  std::uint64_t last_ticket_ = 0;
  std::int64_t turns_taken_ = 0;
};

class DeviceLane {
 public:
  struct Options {
    DeviceId device{0};
    int waiting_max = 1024;
  };

  /// Holds the device until destroyed or released. Move-only.
  class Turn {
   public:
    Turn(Turn&& other) noexcept
        : lane_(std::exchange(other.lane_, nullptr)), ticket_(other.ticket_) {}
    Turn& operator=(Turn&& other) noexcept;
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { release(); }
    void release();  ///< hands the device on; a second call does nothing

   private:
    friend class DeviceLane;
    Turn(DeviceLane* lane, std::uint64_t ticket) : lane_(lane), ticket_(ticket) {}
    DeviceLane* lane_;
    std::uint64_t ticket_;
  };

  explicit DeviceLane(Options options) : options_(options), queue_(options.waiting_max) {}
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  /// Waits for its turn. kDeadline names who holds the lane, in which phase and since when;
  /// kResourceExhausted when too many wait; the given error after `close`.
  result<Turn> acquire(LaneRequest request, Deadline deadline);
  /// Waiters and later requests fail with `reason`; the present turn goes on.
  void close(Error reason);
  LaneStatus status() const;
  DeviceId device() const { return options_.device; }

 private:
  void leave(std::uint64_t ticket);

  const Options options_;
  mutable std::mutex mutex_;  // guards queue_ and closed_
  std::condition_variable turn_changed_;
  LaneQueue queue_;
  std::optional<Error> closed_;
};

/// Takes the turn on several lanes, in the order of device ids so that two callers cannot lock
/// each other out; all or none. Lanes must be distinct.
result<std::vector<DeviceLane::Turn>> acquire_all(std::span<DeviceLane* const> lanes,
                                                  const LaneRequest& request, Deadline deadline);

}  // namespace troupe::runtime

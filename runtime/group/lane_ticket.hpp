#pragma once

// `LaneTicket`: a place in the line of a device that another process keeps.
//
// The controller numbers the calls of all groups on a device 1, 2, 3 … when it submits them; the
// number travels in the call frame; the rank shows it to its agent, which gives turns strictly in
// that order. So two groups that share devices have one order on every device of every host.
// **Threads:** a value type.
// **Invariants:** a number is given once per lane and ends once: released by the rank that had the
// turn, or skipped because nobody will use it.

#include <compare>
#include <cstdint>
#include <string>

namespace troupe::runtime {

struct LaneTicket {
  std::string lane;          ///< `job/device`, the device as the agent of its node counts it
  std::uint64_t number = 0;  ///< from 1
  /// All tickets below this one are over, as the controller knows: an agent that has lost track (it
  /// was restarted, or had given the job up) goes on from here.
  std::uint64_t floor = 0;
  auto operator<=>(const LaneTicket&) const = default;
};

/// `job7/0`: the lane of device 0 of a node, as seen by one job.
inline std::string lane_name(const std::string& job, int device) {
  return job + "/" + std::to_string(device);
}

}  // namespace troupe::runtime

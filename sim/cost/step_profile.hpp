#pragma once

// Measured decode steps of an engine, in place of what the cost model says of them.
//
// A point is the time of one step of so many sequences with short contexts; what attention over the
// cache adds is the model's. Between points linear; below the first as the first; beyond the last
// on through the last two.
// **Threads:** a value type.
// **Invariants:** sequences rise, times are positive and do not fall.

#include "runtime/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

struct StepProfile {
  struct Point {
    std::int64_t sequences = 0;
    double step_s = 0;
  };
  std::vector<Point> points{};  ///< empty: nothing was measured

  bool empty() const { return points.empty(); }
  /// Seconds of a step; CHECKs that something was measured.
  double step_s(std::int64_t sequences) const;
};

/// Lines of `sequences,seconds`; a first line that is no numbers is a heading. kNotFound; kCorrupt
/// naming file, line and value, also for sequences that do not rise or times that fall.
result<StepProfile> read_step_profile(const std::string& file);
result<StepProfile> parse_step_profile(std::string_view text, const std::string& source);

}  // namespace troupe::sim

#pragma once

// Who worked when: spans of roles on pools, and what follows from them.
//
// **Threads:** one.

#include "runtime/base/clock.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace troupe::sim {

struct PhaseSpan {
  std::string role{};
  std::string phase{};
  std::size_t pool = 0;
  int first_device = 0;
  int devices = 0;
  TimePoint begin{};
  TimePoint end{};
};

class PhaseLog {
 public:
  void add(PhaseSpan span) { spans_.push_back(std::move(span)); }
  const std::vector<PhaseSpan>& spans() const { return spans_; }

  /// Share of device time of `pool` (of `devices`) between `begin` and `end` in which no span lies.
  double idle_share(std::size_t pool, int devices, TimePoint begin, TimePoint end) const;
  void clear() { spans_.clear(); }

 private:
  std::vector<PhaseSpan> spans_;
};

}  // namespace troupe::sim

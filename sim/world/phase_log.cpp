#include "sim/world/phase_log.hpp"

#include <algorithm>
#include <utility>

namespace troupe::sim {

double PhaseLog::idle_share(std::size_t pool, int devices, TimePoint begin, TimePoint end) const {
  if (devices < 1 || end <= begin) return 0;
  double busy = 0;
  for (int device = 0; device < devices; ++device) {
    std::vector<std::pair<TimePoint, TimePoint>> used;
    for (const PhaseSpan& span : spans_) {
      const bool here = span.pool == pool && span.first_device <= device &&
                        device < span.first_device + span.devices;
      if (here && span.end > begin && span.begin < end)
        used.emplace_back(std::max(span.begin, begin), std::min(span.end, end));
    }
    std::sort(used.begin(), used.end());
    TimePoint covered = begin;
    for (const auto& [from, to] : used) {
      if (to <= covered) continue;
      busy += seconds(to - std::max(from, covered));
      covered = to;
    }
  }
  return 1 - busy / (seconds(end - begin) * devices);
}

}  // namespace troupe::sim

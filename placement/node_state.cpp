#include "placement/node_state.hpp"

#include "placement/resources.hpp"

#include <algorithm>

namespace troupe::placement {

NodeSummary summary_of(const NodeFree& free, bool accepts) {
  NodeSummary summary;
  for (const std::int64_t cpu : free.cpu) summary.cpu += cpu;
  summary.memory = free.memory;
  for (const std::int32_t units : free.devices) {
    summary.gpu_units += units;
    summary.largest_share = std::max(summary.largest_share, units);
    if (units == Amount::kUnitsPerOne) ++summary.whole_devices;
  }
  summary.accepts = accepts;
  summary.has_devices = !free.devices.empty();
  return summary;
}

}  // namespace troupe::placement

#include "sim/cost/device_spec.hpp"

#include <cmath>
#include <utility>

namespace troupe::sim {

result<void> DeviceSpec::validate() const {
  const std::pair<const char*, double> positive[] = {
      {"tflops", flops},       {"hbm_gb", memory_bytes}, {"hbm_tbs", memory_rate},
      {"pcie_gbs", pcie_rate}, {"nic_gbits", nic_rate},  {"per_node", per_node}};
  for (const auto& [field, value] : positive) {
    if (!(value > 0) || !std::isfinite(value))
      return fail(ErrorCode::kInvalidArgument, "device {}: {} is {}, wanted a positive number",
                  name, field, value);
  }
  // GiB that are reported of GB that are sold.
  if (!(reported_bytes >= 0 && reported_bytes <= 1.1 * memory_bytes))
    return fail(ErrorCode::kInvalidArgument,
                "device {}: reports {:.1f} GB of its {:.1f}, wanted 0 (as many) to {:.1f}", name,
                reported_bytes / 1e9, memory_bytes / 1e9, 1.1 * memory_bytes / 1e9);
  if (nvlink_rate < 0 || price_per_hour < 0)
    return fail(ErrorCode::kInvalidArgument,
                "device {}: nvlink {} B/s, price {}, wanted at least 0", name, nvlink_rate,
                price_per_hour);
  if (nvlink_rate > 0 && nvlink_domain < per_node)
    return fail(ErrorCode::kInvalidArgument,
                "device {}: an NVLink domain of {} devices is smaller than its node of {}", name,
                nvlink_domain, per_node);
  if (generation != "a100" && generation != "h100")
    return fail(ErrorCode::kInvalidArgument, "device {}: generation {}, wanted a100 or h100", name,
                generation);
  return {};
}

}  // namespace troupe::sim

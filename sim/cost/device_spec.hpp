#pragma once

// An accelerator as the cost formulas see it.
//
// **Threads:** a value type.

#include "runtime/base/result.hpp"

#include <string>

namespace troupe::sim {

/// Bounds of what is simulated and searched: devices of a cluster, and samples of one step.
inline constexpr std::int64_t kSimulatedDevicesMax = 65'536;
inline constexpr std::int64_t kSimulatedSamplesMax = std::int64_t{1} << 20;

/// One accelerator and the node that it comes in. Rates are per second.
struct DeviceSpec {
  std::string name{};
  double flops = 0;           ///< dense bf16
  double memory_bytes = 0;    ///< HBM
  double reported_bytes = 0;  ///< that CUDA says there are, and engines take a share of; 0: as many
  double memory_rate = 0;     ///< bytes/s of HBM
  double nvlink_rate = 0;     ///< bytes/s in each direction; 0: none
  double pcie_rate = 0;       ///< bytes/s in each direction
  double nic_rate = 0;        ///< bytes/s of a node in each direction
  int per_node = 8;           ///< devices
  int nvlink_domain = 0;  ///< devices that NVLink joins; at least a node's, unless there is none
  double price_per_hour = 0;  ///< of one device, US dollars
  std::string generation{};   ///< whose efficiency priors it takes: `a100` or `h100`

  /// kInvalidArgument naming device, field and value.
  result<void> validate() const;
};

}  // namespace troupe::sim

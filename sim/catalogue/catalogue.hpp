#pragma once

// Models and hardware by name: data files with their sources, built in and users' own.
//
// **Threads:** immutable once read.
// **Invariants:** every entry was checked when it was read; names are those of the files.

#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"
#include "sim/cost/model_spec.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::sim {

/// One accelerator and the node that it comes in. Rates are per second.
struct DeviceSpec {
  std::string name{};
  double flops = 0;         ///< dense bf16
  double memory_bytes = 0;  ///< HBM
  double memory_rate = 0;   ///< bytes/s of HBM
  double nvlink_rate = 0;   ///< bytes/s in each direction; 0: none
  double pcie_rate = 0;     ///< bytes/s in each direction
  double nic_rate = 0;      ///< bytes/s of a node in each direction
  int per_node = 8;         ///< devices
  int nvlink_domain = 0;    ///< devices that NVLink joins; at least a node's, unless there is none
  double price_per_hour = 0;  ///< of one device, US dollars
  std::string generation{};   ///< whose efficiency priors it takes: `a100` or `h100`

  /// kInvalidArgument naming device, field and value.
  result<void> validate() const;
};

class Catalogue {
 public:
  /// The files of this folder.
  static const Catalogue& built_in();
  /// Adds entries of `yaml` (sections `models`, `devices`); those of the same name are replaced.
  /// kConfig naming `source`, entry and field.
  result<void> add(std::string_view yaml, const std::string& source);

  /// kNotFound with the nearest name.
  result<ModelSpec> model(const std::string& name) const;
  result<DeviceSpec> device(const std::string& name) const;
  std::vector<std::string> models() const;
  std::vector<std::string> devices() const;

 private:
  std::map<std::string, ModelSpec> models_;
  std::map<std::string, DeviceSpec> devices_;
};

}  // namespace troupe::sim

#pragma once

// `HostInventory`: what this machine has that ranks can use.
//
// Cores that this process may run on (affinity mask, cgroup cpuset) with their sockets, CPU time
// and memory under cgroup v1 and v2 limits, GPUs through NVML where its library is present, network
// cards with their NUMA node. Options and a topology file override what was found; `--devices N`
// declares simulated devices, which are labelled so. Plain data: apps turn it into placement's
// description of a node.
// **Threads:** discovery blocks on files; any thread.
// **Invariants:** what is absent is absent, never guessed; every number that came from a limit is
// ≤ what the hardware has.

#include "runtime/base/result.hpp"
#include "runtime/base/units.hpp"
#include "runtime/wire/wire.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace troupe::runtime {

struct HostCore {
  int core = 0;       ///< number as in sched_setaffinity
  int socket = 0;     ///< physical package
  int numa_node = 0;  ///< memory node
  static constexpr auto fields() {
    return std::tuple{field("core", &HostCore::core), field("socket", &HostCore::socket),
                      field("numa_node", &HostCore::numa_node)};
  }
  bool operator==(const HostCore&) const = default;
};

struct HostDevice {
  int index = 0;      ///< on this host, from 0
  std::string model;  ///< `NVIDIA H100 80GB HBM3`, or `simulated`
  /// What CUDA_VISIBLE_DEVICES must say to select it: its UUID; empty for simulated ones.
  std::string uuid;
  std::string pci_address;
  std::int64_t memory_bytes = 0;
  int socket = -1;     ///< -1: unknown
  int numa_node = -1;  ///< -1: unknown
  std::string fabric;  ///< name of its NVLink domain within or across hosts; empty: none
  bool simulated = false;
  static constexpr auto fields() {
    return std::tuple{field("index", &HostDevice::index),
                      field("model", &HostDevice::model),
                      field("uuid", &HostDevice::uuid),
                      field("pci_address", &HostDevice::pci_address),
                      field("memory_bytes", &HostDevice::memory_bytes),
                      field("socket", &HostDevice::socket),
                      field("numa_node", &HostDevice::numa_node),
                      field("fabric", &HostDevice::fabric),
                      field("simulated", &HostDevice::simulated)};
  }
  bool operator==(const HostDevice&) const = default;
};

struct HostNic {
  std::string name;
  std::string kind;                      ///< `ethernet`, `infiniband`
  int numa_node = -1;                    ///< -1: unknown
  std::int64_t megabits_per_second = 0;  ///< 0: unknown
  static constexpr auto fields() {
    return std::tuple{field("name", &HostNic::name), field("kind", &HostNic::kind),
                      field("numa_node", &HostNic::numa_node),
                      field("megabits_per_second", &HostNic::megabits_per_second)};
  }
  bool operator==(const HostNic&) const = default;
};

struct HostInventory {
  std::string host;
  double cpus = 0;  ///< CPU time that may be used; ≤ cores.size() unless overridden
  std::vector<HostCore> cores;
  std::int64_t memory_bytes = 0;
  std::vector<HostDevice> devices;
  std::vector<HostNic> nics;
  std::string rack;  ///< from the topology file or label `rack`; empty: unknown
  std::map<std::string, std::string> labels;
  static constexpr auto fields() {
    return std::tuple{field("host", &HostInventory::host),
                      field("cpus", &HostInventory::cpus),
                      field("cores", &HostInventory::cores),
                      field("memory_bytes", &HostInventory::memory_bytes),
                      field("devices", &HostInventory::devices),
                      field("nics", &HostInventory::nics),
                      field("rack", &HostInventory::rack),
                      field("labels", &HostInventory::labels)};
  }
  bool operator==(const HostInventory&) const = default;
};

struct InventoryOptions {
  std::optional<int> devices_simulated;  ///< this many instead of what NVML says
  Bytes simulated_device_memory = gibibytes(16);
  std::optional<double> cpus;
  std::optional<Bytes> memory;
  std::map<std::string, std::string> labels;
  std::string topology_file;  ///< JSON, docs/node_agent.md; empty: none
  /// CUDA_VISIBLE_DEVICES of this process limits what NVML shows; from the environment by default.
  std::optional<std::string> visible_devices;
  std::string nvml_library = "libnvidia-ml.so.1";
  std::string sysfs_folder = "/sys";
  std::string proc_folder = "/proc";
};

/// `0-3,8` → {0, 1, 2, 3, 8}, the kernel's list format; kCorrupt for anything else.
result<std::vector<int>> parse_cpu_list(const std::string& text);

/// GPUs as NVML reports them; empty when there is no NVML library or no driver.
result<std::vector<HostDevice>> discover_devices(const InventoryOptions& options);

result<HostInventory> discover_host(const InventoryOptions& options = {});

/// One line for logs: `2 cores, 2.0 cpus, 23.4 GiB, 4 simulated devices, 1 network card`.
std::string to_text(const HostInventory& inventory);

}  // namespace troupe::runtime

#include "runtime/cluster/host_inventory.hpp"

#include "runtime/cluster/cgroup.hpp"
#include "runtime/cluster/small_file.hpp"
#include "runtime/cluster/topology_file.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <sstream>
#include <utility>

namespace troupe::runtime {
namespace {

constexpr int kCoresMax = 8192;  // of CPU_ALLOC; the largest machines have some 2,000

/// Numbers of a folder's entries `prefixN`, ascending.
std::vector<int> numbered_entries(const std::string& folder, const std::string& prefix) {
  std::set<int> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const auto number = parse_whole(std::string_view(name).substr(prefix.size()));
    if (number && *number >= 0 && *number < kCoresMax) numbers.insert(static_cast<int>(*number));
  }
  return {numbers.begin(), numbers.end()};
}

int number_or(const std::string& path, int otherwise) {
  const auto number = read_number_file(path);
  return number && *number >= 0 ? static_cast<int>(*number) : otherwise;
}

/// Cores that this process may run on; empty when the kernel does not say.
std::set<int> allowed_cores() {
  std::set<int> allowed;
  const std::size_t bytes = CPU_ALLOC_SIZE(kCoresMax);
  cpu_set_t* mask = CPU_ALLOC(kCoresMax);
  if (mask == nullptr) return allowed;
  CPU_ZERO_S(bytes, mask);
  if (::sched_getaffinity(0, bytes, mask) == 0) {
    for (int core = 0; core < kCoresMax; ++core) {
      if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes, mask)) allowed.insert(core);
    }
  }
  CPU_FREE(mask);
  return allowed;
}

std::vector<HostCore> discover_cores(const InventoryOptions& options, const Cgroups& cgroups) {
  std::set<int> allowed = allowed_cores();
  if (const auto cpuset = cgroups.cpuset()) {
    const std::set<int> also(cpuset->begin(), cpuset->end());
    std::erase_if(allowed, [&also](int core) { return !also.contains(core); });
  }
  const std::string folder = options.sysfs_folder + "/devices/system/cpu/cpu";
  std::vector<HostCore> cores;
  for (const int core : allowed) {
    const std::string here = folder + std::to_string(core);
    HostCore found{.core = core};
    found.socket = number_or(here + "/topology/physical_package_id", 0);
    const auto nodes = numbered_entries(here, "node");
    if (!nodes.empty()) found.numa_node = nodes.front();
    cores.push_back(found);
  }
  return cores;
}

std::int64_t discover_memory(const InventoryOptions& options, const Cgroups& cgroups) {
  std::int64_t bytes = 0;
  const std::string text = read_small_file(options.proc_folder + "/meminfo").value_or("");
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("MemTotal:")) continue;
    const auto begin = line.find_first_of("0123456789");
    const auto end = line.find(' ', begin);
    if (begin == std::string::npos) break;
    bytes = parse_whole(std::string_view(line).substr(begin, end - begin)).value_or(0) * 1024;
    break;
  }
  if (const auto limit = cgroups.memory_max(); limit && (bytes == 0 || limit->value < bytes))
    bytes = limit->value;
  return bytes;
}

std::vector<HostNic> discover_nics(const InventoryOptions& options) {
  constexpr std::int64_t kEthernet = 1;     // ARPHRD_ETHER
  constexpr std::int64_t kInfiniband = 32;  // ARPHRD_INFINIBAND
  std::vector<HostNic> nics;
  std::error_code error;
  const std::string folder = options.sysfs_folder + "/class/net";
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string here = at->path().string();
    const auto type = read_number_file(here + "/type");
    // Cards have a device; bridges, tunnels and loopback do not.
    if (!std::filesystem::exists(here + "/device") || !type) continue;
    if (*type != kEthernet && *type != kInfiniband) continue;
    HostNic nic{.name = at->path().filename().string(),
                .kind = *type == kEthernet ? "ethernet" : "infiniband"};
    nic.numa_node = number_or(here + "/device/numa_node", -1);
    nic.megabits_per_second =
        std::max<std::int64_t>(read_number_file(here + "/speed").value_or(0), 0);
    nics.push_back(std::move(nic));
  }
  std::sort(nics.begin(), nics.end(),
            [](const HostNic& a, const HostNic& b) { return a.name < b.name; });
  return nics;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

/// The socket whose cores have that memory node; -1 when none has.
int socket_of_numa(const std::vector<HostCore>& cores, int numa_node) {
  for (const HostCore& core : cores) {
    if (core.numa_node == numa_node && numa_node >= 0) return core.socket;
  }
  return -1;
}

/// Evenly over the sockets, in order, as boards are built.
std::vector<HostDevice> simulated_devices(const InventoryOptions& options,
                                          const std::vector<HostCore>& cores) {
  std::set<int> sockets;
  for (const HostCore& core : cores) sockets.insert(core.socket);
  if (sockets.empty()) sockets.insert(0);
  std::vector<HostDevice> devices;
  const auto count = static_cast<std::size_t>(*options.devices_simulated);
  for (std::size_t i = 0; i < count; ++i) {
    HostDevice device;
    device.index = static_cast<int>(i);
    device.model = "simulated";
    device.memory_bytes = options.simulated_device_memory.value;
    device.socket =
        *std::next(sockets.begin(), static_cast<std::ptrdiff_t>(i * sockets.size() / count));
    device.simulated = true;
    devices.push_back(std::move(device));
  }
  return devices;
}

result<void> check(const InventoryOptions& options) {
  if (options.devices_simulated &&
      (*options.devices_simulated < 0 || *options.devices_simulated > 1024))
    return fail(ErrorCode::kInvalidArgument, "devices: {}, wanted 0..1024",
                *options.devices_simulated);
  if (options.cpus && !(*options.cpus > 0 && *options.cpus <= kCoresMax))
    return fail(ErrorCode::kInvalidArgument, "cpus: {}, wanted more than 0 and at most {}",
                *options.cpus, kCoresMax);
  if (options.memory && options.memory->value <= 0)
    return fail(ErrorCode::kInvalidArgument, "memory: {} bytes", options.memory->value);
  for (const auto& [name, value] : options.labels) {
    if (name.empty() || name.size() > 128 || value.size() > 256)
      return fail(ErrorCode::kInvalidArgument,
                  "label '{}': wanted a name of 1..128 and a value of at most 256 bytes", name);
  }
  return {};
}

}  // namespace

result<std::vector<int>> parse_cpu_list(const std::string& text) {
  std::vector<int> cores;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const auto dash = part.find('-');
    const auto low = parse_whole(std::string_view(part).substr(0, dash));
    const auto high =
        dash == std::string::npos ? low : parse_whole(std::string_view(part).substr(dash + 1));
    if (!low || !high || *low < 0 || *high < *low || *high >= kCoresMax)
      return fail(ErrorCode::kCorrupt, "core list '{}': '{}' is no range", text, part);
    for (std::int64_t core = *low; core <= *high; ++core) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

result<HostInventory> discover_host(const InventoryOptions& options) {
  TROUPE_TRY_VOID(check(options));
  const Cgroups cgroups = Cgroups::of_this_process(options.proc_folder);
  HostInventory host;
  host.host = host_name();
  host.cores = discover_cores(options, cgroups);
  host.cpus = static_cast<double>(host.cores.size());
  if (const auto limit = cgroups.cpus_max()) host.cpus = std::min(host.cpus, *limit);
  host.memory_bytes = discover_memory(options, cgroups);
  host.nics = discover_nics(options);
  if (options.devices_simulated) {
    host.devices = simulated_devices(options, host.cores);
  } else {
    TROUPE_TRY(host.devices, discover_devices(options));
    for (HostDevice& device : host.devices)
      device.socket = socket_of_numa(host.cores, device.numa_node);
  }
  if (!options.topology_file.empty())
    TROUPE_TRY_VOID(apply_topology_file(options.topology_file, host));
  if (options.cpus) host.cpus = *options.cpus;
  if (options.memory) host.memory_bytes = options.memory->value;
  for (const auto& [name, value] : options.labels) host.labels[name] = value;
  if (const auto rack = host.labels.find("rack"); rack != host.labels.end())
    host.rack = rack->second;
  return host;
}

std::string to_text(const HostInventory& inventory) {
  const auto simulated = std::count_if(inventory.devices.begin(), inventory.devices.end(),
                                       [](const HostDevice& device) { return device.simulated; });
  const std::string kind = inventory.devices.empty() || simulated == 0 ? "" : "simulated ";
  const auto plural = [](std::size_t count) { return count == 1 ? "" : "s"; };
  return fmt::format("{} core{}, {:.1f} cpus, {}, {} {}device{}, {} network card{}",
                     inventory.cores.size(), plural(inventory.cores.size()), inventory.cpus,
                     to_string(Bytes{inventory.memory_bytes}), inventory.devices.size(), kind,
                     plural(inventory.devices.size()), inventory.nics.size(),
                     plural(inventory.nics.size()));
}

}  // namespace troupe::runtime

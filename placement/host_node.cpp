#include "placement/host_node.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace troupe::placement {

using runtime::HostCore;
using runtime::HostDevice;
using runtime::HostInventory;

namespace {

std::vector<HostCore> ordered_cores(const HostInventory& host) {
  std::vector<HostCore> cores = host.cores;
  std::sort(cores.begin(), cores.end(), [](const HostCore& a, const HostCore& b) {
    return std::tie(a.socket, a.core) < std::tie(b.socket, b.core);
  });
  return cores;
}

/// Number of the socket among those of the host: 0, 1, …
std::map<int, std::int32_t> socket_numbers(const HostInventory& host) {
  std::set<int> sockets;
  for (const HostCore& core : host.cores) sockets.insert(core.socket);
  std::map<int, std::int32_t> numbers;
  for (const int socket : sockets)
    numbers.emplace(socket, static_cast<std::int32_t>(numbers.size()));
  return numbers;
}

/// A node's sockets have equally many cores; a host's need not, when its cores are limited. Then
/// the node has one socket, which promises nothing about the distance of its cores.
bool equal_sockets(const HostInventory& host) {
  std::map<int, int> cores;
  for (const HostCore& core : host.cores) ++cores[core.socket];
  return std::all_of(cores.begin(), cores.end(),
                     [&](const auto& entry) { return entry.second == cores.begin()->second; });
}

std::string nearest_nic(const HostInventory& host, const HostDevice& device) {
  const auto near = std::find_if(host.nics.begin(), host.nics.end(), [&](const auto& nic) {
    return nic.numa_node >= 0 && nic.numa_node == device.numa_node;
  });
  if (near != host.nics.end()) return near->name;
  return host.nics.size() == 1 ? host.nics.front().name : "";
}

}  // namespace

result<NodeSpec> node_of_host(const HostInventory& host, const std::string& name) {
  NodeSpec node;
  node.name = name;
  node.rack = host.rack;
  const auto sockets = socket_numbers(host);
  const auto claimed = static_cast<std::int32_t>(std::floor(host.cpus));
  node.cores = std::max(1, claimed);
  const bool whole = claimed == static_cast<std::int32_t>(host.cores.size());
  const bool split = whole && sockets.size() > 1 && equal_sockets(host);
  if (split) node.sockets = static_cast<std::int32_t>(sockets.size());
  for (const HostDevice& device : host.devices) {
    DeviceSpec spec;
    const auto socket = sockets.find(device.socket);
    if (split && socket != sockets.end()) spec.socket = socket->second;
    spec.nic = nearest_nic(host, device);
    node.devices.push_back(std::move(spec));
    if (node.domain.empty()) node.domain = device.fabric;
  }
  node.memory = Bytes{host.memory_bytes};
  for (const auto& [label, value] : host.labels) node.labels.insert({label, value});
  TROUPE_TRY_VOID(validate(node));
  return node;
}

runtime::RankPlace rank_place_on(const HostInventory& host, const BundlePlacement& placement) {
  runtime::RankPlace place;
  const auto cores = ordered_cores(host);
  for (const CoreShare& share : placement.cores) {
    const auto index = static_cast<std::size_t>(share.core);
    if (index >= cores.size()) {
      place.cores.clear();
      break;
    }
    place.cores.push_back(cores[index].core);
  }
  for (const DeviceShare& share : placement.devices) {
    const auto index = static_cast<std::size_t>(share.device);
    if (index >= host.devices.size()) continue;  // the node's devices are the host's
    place.devices.push_back(host.devices[index].index);
    if (!host.devices[index].simulated) place.visible.push_back(host.devices[index].uuid);
  }
  if (placement.memory.value > 0) place.memory_max = placement.memory;
  return place;
}

}  // namespace troupe::placement

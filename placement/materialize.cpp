#include "placement/materialize.hpp"

#include "runtime/base/index.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace troupe::placement {
namespace {

using Quota = std::vector<std::pair<std::int32_t, std::int64_t>>;

/// First core of a socket, and one past its last.
std::pair<std::int32_t, std::int32_t> cores_of(const NodeSpec& node, std::int32_t socket) {
  const std::int32_t each = node.cores / node.sockets;
  const std::int32_t longer = node.cores % node.sockets;
  const std::int32_t begin = socket * each + std::min(socket, longer);
  return {begin, begin + each + (socket < longer ? 1 : 0)};
}

class CoreTaker {
 public:
  explicit CoreTaker(std::vector<std::int32_t>& free) : free_(free) {}

  /// Wholly free cores of [begin, end), a run without gaps when there is one.
  std::int64_t take_whole(std::pair<std::int32_t, std::int32_t> cores, std::int64_t count) {
    std::int32_t run = 0;
    std::int32_t start = cores.first;
    for (std::int32_t core = cores.first; core < cores.second && run < count; ++core) {
      run = free_[index(core)] == kOneDevice ? run + 1 : 0;
      if (run == count) start = core + 1 - run;
    }
    std::int64_t taken = 0;
    for (std::int32_t core = start; core < cores.second && taken < count; ++core) {
      if (free_[index(core)] != kOneDevice) continue;
      take(core, kOneDevice);
      ++taken;
    }
    return taken * kOneDevice;
  }
  /// `units` < one of the core that they fill best.
  bool take_shared(std::pair<std::int32_t, std::int32_t> cores, std::int32_t units) {
    std::int32_t best = -1;
    for (std::int32_t core = cores.first; core < cores.second; ++core) {
      const std::int32_t room = free_[index(core)];
      if (room >= units && (best < 0 || room < free_[index(best)])) best = core;
    }
    if (best >= 0) take(best, units);
    return best >= 0;
  }
  /// Whatever is left, in order.
  std::int64_t take_any(std::pair<std::int32_t, std::int32_t> cores, std::int64_t units) {
    std::int64_t taken = 0;
    for (std::int32_t core = cores.first; core < cores.second && taken < units; ++core) {
      const auto part =
          static_cast<std::int32_t>(std::min<std::int64_t>(free_[index(core)], units - taken));
      if (part > 0) take(core, part);
      taken += part;
    }
    return taken;
  }
  std::vector<CoreShare> shares() {
    std::vector<CoreShare> out;
    for (const auto& [core, units] : taken_) out.push_back({core, Amount{units}});
    return out;
  }

 private:
  void take(std::int32_t core, std::int32_t units) {
    free_[index(core)] -= units;
    if (!taken_.empty() && taken_.back().first == core) {
      taken_.back().second += units;
    } else {
      taken_.emplace_back(core, units);
      sorted_ = sorted_ && (taken_.size() < 2 || taken_[taken_.size() - 2].first < core);
    }
    if (!sorted_) restore_order();
  }
  void restore_order() {
    std::map<std::int32_t, std::int32_t> sums;
    for (const auto& [core, units] : taken_) sums[core] += units;
    taken_.assign(sums.begin(), sums.end());
    sorted_ = true;
  }

  std::vector<std::int32_t>& free_;
  std::vector<std::pair<std::int32_t, std::int32_t>> taken_;
  bool sorted_ = true;
};

/// Sockets of the devices with the share of cores that each brings, then the other sockets.
Quota near_devices(const NodeSpec& node, const Given& given, std::int64_t units) {
  std::map<std::int32_t, std::int64_t> devices;
  for (const std::int32_t device : given.devices) ++devices[node.devices[index(device)].socket];
  Quota quota;
  const auto total = static_cast<std::int64_t>(given.devices.size());
  for (const auto& [socket, count] : devices) {
    // Whole cores per socket; what rounding leaves goes to the first with room.
    const std::int64_t share = units / kOneDevice * count / total * kOneDevice;
    quota.emplace_back(socket, devices.size() == 1 ? units : share);
  }
  for (std::int32_t socket = 0; socket < node.sockets; ++socket) {
    if (!devices.contains(socket)) quota.emplace_back(socket, 0);
  }
  return quota;
}

/// Without devices: the socket that the cores fill best, else the ones with most room first.
Quota fullest_socket(const NodeSpec& node, const std::vector<std::int32_t>& free,
                     std::int64_t units) {
  std::vector<std::pair<std::int64_t, std::int32_t>> rooms;
  for (std::int32_t socket = 0; socket < node.sockets; ++socket) {
    const auto [begin, end] = cores_of(node, socket);
    std::int64_t room = 0;
    for (std::int32_t core = begin; core < end; ++core) room += free[index(core)];
    rooms.emplace_back(room, socket);
  }
  std::sort(rooms.begin(), rooms.end(), [units](const auto& a, const auto& b) {
    const bool a_fits = a.first >= units;
    const bool b_fits = b.first >= units;
    if (a_fits != b_fits) return a_fits;
    if (a.first != b.first) return a_fits ? a.first < b.first : a.first > b.first;
    return a.second < b.second;
  });
  Quota quota;
  for (const auto& [room, socket] : rooms) quota.emplace_back(socket, units);
  return quota;
}

BundlePlacement make_real(const NodeState& node, const GroupRequest& request, std::int32_t bundle,
                          const Demand& demand, const Given& given,
                          std::vector<std::int32_t>& free_cores) {
  BundlePlacement placement;
  placement.bundle = bundle;
  placement.node = node.id;
  placement.node_name = node.spec.name;
  const Amount share =
      demand.whole > 0 ? Amount::whole(1) : Amount{static_cast<std::int64_t>(demand.fraction)};
  for (const std::int32_t device : given.devices) placement.devices.push_back({device, share});
  if (demand.cpu > 0) {
    Quota quota;
    if (given.socket >= 0) {
      quota.emplace_back(given.socket, demand.cpu);
    } else if (given.devices.empty()) {
      quota = fullest_socket(node.spec, free_cores, demand.cpu);
    } else {
      quota = near_devices(node.spec, given, demand.cpu);
    }
    placement.cores = choose_cores(node.spec, free_cores, demand.cpu, quota);
  }
  if (given.socket >= 0) {
    placement.socket = given.socket;
  } else if (!given.devices.empty()) {
    placement.socket = node.spec.devices[index(given.devices.front())].socket;
  } else if (!placement.cores.empty()) {
    placement.socket = socket_of_core(node.spec, placement.cores.front().core);
  }
  if (!given.devices.empty()) placement.nic = node.spec.devices[index(given.devices[0])].nic;
  placement.memory = Bytes{demand.memory};
  if (!demand.named.empty()) {
    placement.named = request.bundles[index(bundle)].resources.named;
    std::erase_if(placement.named, [](const auto& entry) { return entry.second.units == 0; });
  }
  return placement;
}

std::vector<std::int32_t> cores_in(const NodeState& node, View view) {
  if (view == View::kFree) return node.cores;
  return std::vector<std::int32_t>(node.cores.size(), kOneDevice);
}

}  // namespace

BundlePlacement materialize_one(const Cluster& cluster, const GroupRequest& request,
                                const Demand& demand, const Given& given, View view) {
  const NodeState& node = cluster.nodes()[index(given.position)];
  std::vector<std::int32_t> free_cores;
  if (demand.cpu > 0) free_cores = cores_in(node, view);
  return make_real(node, request, 0, demand, given, free_cores);
}

std::vector<CoreShare> choose_cores(
    const NodeSpec& node, std::vector<std::int32_t>& free, std::int64_t units,
    const std::vector<std::pair<std::int32_t, std::int64_t>>& quota) {
  CoreTaker taker(free);
  std::int64_t left = units;
  for (const auto& [socket, most] : quota) {
    const std::int64_t whole = std::min(left, most) / kOneDevice;
    if (whole > 0) left -= taker.take_whole(cores_of(node, socket), whole);
  }
  for (const auto& [socket, most] : quota) {
    if (left >= kOneDevice) left -= taker.take_whole(cores_of(node, socket), left / kOneDevice);
  }
  for (const auto& [socket, most] : quota) {
    if (left > 0 && left < kOneDevice &&
        taker.take_shared(cores_of(node, socket), static_cast<std::int32_t>(left)))
      left = 0;
  }
  for (const auto& [socket, most] : quota) {
    if (left > 0) left -= taker.take_any(cores_of(node, socket), left);
  }
  return taker.shares();
}

std::vector<BundlePlacement> materialize(const Problem& problem, Plan plan) {
  std::vector<std::tuple<std::int32_t, const Shape*, Given>> bundles;
  auto next = plan.begin();
  for (const Shape& shape : problem.shapes) {
    const auto end = next + static_cast<std::ptrdiff_t>(shape.bundles.size());
    std::stable_sort(next, end, [](const Given& a, const Given& b) {
      return std::tie(a.position, a.devices, a.socket) < std::tie(b.position, b.devices, b.socket);
    });
    for (const std::int32_t bundle : shape.bundles)
      bundles.emplace_back(bundle, &shape, std::move(*next++));
  }
  std::sort(bundles.begin(), bundles.end(),
            [](const auto& a, const auto& b) { return std::get<0>(a) < std::get<0>(b); });
  std::map<std::int32_t, std::vector<std::int32_t>> cores;  // by position, as bundles take them
  std::vector<BundlePlacement> placements;
  placements.reserve(bundles.size());
  for (const auto& [bundle, shape, given] : bundles) {
    const NodeState& node = problem.cluster->nodes()[index(given.position)];
    std::vector<std::int32_t>& free_cores = cores[given.position];
    if (free_cores.empty() && shape->demand.cpu > 0) free_cores = cores_in(node, problem.view);
    placements.push_back(
        make_real(node, *problem.request, bundle, shape->demand, given, free_cores));
  }
  return placements;
}

}  // namespace troupe::placement

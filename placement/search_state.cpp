#include "placement/search_state.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::placement {
namespace {

/// Largest n ≤ limit with n × each ≤ free.
std::int32_t at_most(std::int64_t free, std::int64_t each, std::int32_t limit) {
  if (each <= 0) return limit;
  if (free < each) return 0;
  if (limit <= 1) return limit;
  return static_cast<std::int32_t>(std::min<std::int64_t>(limit, free / each));
}

std::int64_t named_of(const NodeFree& free, std::size_t index) {
  return index < free.named.size() ? free.named[index] : 0;
}

/// First run of `count` in ascending ids, else the lowest ones.
std::vector<std::int32_t> adjacent_or_lowest(const std::vector<std::int32_t>& ids,
                                             std::size_t count) {
  for (std::size_t i = 0; i + count <= ids.size(); ++i) {
    if (ids[i + count - 1] - ids[i] == static_cast<std::int32_t>(count) - 1)
      return {ids.begin() + static_cast<std::ptrdiff_t>(i),
              ids.begin() + static_cast<std::ptrdiff_t>(i + count)};
  }
  return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

std::vector<std::int32_t> choose_whole_devices(std::span<const std::int32_t> free,
                                               std::span<const DeviceSpec> devices,
                                               std::int32_t count, std::int32_t socket) {
  std::vector<std::int32_t> all;
  std::vector<std::int32_t> per_socket;
  for (std::size_t d = 0; d < free.size(); ++d) {
    if (free[d] != kOneDevice || (socket >= 0 && devices[d].socket != socket)) continue;
    all.push_back(static_cast<std::int32_t>(d));
    const auto s = static_cast<std::size_t>(devices[d].socket);
    if (per_socket.size() <= s) per_socket.resize(s + 1, 0);
    ++per_socket[s];
  }
  std::int32_t best = -1;
  for (std::size_t s = 0; s < per_socket.size(); ++s) {
    const bool better = best < 0 || per_socket[s] < per_socket[static_cast<std::size_t>(best)];
    if (per_socket[s] >= count && better) best = static_cast<std::int32_t>(s);
  }
  if (best >= 0) {
    std::erase_if(all, [&devices, best](std::int32_t d) {
      return devices[static_cast<std::size_t>(d)].socket != best;
    });
  }
  TROUPE_CHECK(static_cast<std::int32_t>(all.size()) >= count, "{} of {} devices free", all.size(),
               count);
  return adjacent_or_lowest(all, static_cast<std::size_t>(count));
}

std::int32_t choose_shared_device(std::span<const std::int32_t> free,
                                  std::span<const DeviceSpec> devices, std::int32_t fraction,
                                  std::int32_t socket) {
  std::int32_t best = -1;
  for (std::size_t d = 0; d < free.size(); ++d) {
    if (free[d] < fraction || (socket >= 0 && devices[d].socket != socket)) continue;
    if (best < 0 || free[d] < free[static_cast<std::size_t>(best)])
      best = static_cast<std::int32_t>(d);
  }
  return best;
}

void SearchState::reset(const Cluster& cluster, View view) {
  for (std::size_t i = 0; i < copies_used_; ++i) {
    if (copies_[i].position < copy_of_.size()) copy_of_[copies_[i].position] = -1;
  }
  copies_used_ = 0;
  cluster_ = &cluster;
  view_ = view;
  base_ = cluster.summaries(view);
  copy_of_.resize(base_.size(), -1);
}

void SearchState::reset(const Problem& problem) {
  reset(*problem.cluster, problem.view);
  if (view_ == View::kFree) return;
  for (const auto& [index, bundle] : *problem.kept) take_kept(bundle);
}

void SearchState::take_kept(const BundlePlacement& bundle) {
  const std::size_t position = cluster_->position_of(bundle.node);
  const NodeSpec& spec = cluster_->nodes()[position].spec;
  Copy& copy = touch(position);
  const auto subtract = [](auto& from, auto amount) {
    from = std::max<std::remove_reference_t<decltype(from)>>(from - amount, 0);
  };
  for (const auto& [device, amount] : bundle.devices)
    subtract(copy.free.devices[static_cast<std::size_t>(device)],
             static_cast<std::int32_t>(amount.units));
  for (const auto& [core, amount] : bundle.cores)
    subtract(copy.free.cpu[static_cast<std::size_t>(socket_of_core(spec, core))], amount.units);
  subtract(copy.free.memory, bundle.memory.value);
  for (const auto& [name, amount] : bundle.named) {
    const auto named = cluster_->named_index(name);
    if (named && *named < copy.free.named.size()) subtract(copy.free.named[*named], amount.units);
  }
  copy.summary = summary_of(copy.free, copy.summary.accepts);
}

SearchState::Copy& SearchState::touch(std::size_t position) {
  std::int32_t& index = copy_of_[position];
  if (index >= 0) return copies_[static_cast<std::size_t>(index)];
  if (copies_used_ == copies_.size()) copies_.emplace_back();
  index = static_cast<std::int32_t>(copies_used_);
  Copy& copy = copies_[copies_used_++];
  copy.position = position;
  if (const NodeFree* plain = cluster_->plain_free(position, view_)) {
    copy.free = *plain;
  } else {
    copy.free = cluster_->free_at(position, view_);
  }
  copy.summary = base_[position];
  return copy;
}

const NodeFree& SearchState::free(std::size_t position) {
  if (!is_touched(position)) {
    if (const NodeFree* plain = cluster_->plain_free(position, view_)) return *plain;
  }
  return touch(position).free;
}

bool SearchState::holds_others(const Demand& demand, const Site& site, std::int32_t& limit) {
  const auto position = static_cast<std::size_t>(site.position);
  const NodeSummary& now = summary(position);
  std::int64_t cpu = now.cpu;
  if (site.socket >= 0 && site.device < 0 && demand.cpu > 0)
    cpu = free(position).cpu[static_cast<std::size_t>(site.socket)];
  limit = at_most(cpu, demand.cpu, limit);
  limit = at_most(now.memory, demand.memory, limit);
  if (limit > 0 && !demand.named.empty()) {
    const NodeFree& there = free(position);
    for (const auto& [index, each] : demand.named)
      limit = at_most(named_of(there, index), each, limit);
  }
  if (demand.unknown_named) limit = 0;
  return limit > 0;
}

std::int32_t SearchState::fits_node(const Demand& demand, std::size_t position,
                                    std::int32_t limit) {
  const NodeSummary& now = summary(position);
  if (demand.whole > 0) {
    if (now.whole_devices < demand.whole) return 0;
    limit = std::min(limit, now.whole_devices / demand.whole);
  } else if (demand.fraction > 0) {
    if (now.largest_share < demand.fraction) return 0;
    if (limit > 1) {
      std::int32_t shares = 0;
      for (const std::int32_t units : free(position).devices) shares += units / demand.fraction;
      limit = std::min(limit, shares);
    }
  }
  const Site whole{.position = static_cast<std::int32_t>(position)};
  return limit > 0 && holds_others(demand, whole, limit) ? limit : 0;
}

std::int32_t SearchState::fits(const Demand& demand, const Site& site, std::int32_t limit) {
  const auto position = static_cast<std::size_t>(site.position);
  if (site.socket < 0) return fits_node(demand, position, limit);
  if (demand.gpu_units() > 0) {
    const NodeFree& there = free(position);
    std::int32_t whole = 0;
    std::int32_t shares = 0;
    const auto count = [&](std::size_t d) {
      whole += there.devices[d] == kOneDevice ? 1 : 0;
      if (demand.fraction > 0) shares += there.devices[d] / demand.fraction;
    };
    if (site.device >= 0) {
      count(static_cast<std::size_t>(site.device));
    } else {
      const auto& devices = cluster_->nodes()[position].spec.devices;
      for (std::size_t d = 0; d < devices.size(); ++d) {
        if (devices[d].socket == site.socket) count(d);
      }
    }
    limit = std::min(limit, demand.whole > 0 ? whole / demand.whole : shares);
  }
  return limit > 0 && holds_others(demand, site, limit) ? limit : 0;
}

Given SearchState::give(const Demand& demand, const Site& site, std::int32_t device) {
  const auto position = static_cast<std::size_t>(site.position);
  Copy& copy = touch(position);
  const auto& specs = cluster_->nodes()[position].spec.devices;
  Given given{.position = site.position, .socket = site.device < 0 ? site.socket : -1};
  if (site.device >= 0) {
    given.devices = {site.device};
  } else if (demand.whole > 0) {
    given.devices = choose_whole_devices(copy.free.devices, specs, demand.whole, site.socket);
  } else if (demand.fraction > 0) {
    given.devices = {
        device >= 0 ? device
                    : choose_shared_device(copy.free.devices, specs, demand.fraction, site.socket)};
    TROUPE_CHECK(given.devices[0] >= 0, "no device for a fraction");
  }
  for (const std::int32_t d : given.devices)
    copy.free.devices[static_cast<std::size_t>(d)] -=
        demand.whole > 0 ? kOneDevice : demand.fraction;
  if (given.socket >= 0) copy.free.cpu[static_cast<std::size_t>(given.socket)] -= demand.cpu;
  copy.free.memory -= demand.memory;
  for (const auto& [index, each] : demand.named) copy.free.named[index] -= each;
  const std::int64_t cpu = copy.summary.cpu - demand.cpu;
  if (!given.devices.empty()) copy.summary = summary_of(copy.free, copy.summary.accepts);
  copy.summary.cpu = cpu;
  copy.summary.memory = copy.free.memory;
  return given;
}

void SearchState::undo(const Demand& demand, const Given& given) {
  Copy& copy = touch(static_cast<std::size_t>(given.position));
  for (const std::int32_t d : given.devices)
    copy.free.devices[static_cast<std::size_t>(d)] +=
        demand.whole > 0 ? kOneDevice : demand.fraction;
  if (given.socket >= 0) copy.free.cpu[static_cast<std::size_t>(given.socket)] += demand.cpu;
  copy.free.memory += demand.memory;
  for (const auto& [index, each] : demand.named) copy.free.named[index] += each;
  const std::int64_t cpu = copy.summary.cpu + demand.cpu;
  if (!given.devices.empty()) copy.summary = summary_of(copy.free, copy.summary.accepts);
  copy.summary.cpu = cpu;
  copy.summary.memory = copy.free.memory;
}

}  // namespace troupe::placement

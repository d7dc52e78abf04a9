#pragma once

// The oracle of the placement search: tries every place of every bundle and keeps the cheapest.
//
// Written to be obviously right, not fast; shares no code with the search. Resources are counted
// anew from node specs and active groups, strategies and costs are taken word for word from
// docs/placement.md.
// **Threads:** belongs to one owner.
// **Cost:** exponential; for ≤ 6 nodes × ≤ 6 bundles.

#include "placement/bundle.hpp"
#include "placement/cluster.hpp"
#include "placement/place.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::placement::testing {

class BruteForce {
 public:
  BruteForce(const Cluster& cluster, const GroupRequest& request,
             const std::map<std::int32_t, BundlePlacement>& kept, bool empty_cluster)
      : cluster_(cluster), request_(request), kept_(kept), empty_(empty_cluster) {
    for (const NodeState& node : cluster.nodes()) nodes_.push_back(free_of(node));
    for (std::size_t i = 0; i < request.bundles.size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      if (!kept.contains(index)) missing_.push_back(i);
    }
    // Equal bundles next to each other, so that they need not be tried in every order.
    std::stable_sort(missing_.begin(), missing_.end(),
                     [&](std::size_t a, std::size_t b) { return first_like(a) < first_like(b); });
    for (const auto& [index, bundle] : kept) {
      const std::size_t node = cluster.position_of(bundle.node);
      chosen_.push_back(
          {node, bundle.socket, bundle.devices.empty() ? 0 : bundle.devices[0].device});
    }
    search(0);
  }

  /// Empty: there is no place.
  const std::optional<PlacementCost>& best() const { return best_; }
  std::size_t visited() const { return visited_; }

 private:
  struct Free {
    std::vector<std::int64_t> devices;
    std::vector<std::int64_t> cpu;
    std::int64_t cpu_total = 0;
    std::int64_t memory = 0;
    std::map<std::string, std::int64_t> named;
  };
  struct Choice {
    std::size_t node = 0;
    std::int32_t socket = 0;
    std::int32_t device = 0;
  };

  std::size_t first_like(std::size_t bundle) const {
    for (std::size_t i = 0; i < bundle; ++i) {
      if (request_.bundles[i] == request_.bundles[bundle]) return i;
    }
    return bundle;
  }

  Free free_of(const NodeState& node) const {
    Free free;
    const NodeSpec& spec = node.spec;
    free.devices.assign(spec.devices.size(), 10'000);
    free.cpu.assign(static_cast<std::size_t>(spec.sockets), 0);
    for (std::int32_t core = 0; core < spec.cores; ++core)
      free.cpu[static_cast<std::size_t>(socket_of_core(spec, core))] += 10'000;
    free.memory = spec.memory.value;
    for (const auto& [name, amount] : spec.named) free.named[name] = amount.units;
    for (const auto& [name, group] : cluster_.groups()) {
      if (empty_ && name != request_.name) continue;
      for (const auto& [index, bundle] : group.bundles) {
        if (bundle.node != node.id) continue;
        for (const auto& share : bundle.devices)
          free.devices[static_cast<std::size_t>(share.device)] -= share.amount.units;
        for (const auto& share : bundle.cores)
          free.cpu[static_cast<std::size_t>(socket_of_core(spec, share.core))] -=
              share.amount.units;
        free.memory -= bundle.memory.value;
        for (const auto& [resource, amount] : bundle.named) free.named[resource] -= amount.units;
      }
    }
    for (std::size_t d = 0; d < spec.devices.size(); ++d) {
      if (spec.devices[d].failed) free.devices[d] = 0;
    }
    for (const std::int64_t cpu : free.cpu) free.cpu_total += cpu;
    return free;
  }

  std::string domain_at(Level level, const Choice& choice) const {
    const NodeSpec& spec = cluster_.nodes()[choice.node].spec;
    if (level == Level::kRack) return "r" + spec.rack;
    const std::string node = "n" + spec.name;
    if (level == Level::kDomain)
      return spec.domain.empty() ? node : "r" + spec.rack + "/d" + spec.domain;
    if (level == Level::kNode) return node;
    if (level == Level::kSocket) return node + "/s" + std::to_string(choice.socket);
    return node + "/g" + std::to_string(choice.device);
  }

  bool node_allowed(const Bundle& bundle, std::size_t node) const {
    const NodeSpec& spec = cluster_.nodes()[node].spec;
    if (spec.draining) return false;
    for (const LabelSelector& selector : bundle.selectors) {
      if (!matches(selector, spec.labels)) return false;
    }
    if (empty_) return true;
    for (const Affinity& affinity : request_.affinities) {
      if (affinity.strict && !affinity_holds(affinity, node)) return false;
    }
    for (const auto& [name, group] : cluster_.groups()) {
      for (const Affinity& affinity : group.request.affinities) {
        if (affinity.group != request_.name || !affinity.strict || !affinity.apart) continue;
        if (group_is_in(name, affinity.level, node)) return false;
      }
    }
    return true;
  }

  bool group_is_in(const std::string& name, Level level, std::size_t node) const {
    const ActiveGroup* other = cluster_.group(name);
    if (other == nullptr) return false;
    for (const auto& [index, bundle] : other->bundles) {
      const Choice there{cluster_.position_of(bundle.node), 0, 0};
      if (domain_at(level, there) == domain_at(level, {node, 0, 0})) return true;
    }
    return false;
  }

  bool affinity_holds(const Affinity& affinity, std::size_t node) const {
    return group_is_in(affinity.group, affinity.level, node) != affinity.apart;
  }

  std::map<std::string, std::int32_t> level_counts() const {
    std::map<std::string, std::int32_t> counts;
    for (const Choice& choice : chosen_) ++counts[domain_at(request_.level, choice)];
    return counts;
  }

  bool rules_hold(bool complete) const {
    const auto counts = level_counts();
    std::int32_t most = request_.per_domain_max;
    if (request_.strategy == Strategy::kStrictSpread && most == 0 && request_.per_domain_exact == 0)
      most = 1;
    if (request_.strategy == Strategy::kStrictPack && counts.size() > 1) return false;
    for (const auto& [domain, count] : counts) {
      if (most > 0 && count > most) return false;
      if (request_.per_domain_exact > 0 && count > request_.per_domain_exact) return false;
      if (complete && request_.per_domain_exact > 0 && count != request_.per_domain_exact)
        return false;
    }
    return true;
  }

  PlacementCost cost() const {
    PlacementCost cost;
    std::set<std::string> racks;
    std::set<std::string> domains;
    std::set<std::size_t> nodes;
    bool wants_gpu = false;
    for (const Bundle& bundle : request_.bundles)
      wants_gpu = wants_gpu || bundle.resources.gpu.units > 0;
    for (const Choice& choice : chosen_) {
      racks.insert(domain_at(Level::kRack, choice));
      domains.insert(domain_at(Level::kDomain, choice));
      nodes.insert(choice.node);
      if (!wants_gpu && !cluster_.nodes()[choice.node].spec.devices.empty())
        cost.uses_gpu_nodes = true;
      for (const Affinity& affinity : request_.affinities) {
        const bool there = cluster_.group(affinity.group) != nullptr;
        if (!empty_ && !affinity.strict && there && !affinity_holds(affinity, choice.node))
          cost.breaks_wish = true;
      }
    }
    const auto counts = level_counts();
    const auto used = static_cast<std::int32_t>(counts.size());
    const bool pack =
        request_.strategy == Strategy::kPack || request_.strategy == Strategy::kStrictPack;
    cost.level_domains = pack ? used : -used;
    for (const auto& [domain, count] : counts) {
      if (!pack) cost.level_most = std::max(cost.level_most, count);
    }
    cost.racks = static_cast<std::int32_t>(racks.size());
    cost.domains = static_cast<std::int32_t>(domains.size());
    cost.nodes = static_cast<std::int32_t>(nodes.size());
    return cost;
  }

  void search(std::size_t next) {
    ++visited_;
    if (next == missing_.size()) {
      if (!rules_hold(true)) return;
      const PlacementCost its = cost();
      if (!best_ || its < *best_) best_ = its;
      return;
    }
    const std::size_t index = missing_[next];
    const Resources needs = needs_of(request_, index);
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      if (!node_allowed(request_.bundles[index], node)) continue;
      for (const auto& devices : device_choices(node, needs.gpu.units)) {
        for (const std::int32_t socket : sockets(node, devices)) {
          const Choice choice{node, socket, devices.empty() ? 0 : devices.front()};
          // Equal bundles: in ascending order only.
          const bool like_last = next > 0 && first_like(missing_[next - 1]) == first_like(index);
          if (like_last && std::pair(node, choice.device) <
                               std::pair(chosen_.back().node, chosen_.back().device))
            continue;
          try_choice(next, needs, choice, devices);
        }
      }
    }
  }

  /// Sets of devices worth telling apart: every device for a fraction and at device level, every
  /// socket's first free ones at socket level, else the first free ones.
  std::vector<std::vector<std::int32_t>> device_choices(std::size_t node,
                                                        std::int64_t units) const {
    const auto& free = nodes_[node].devices;
    const auto& specs = cluster_.nodes()[node].spec.devices;
    std::vector<std::vector<std::int32_t>> sets;
    if (units == 0) return {{}};
    if (units < 10'000 || request_.level == Level::kDevice) {
      for (std::size_t d = 0; d < free.size(); ++d) {
        if (free[d] >= units) sets.push_back({static_cast<std::int32_t>(d)});
      }
      return sets;
    }
    const std::int32_t socket_count = cluster_.nodes()[node].spec.sockets;
    for (std::int32_t socket = 0; socket < (request_.level == Level::kSocket ? socket_count : 1);
         ++socket) {
      std::vector<std::int32_t> set;
      for (std::size_t d = 0; d < free.size(); ++d) {
        const bool here = request_.level != Level::kSocket || specs[d].socket == socket;
        if (here && free[d] == 10'000 && static_cast<std::int64_t>(set.size()) * 10'000 < units)
          set.push_back(static_cast<std::int32_t>(d));
      }
      if (static_cast<std::int64_t>(set.size()) * 10'000 == units) sets.push_back(set);
    }
    return sets;
  }

  std::vector<std::int32_t> sockets(std::size_t node,
                                    const std::vector<std::int32_t>& devices) const {
    const NodeSpec& spec = cluster_.nodes()[node].spec;
    if (!devices.empty()) return {spec.devices[static_cast<std::size_t>(devices.front())].socket};
    std::vector<std::int32_t> all{0};
    for (std::int32_t s = 1; request_.level == Level::kSocket && s < spec.sockets; ++s)
      all.push_back(s);
    return all;
  }

  void try_choice(std::size_t next, const Resources& needs, const Choice& choice,
                  const std::vector<std::int32_t>& devices) {
    Free& free = nodes_[choice.node];
    const auto socket = static_cast<std::size_t>(choice.socket);
    const bool by_socket = request_.level == Level::kSocket;
    if (free.cpu_total < needs.cpu.units || free.memory < needs.memory.value) return;
    if (by_socket && free.cpu[socket] < needs.cpu.units) return;
    for (const auto& [name, amount] : needs.named) {
      if (free.named[name] < amount.units) return;
    }
    const Free before = free;
    free.cpu_total -= needs.cpu.units;
    if (by_socket) free.cpu[socket] -= needs.cpu.units;
    free.memory -= needs.memory.value;
    for (const auto& [name, amount] : needs.named) free.named[name] -= amount.units;
    const std::int64_t each = needs.gpu.units < 10'000 ? needs.gpu.units : 10'000;
    for (const std::int32_t device : devices)
      free.devices[static_cast<std::size_t>(device)] -= each;
    chosen_.push_back(choice);
    if (rules_hold(false)) search(next + 1);
    chosen_.pop_back();
    nodes_[choice.node] = before;
  }

  const Cluster& cluster_;
  const GroupRequest& request_;
  const std::map<std::int32_t, BundlePlacement>& kept_;
  bool empty_;
  std::vector<Free> nodes_;
  std::vector<std::size_t> missing_;
  std::vector<Choice> chosen_;
  std::optional<PlacementCost> best_;
  std::size_t visited_ = 0;
};

}  // namespace troupe::placement::testing

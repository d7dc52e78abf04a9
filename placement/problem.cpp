#include "placement/problem.hpp"

#include <algorithm>
#include <tuple>

namespace troupe::placement {
namespace {

/// What makes bundles alike, ordered so that the hardest come first.
using ShapeKey =
    std::tuple<std::int64_t, std::int64_t, std::int64_t, const std::map<std::string, Amount>*,
               const std::vector<LabelSelector>*>;

struct HarderFirst {
  bool operator()(const ShapeKey& a, const ShapeKey& b) const {
    const auto numbers = [](const ShapeKey& key) {
      return std::tuple(-std::get<0>(key), -static_cast<std::int64_t>(std::get<3>(key)->size()),
                        -std::get<2>(key), -std::get<1>(key));
    };
    if (numbers(a) != numbers(b)) return numbers(a) < numbers(b);
    if (*std::get<3>(a) != *std::get<3>(b)) return *std::get<3>(b) < *std::get<3>(a);
    const auto& x = *std::get<4>(a);
    const auto& y = *std::get<4>(b);
    if (x.size() != y.size()) return x.size() > y.size();
    return x < y;
  }
};

ShapeKey key_of(const Bundle& bundle) {
  const Resources& needs = bundle.resources;
  return {needs.gpu.units, needs.cpu.units, needs.memory.value, &needs.named, &bundle.selectors};
}

}  // namespace

Demand demand_of(const Cluster& cluster, const Resources& needs) {
  Demand demand;
  if (needs.gpu.is_whole()) {
    demand.whole = static_cast<std::int32_t>(needs.gpu.units / Amount::kUnitsPerOne);
  } else {
    demand.fraction = static_cast<std::int32_t>(needs.gpu.units);
  }
  demand.cpu = needs.cpu.units;
  demand.memory = needs.memory.value;
  for (const auto& [name, amount] : needs.named) {
    if (amount.units == 0) continue;
    if (const auto index = cluster.named_index(name)) {
      demand.named.emplace_back(*index, amount.units);
    } else {
      demand.unknown_named = true;
    }
  }
  return demand;
}

Problem::Problem(const Cluster& cluster_in, const GroupRequest& request_in, const Kept& kept_in,
                 View view_in)
    : cluster(&cluster_in),
      request(&request_in),
      kept(&kept_in),
      view(view_in),
      domains(cluster_in, request_in.level),
      rules(rules_of(request_in)),
      base(domains.count(), 0) {
  for (const auto& [index, bundle] : kept_in) {
    const std::int32_t device = bundle.devices.empty() ? 0 : bundle.devices[0].device;
    const std::size_t position = cluster_in.position_of(bundle.node);
    ++base[static_cast<std::size_t>(domains.of(position, bundle.socket, device))];
    ++kept_count;
  }
  std::map<ShapeKey, std::vector<std::int32_t>, HarderFirst> by_key;
  std::vector<std::int32_t>* last = nullptr;
  for (std::size_t i = 0; i < request_in.bundles.size(); ++i) {
    const Bundle& bundle = request_in.bundles[i];
    const auto index = static_cast<std::int32_t>(i);
    wants_gpu = wants_gpu || bundle.resources.gpu.units > 0;
    if (!kept_in.empty() && kept_in.contains(index)) continue;
    ++missing;
    const bool alike =
        last != nullptr && request_in.bundles[static_cast<std::size_t>(last->back())] == bundle;
    if (!alike) last = &by_key[key_of(bundle)];
    last->push_back(index);
  }
  for (auto& [key, bundles] : by_key) {
    Shape shape;
    shape.sample = bundles.front();
    shape.demand =
        demand_of(cluster_in, needs_of(request_in, static_cast<std::size_t>(shape.sample)));
    shape.bundles = std::move(bundles);
    shapes.push_back(std::move(shape));
  }
}

SiteList::SiteList(const Problem& problem)
    : domains_(&problem.domains),
      nodes_(problem.cluster->node_count()),
      by_node_(problem.level() <= Level::kNode) {
  if (by_node_) return;
  const auto nodes = problem.cluster->nodes();
  begin_.reserve(nodes.size() + 1);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    begin_.push_back(sites_.size());
    const auto position = static_cast<std::int32_t>(i);
    const auto add = [&](std::int32_t socket, std::int32_t device) {
      sites_.push_back({position, socket, device, domains_->of(i, socket, device)});
    };
    const NodeSpec& spec = nodes[i].spec;
    if (problem.level() == Level::kSocket) {
      for (std::int32_t socket = 0; socket < spec.sockets; ++socket) add(socket, -1);
    } else {
      for (std::size_t d = 0; d < spec.devices.size(); ++d)
        add(spec.devices[d].socket, static_cast<std::int32_t>(d));
    }
  }
  begin_.push_back(sites_.size());
}

}  // namespace troupe::placement

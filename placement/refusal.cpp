#include "placement/refusal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::placement {
namespace {

std::string units_text(std::int64_t units) { return to_string(Amount{units}); }

ShortResource short_of(Constraint constraint, std::string name, std::int64_t wanted,
                       std::int64_t found) {
  const bool bytes = constraint == Constraint::kMemory;
  return {constraint, std::move(name), bytes ? to_string(Bytes{wanted}) : units_text(wanted),
          bytes ? to_string(Bytes{found}) : units_text(found),
          static_cast<double>(found) / static_cast<double>(wanted)};
}

/// Units of GPU that one bundle could get at a site: whole devices, or the largest share.
std::int64_t gpu_found(const Demand& demand, const NodeFree& free,
                       const std::vector<DeviceSpec>& devices, const Site& site) {
  std::int64_t whole = 0;
  std::int64_t largest = 0;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (site.device >= 0 && d != static_cast<std::size_t>(site.device)) continue;
    if (site.socket >= 0 && site.device < 0 && devices[d].socket != site.socket) continue;
    whole += free.devices[d] == kOneDevice ? kOneDevice : 0;
    largest = std::max<std::int64_t>(largest, free.devices[d]);
  }
  return demand.whole > 0 ? whole : largest;
}

}  // namespace

std::vector<ShortResource> short_resources(const Problem& problem, const SiteList& sites,
                                           SearchState& state, const Shape& shape,
                                           std::size_t position) {
  const Demand& demand = shape.demand;
  const NodeState& node = problem.cluster->nodes()[position];
  const NodeFree& free = state.free(position);
  const NodeSummary& summary = state.summary(position);
  std::int64_t gpu = 0;
  std::int64_t cpu = 0;
  for (std::size_t i = sites.begin_of(position); i < sites.begin_of(position + 1); ++i) {
    const Site site = sites[i];
    gpu = std::max(gpu, gpu_found(demand, free, node.spec.devices, site));
    const bool by_socket = site.socket >= 0 && site.device < 0;
    cpu = std::max(cpu, by_socket ? free.cpu[static_cast<std::size_t>(site.socket)] : summary.cpu);
  }
  std::vector<ShortResource> list;
  if (gpu < demand.gpu_units())
    list.push_back(short_of(Constraint::kGpu, "gpu", demand.gpu_units(), gpu));
  if (cpu < demand.cpu) list.push_back(short_of(Constraint::kCpu, "cpu", demand.cpu, cpu));
  if (summary.memory < demand.memory)
    list.push_back(short_of(Constraint::kMemory, "memory", demand.memory, summary.memory));
  const auto& wanted =
      problem.request->bundles[static_cast<std::size_t>(shape.sample)].resources.named;
  for (const auto& [name, amount] : wanted) {
    const auto index = problem.cluster->named_index(name);
    const std::int64_t found = index && *index < free.named.size() ? free.named[*index] : 0;
    if (found < amount.units)
      list.push_back(short_of(Constraint::kNamed, name, amount.units, found));
  }
  return list;
}

void set_eligible(Problem& problem, const NodeRules& rules) {
  const std::size_t nodes = problem.cluster->node_count();
  for (Shape& shape : problem.shapes) {
    const Bundle& bundle = problem.request->bundles[static_cast<std::size_t>(shape.sample)];
    shape.eligible.assign(nodes, 0);
    for (std::size_t i = 0; i < nodes; ++i) {
      const bool may = rules.verdict(bundle, i).kind == NodeRules::Verdict::Kind::kAllowed;
      shape.eligible[i] = may ? 1 : 0;
    }
  }
}

std::string shape_text(const Problem& problem, const Shape& shape) {
  return to_string(needs_of(*problem.request, static_cast<std::size_t>(shape.sample)));
}

}  // namespace troupe::placement

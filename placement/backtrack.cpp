#include "placement/backtrack.hpp"

#include "runtime/base/index.hpp"

#include <algorithm>
#include <map>
#include <string>

namespace troupe::placement {

CostCounter::CostCounter(const Problem& problem)
    : problem_(problem),
      level_(problem.domains.count(), 0),
      racks_(problem.cluster->tree().racks.size(), 0),
      domains_(problem.cluster->tree().domains.size(), 0),
      nodes_(problem.cluster->node_count(), 0),
      heights_(problem.request->bundles.size() + 2, 0) {
  for (const auto& [bundle, placement] : *problem.kept) {
    const std::size_t position = problem.cluster->position_of(placement.node);
    const std::int32_t device = placement.devices.empty() ? 0 : placement.devices[0].device;
    add({.position = static_cast<std::int32_t>(position),
         .socket = placement.socket,
         .device = device,
         .domain = problem.domains.of(position, placement.socket, device)});
  }
}

void CostCounter::change(const Site& site, std::int32_t by) {
  const NodeState& node = problem_.cluster->nodes()[index(site.position)];
  const auto count = [by](std::int32_t& value, std::int32_t& used) {
    const bool before = value > 0;
    value += by;
    used += static_cast<std::int32_t>(value > 0) - static_cast<std::int32_t>(before);
  };
  std::int32_t& height = level_[index(site.domain)];
  if (height > 0) --heights_[index(height)];
  count(height, level_used_);
  if (height > 0) ++heights_[index(height)];
  most_ = std::max(most_, height);
  while (most_ > 0 && heights_[index(most_)] == 0) --most_;
  count(racks_[index(node.rack)], racks_used_);
  count(domains_[index(node.domain)], domains_used_);
  count(nodes_[index(site.position)], nodes_used_);
  total_ += by;
}

CountCost CostCounter::bound(std::int32_t left) const {
  if (problem_.packs()) return {level_used_, 0, racks_used_, domains_used_, nodes_used_};
  const auto domains = static_cast<std::int32_t>(level_.size());
  return {-std::min(level_used_ + left, domains), most_, racks_used_, domains_used_, nodes_used_};
}

Backtrack::Backtrack(const Problem& problem, const SiteList& sites, SearchState& state)
    : problem_(problem),
      sites_(sites),
      state_(state),
      counter_(problem),
      touched_(problem.cluster->node_count(), 0) {
  for (const Shape& shape : problem.shapes) {
    for (std::size_t i = 0; i < shape.bundles.size(); ++i) order_.push_back(&shape);
  }
  for (std::size_t i = 0; i < sites.size(); ++i) {
    const std::size_t position = index(sites[i].position);
    const bool any =
        std::any_of(problem.shapes.begin(), problem.shapes.end(),
                    [position](const Shape& shape) { return shape.eligible[position] != 0; });
    if (any) candidates_.push_back(i);
  }
  find_alike();
}

/// Nodes of one domain that offer the same, are allowed the same shapes and hold nothing of the
/// group can stand for each other while none of them is touched.
void Backtrack::find_alike() {
  using Key = std::tuple<std::int32_t, std::vector<std::int32_t>, std::vector<std::int64_t>,
                         std::vector<std::uint8_t>>;
  const auto nodes = problem_.cluster->nodes();
  alike_.assign(nodes.size(), -1);
  std::map<Key, std::int32_t> last;
  std::size_t before = nodes.size();
  for (const std::size_t site : candidates_) {
    const std::size_t position = index(sites_[site].position);
    if (position == before || counter_.is_node_used(position)) continue;
    before = position;
    const NodeFree& free = state_.free(position);
    std::vector<std::int32_t> devices = free.devices;
    for (const DeviceSpec& device : nodes[position].spec.devices) devices.push_back(device.socket);
    std::vector<std::int64_t> rest = free.named;
    while (!rest.empty() && rest.back() == 0) rest.pop_back();
    rest.insert(rest.end(), free.cpu.begin(), free.cpu.end());
    rest.push_back(free.memory);
    rest.push_back(static_cast<std::int64_t>(free.cpu.size()));
    std::vector<std::uint8_t> allowed;
    for (const Shape& shape : problem_.shapes) allowed.push_back(shape.eligible[position]);
    const auto [entry, is_new] = last.try_emplace(
        Key{nodes[position].domain, std::move(devices), std::move(rest), std::move(allowed)},
        static_cast<std::int32_t>(position));
    if (!is_new)
      alike_[position] = std::exchange(entry->second, static_cast<std::int32_t>(position));
  }
}

/// An untouched node when the one alike before it is untouched, too.
bool Backtrack::is_repeated(std::size_t site) const {
  const std::size_t position = index(sites_[site].position);
  const std::int32_t twin = alike_[position];
  return twin >= 0 && touched_[position] == 0 && touched_[index(twin)] == 0;
}

bool Backtrack::may_complete(std::size_t next) const {
  const std::int32_t exact = problem_.rules.exact;
  const auto left = static_cast<std::int32_t>(order_.size() - next);
  return exact == 0 || counter_.deficit(exact) <= left;
}

PlaceOutcome Backtrack::run(std::size_t steps_max, std::size_t improve_steps_max,
                            const std::optional<CountCost>& below) {
  if (order_.size() > kBacktrackBundlesMax) return PlaceOutcome::kBudget;
  steps_ = 0;
  steps_max_ = steps_max;
  improve_steps_max_ = improve_steps_max;
  limit_ = below;
  found_ = false;
  out_of_budget_ = false;
  path_.clear();
  search(0, 0);
  if (found_) return PlaceOutcome::kFound;
  return out_of_budget_ ? PlaceOutcome::kBudget : PlaceOutcome::kNone;
}

void Backtrack::search(std::size_t next, std::size_t first_site) {
  const auto left = static_cast<std::int32_t>(order_.size() - next);
  if (limit_ && counter_.bound(left) >= *limit_) return;
  if (!may_complete(next)) return;
  if (next == order_.size()) {
    best_ = path_;
    limit_ = counter_.bound(0);
    if (!std::exchange(found_, true))
      steps_max_ = std::min(steps_max_, steps_ + improve_steps_max_);
    return;
  }
  const Shape& shape = *order_[next];
  for (std::size_t i = first_site; i < candidates_.size() && !out_of_budget_; ++i) {
    const Site site = sites_[candidates_[i]];
    if (shape.eligible[index(site.position)] == 0 || is_repeated(candidates_[i])) continue;
    const std::int32_t here = counter_.here(site);
    if (!problem_.rules.may_join(here, counter_.total() - here)) continue;
    if (state_.fits(shape.demand, site, 1) == 0) continue;
    try_site(next, i, shape.demand);
  }
}

/// One branch per distinct room among the devices that can take a fraction, tightest first.
void Backtrack::try_site(std::size_t next, std::size_t candidate, const Demand& demand) {
  const Site site = sites_[candidates_[candidate]];
  if (demand.fraction == 0 || site.device >= 0) {
    descend(next, candidate, demand, -1);
    return;
  }
  std::map<std::int32_t, std::int32_t> lowest;  // room → device
  const auto position = index(site.position);
  const auto& specs = problem_.cluster->nodes()[position].spec.devices;
  const NodeFree& free = state_.free(position);
  for (std::size_t d = 0; d < free.devices.size(); ++d) {
    if (free.devices[d] < demand.fraction) continue;
    if (site.socket >= 0 && specs[d].socket != site.socket) continue;
    lowest.try_emplace(free.devices[d], static_cast<std::int32_t>(d));
  }
  for (const auto& [room, device] : lowest) {
    if (out_of_budget_) return;
    descend(next, candidate, demand, device);
  }
}

void Backtrack::descend(std::size_t next, std::size_t candidate, const Demand& demand,
                        std::int32_t device) {
  if (++steps_ > steps_max_) {
    out_of_budget_ = true;
    return;
  }
  const Site site = sites_[candidates_[candidate]];
  path_.push_back(state_.give(demand, site, device));
  counter_.add(site);
  ++touched_[index(site.position)];
  const bool same_shape = next + 1 < order_.size() && order_[next + 1] == order_[next];
  search(next + 1, same_shape ? candidate : 0);
  --touched_[index(site.position)];
  counter_.remove(site);
  state_.undo(demand, path_.back());
  path_.pop_back();
}

}  // namespace troupe::placement

#include "placement/count_fill.hpp"

#include "runtime/base/index.hpp"

#include <algorithm>
#include <limits>

namespace troupe::placement {
namespace {

constexpr std::int32_t kRoomMax = 1 << 30;
/// Containers of one depth that are tried; the fullest that have room come first.
constexpr std::size_t kContainersMax = 32;

int depth_of(Level level) {
  return level >= Level::kSocket ? kSiteDepth : static_cast<int>(level) + kRackDepth;
}

}  // namespace

Occupied::Occupied(const Problem& problem)
    : counts(problem.base),
      total(problem.kept_count),
      racks(problem.cluster->tree().racks.size(), 0),
      domains(problem.cluster->tree().domains.size(), 0),
      nodes(problem.cluster->node_count(), 0) {
  for (const auto& [bundle, placement] : *problem.kept) {
    const std::size_t position = problem.cluster->position_of(placement.node);
    const NodeState& node = problem.cluster->nodes()[position];
    racks[index(node.rack)] = domains[index(node.domain)] = nodes[position] = 1;
  }
}

void Occupied::add(const Problem& problem, const Site& site, std::int32_t count) {
  const NodeState& node = problem.cluster->nodes()[index(site.position)];
  racks[index(node.rack)] = domains[index(node.domain)] = nodes[index(site.position)] = 1;
  counts[index(site.domain)] += count;
  total += count;
}

CountFill::CountFill(const Problem& problem, const SiteList& sites, SearchState& state,
                     SearchState* now)
    : problem_(problem),
      sites_(sites),
      state_(state),
      now_(now),
      leaf_depth_(problem.level() >= Level::kSocket ? kSiteDepth : kNodeDepth),
      level_depth_(depth_of(problem.level())) {
  for (int depth = kRootDepth; depth <= leaf_depth_; ++depth) {
    caps_[depth].resize(count_at(depth));
    if (now_ != nullptr) now_caps_[depth].resize(count_at(depth));
    if (depth <= level_depth_) units_[depth].resize(count_at(depth));
  }
  if (leaf_depth_ == kSiteDepth) node_room_.resize(count_at(kNodeDepth));
}

std::size_t CountFill::count_at(int depth) const {
  const TopologyTree& tree = problem_.cluster->tree();
  if (depth == kRootDepth) return 1;
  if (depth == kRackDepth) return tree.racks.size();
  if (depth == kDomainDepth) return tree.domains.size();
  return depth == kNodeDepth ? problem_.cluster->node_count() : sites_.size();
}

std::pair<std::size_t, std::size_t> CountFill::parts(const Container& container, int depth) const {
  const TopologyTree& tree = problem_.cluster->tree();
  const std::size_t i = container.index;
  if (depth == container.depth) return {i, i + 1};
  if (container.depth == kRootDepth) return {0, count_at(depth)};
  if (container.depth == kRackDepth && depth == kDomainDepth)
    return {tree.racks[i].domain_begin, tree.racks[i].domain_end};
  std::pair<std::size_t, std::size_t> nodes{i, i + 1};
  if (container.depth == kRackDepth) nodes = {tree.racks[i].begin, tree.racks[i].end};
  if (container.depth == kDomainDepth) nodes = {tree.domains[i].begin, tree.domains[i].end};
  if (depth == kNodeDepth) return nodes;
  return {sites_.begin_of(nodes.first), sites_.begin_of(nodes.second)};
}

/// Sums from the parts at `from_depth` up to the container. Parts of one node share its memory and
/// named resources, so a node takes no more than its room, in units of `chunk`.
void CountFill::sum_up(const Container& container, Caps (&caps)[5], int from_depth,
                       std::int32_t chunk) const {
  for (int depth = from_depth - 1; depth >= container.depth; --depth) {
    const auto [begin, end] = parts(container, depth);
    for (std::size_t i = begin; i < end; ++i) {
      const auto [first, last] = parts({depth, i}, depth + 1);
      std::int64_t sum = 0;
      for (std::size_t part = first; part < last; ++part) sum += caps[depth + 1][part];
      if (depth == kNodeDepth) sum = std::min<std::int64_t>(sum, node_room_[i] / chunk);
      caps[depth][i] = static_cast<std::int32_t>(std::min<std::int64_t>(sum, kRoomMax));
    }
  }
}

/// Cuts what domains of the level may take and sums above them.
void CountFill::limit_to_rules(const Container& container, const Occupied& occupied,
                               std::int32_t only) {
  const DomainRules& rules = problem_.rules;
  const auto limit = [&](std::size_t domain, std::int32_t cap) {
    const std::int32_t here = occupied.counts[domain];
    if (only >= 0 && domain != index(only)) return 0;
    if (!rules.may_join(here, occupied.total - here)) return 0;
    return std::min(cap, rules.most - here);
  };
  if (container.depth > level_depth_) {
    const auto [first, last] = parts(container, leaf_depth_);
    if (first == last) return;
    std::int32_t& room = caps_[container.depth][container.index];
    room = limit(index(sites_[first].domain), room);
    return;
  }
  const auto [begin, end] = parts(container, level_depth_);
  for (std::size_t i = begin; i < end; ++i)
    caps_[level_depth_][i] = limit(i, caps_[level_depth_][i]);
  sum_up(container, caps_, level_depth_);
}

void CountFill::measure(const Shape& shape, std::int32_t limit, const Container& container,
                        const Occupied& occupied, std::int32_t only) {
  shape_ = &shape;
  const auto fits_into = [&](SearchState& state, Caps(&caps)[5]) {
    const auto [begin, end] = parts(container, leaf_depth_);
    for (std::size_t i = begin; i < end; ++i) {
      const Site site = sites_[i];
      const bool may = shape.eligible[index(site.position)] != 0;
      caps[leaf_depth_][i] = may ? state.fits(shape.demand, site, limit) : 0;
    }
    if (leaf_depth_ == kNodeDepth) return;
    const auto [first, last] = parts(container, kNodeDepth);
    for (std::size_t i = first; i < last; ++i)
      node_room_[i] = shape.eligible[i] != 0 ? state.fits_node(shape.demand, i, limit) : 0;
  };
  if (now_ != nullptr) {
    fits_into(*now_, now_caps_);
    sum_up(container, now_caps_, leaf_depth_);
  }
  fits_into(state_, caps_);
  sum_up(container, caps_, leaf_depth_);
  limit_to_rules(container, occupied, only);
}

bool CountFill::is_used(const Occupied& occupied, int depth, std::size_t i) const {
  if (depth == kRootDepth) return occupied.total > 0;
  if (depth == kRackDepth) return occupied.racks[i] != 0;
  if (depth == kDomainDepth) return occupied.domains[i] != 0;
  if (depth == kNodeDepth) return occupied.nodes[i] != 0;
  if (level_depth_ == kSiteDepth && occupied.counts[i] > 0) return true;
  return false;
}

/// How much is free on a node: the less, the better it is filled.
std::int64_t CountFill::hole(int depth, std::size_t i) const {
  if (depth < kNodeDepth) return 0;
  const std::size_t position = depth == kNodeDepth ? i : index(sites_[i].position);
  const NodeSummary& now = state_.summary(position);
  if (shape_->demand.gpu_units() > 0) return now.gpu_units;
  return now.cpu + (now.has_devices ? std::int64_t{1} << 50 : 0);
}

std::vector<CountFill::Part> CountFill::parts_of(const Container& container, int depth,
                                                 const Caps& caps, const Occupied& occupied) const {
  std::vector<Part> list;
  const auto [begin, end] = parts(container, depth);
  for (std::size_t i = begin; i < end; ++i) {
    if (caps[i] <= 0) continue;
    list.push_back({i, caps[i], now_ != nullptr ? std::min(now_caps_[depth][i], caps[i]) : 0,
                    hole(depth, i), is_used(occupied, depth, i)});
  }
  return list;
}

/// Used parts first, for they cost nothing; then the largest whole, the rest where it fits best.
/// When what is free now counts, parts with most of that come first.
void CountFill::pick(std::vector<Part>& parts, std::int32_t wanted, Amounts& out) const {
  const auto key = [](const Part& part) {
    return std::tuple(!part.used, -part.cap, part.hole, part.index);
  };
  const bool by_now = now_ != nullptr;
  std::sort(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
    if (by_now && a.now != b.now) return a.now > b.now;
    return key(a) < key(b);
  });
  if (by_now) {
    std::vector<std::int32_t> taken(parts.size(), 0);
    for (const bool later : {false, true}) {
      for (std::size_t i = 0; i < parts.size() && wanted > 0; ++i) {
        const std::int32_t room = later ? parts[i].cap - taken[i] : parts[i].now;
        const std::int32_t part = std::min(wanted, room);
        taken[i] += part;
        wanted -= part;
      }
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (taken[i] > 0) out.emplace_back(parts[i].index, taken[i]);
    }
    return;
  }
  for (std::size_t i = 0; i < parts.size() && wanted > 0; ++i) {
    std::size_t best = i;
    if (parts[i].cap >= wanted) {
      for (std::size_t j = i + 1; j < parts.size(); ++j) {
        if (parts[j].used != parts[i].used || parts[j].cap < wanted) break;
        if (parts[j].cap < parts[best].cap) best = j;
      }
    }
    const std::int32_t part = std::min(wanted, parts[best].cap);
    out.emplace_back(parts[best].index, part);
    wanted -= part;
  }
}

void CountFill::descend(const Container& container, std::int32_t wanted, int stop,
                        const Caps (&caps)[5], const Occupied& occupied, Amounts& out) const {
  if (container.depth == stop) {
    out.emplace_back(container.index, wanted);
    return;
  }
  auto list = parts_of(container, container.depth + 1, caps[container.depth + 1], occupied);
  Amounts chosen;
  pick(list, wanted, chosen);
  for (const auto& [part, amount] : chosen)
    descend({container.depth + 1, part}, amount, stop, caps, occupied, out);
}

/// Bundles per domain of the level → bundles per site.
CountFill::Counts CountFill::inside(const Amounts& domains, const Occupied& occupied) const {
  Amounts leaves;
  for (const auto& [domain, amount] : domains)
    descend({level_depth_, domain}, amount, leaf_depth_, caps_, occupied, leaves);
  std::sort(leaves.begin(), leaves.end());
  Counts counts;
  for (const auto& [site, amount] : leaves) counts.push_back({site, amount});
  return counts;
}

CountFill::Cost CountFill::cost(const Counts& counts, const Occupied& occupied,
                                std::int64_t leftover) const {
  std::int64_t shortage = 0;
  int level = 0;
  int racks = 0;
  int domains = 0;
  int nodes = 0;
  std::optional<Site> last;
  for (const SiteCount& part : counts) {
    const Site site = sites_[part.site];
    const NodeState& node = problem_.cluster->nodes()[index(site.position)];
    if (now_ != nullptr) shortage += std::max(0, part.count - now_caps_[leaf_depth_][part.site]);
    const NodeState* before = !last ? nullptr : &problem_.cluster->nodes()[index(last->position)];
    const bool new_level = !last || last->domain != site.domain;
    level += new_level && occupied.counts[index(site.domain)] == 0 ? 1 : 0;
    racks +=
        (before == nullptr || before->rack != node.rack) && occupied.racks[index(node.rack)] == 0
            ? 1
            : 0;
    domains += (before == nullptr || before->domain != node.domain) &&
                       occupied.domains[index(node.domain)] == 0
                   ? 1
                   : 0;
    nodes += (!last || last->position != site.position) && occupied.nodes[index(site.position)] == 0
                 ? 1
                 : 0;
    last = site;
  }
  return {shortage, problem_.packs() ? level : 0, racks, domains, nodes, leftover};
}

void CountFill::consider(Best& best, Counts counts, const Occupied& occupied,
                         std::int64_t leftover) const {
  const Cost its = cost(counts, occupied, leftover);
  if (best.counts && best.cost <= its) return;
  best.counts = std::move(counts);
  best.cost = its;
}

/// The site with least room left that takes all.
std::optional<CountFill::Counts> CountFill::smallest_site(const Container& container,
                                                          std::int32_t wanted,
                                                          const Occupied& occupied) const {
  std::optional<std::size_t> best;
  std::tuple<bool, std::int64_t, std::int64_t> best_key;
  const auto [begin, end] = parts(container, leaf_depth_);
  const bool limited_above = level_depth_ < leaf_depth_;
  for (std::size_t i = begin; i < end; ++i) {
    if (caps_[leaf_depth_][i] < wanted) continue;
    const Site site = sites_[i];
    if (limited_above && container.depth <= level_depth_ &&
        caps_[level_depth_][index(site.domain)] < wanted)
      continue;
    const std::int64_t blocked =
        now_ != nullptr ? std::max(0, wanted - now_caps_[leaf_depth_][i]) : 0;
    const std::tuple key(!is_used(occupied, kNodeDepth, index(site.position)), blocked,
                         hole(leaf_depth_, i));
    if (best && best_key <= key) continue;
    best = i;
    best_key = key;
  }
  if (!best) return std::nullopt;
  return Counts{{*best, wanted}};
}

/// Candidates inside one domain of the level, from the smallest container up to the domain.
void CountFill::choose_in_one_domain(Best& best, const Container& container, std::int32_t wanted,
                                     const Occupied& occupied, const Floor& floor) const {
  if (auto counts = smallest_site(container, wanted, occupied))
    consider(best, std::move(*counts), occupied, 0);
  for (int depth = leaf_depth_ - 1; depth >= std::max(level_depth_, container.depth); --depth) {
    if (is_good_enough(best, floor)) return;
    auto list = parts_of(container, depth, caps_[depth], occupied);
    std::erase_if(list, [&](const Part& part) {
      if (part.cap < wanted) return true;
      const auto [first, last] = parts({depth, part.index}, leaf_depth_);
      return first == last || caps_[level_depth_][index(sites_[first].domain)] < wanted;
    });
    std::sort(list.begin(), list.end(), [wanted](const Part& a, const Part& b) {
      const auto key = [wanted](const Part& part) {
        return std::tuple(std::max(0, wanted - part.now), !part.used, part.cap, part.index);
      };
      return key(a) < key(b);
    });
    if (list.size() > kContainersMax) list.resize(kContainersMax);
    for (const Part& part : list) {
      if (is_good_enough(best, floor)) return;
      Amounts leaves;
      descend({depth, part.index}, wanted, leaf_depth_, caps_, occupied, leaves);
      std::sort(leaves.begin(), leaves.end());
      Counts counts;
      for (const auto& [site, amount] : leaves) counts.push_back({site, amount});
      consider(best, std::move(counts), occupied, part.cap - wanted);
    }
  }
}

/// What no choice of parts goes below.
CountFill::Floor CountFill::floor_of(const Container& container, std::int32_t wanted) const {
  const auto fewest = [&](int depth, const Caps& caps) {
    const auto [begin, end] = parts(container, depth);
    std::int32_t most = 1;
    for (std::size_t i = begin; i < end; ++i) most = std::max(most, caps[i]);
    return (wanted + most - 1) / most;
  };
  Floor floor;
  if (problem_.packs()) floor.level = fewest(level_depth_, units_[level_depth_]);
  if (level_depth_ >= kNodeDepth) {
    floor.nodes = fewest(kNodeDepth, units_[kNodeDepth]);
  } else {
    floor.nodes = problem_.packs() ? fewest(kNodeDepth, caps_[kNodeDepth]) : wanted;
  }
  return floor;
}

/// Whether no other container could do better.
bool CountFill::is_good_enough(const Best& best, const Floor& floor) {
  if (!best.counts) return false;
  const auto& [shortage, level, racks, domains, nodes, leftover] = best.cost;
  return shortage == 0 && racks <= 1 && domains <= 1 && level <= floor.level &&
         nodes <= floor.nodes;
}

std::optional<CountFill::Counts> CountFill::choose(const Container& container, std::int32_t wanted,
                                                   std::int32_t chunk, const Amounts& forced,
                                                   const Occupied& occupied) const {
  Best best;
  const bool whole = chunk == 1 && forced.empty();
  const Floor floor = floor_of(container, wanted);
  if (whole && (problem_.packs() || (wanted == 1 && occupied.total == 0)))
    choose_in_one_domain(best, container, wanted, occupied, floor);
  const auto try_amounts = [&](Amounts amounts, std::int64_t leftover) {
    for (auto& [domain, amount] : amounts) amount *= chunk;
    amounts.insert(amounts.end(), forced.begin(), forced.end());
    std::sort(amounts.begin(), amounts.end());
    Amounts merged;
    for (const auto& [domain, amount] : amounts) {
      if (!merged.empty() && merged.back().first == domain) {
        merged.back().second += amount;
      } else {
        merged.emplace_back(domain, amount);
      }
    }
    consider(best, inside(merged, occupied), occupied, leftover);
  };
  for (int depth = level_depth_ - 1; depth >= container.depth && !problem_.rules.single; --depth) {
    if (whole && is_good_enough(best, floor)) break;
    auto list = parts_of(container, depth, units_[depth], occupied);
    std::erase_if(list, [wanted](const Part& part) { return part.cap < wanted; });
    std::sort(list.begin(), list.end(), [](const Part& a, const Part& b) {
      return std::tuple(!a.used, a.cap, a.index) < std::tuple(!b.used, b.cap, b.index);
    });
    if (list.size() > kContainersMax) list.resize(kContainersMax);
    for (const Part& part : list) {
      if (whole && is_good_enough(best, floor)) break;
      const Container here{depth, part.index};
      Amounts stepwise;
      descend(here, wanted, level_depth_, units_, occupied, stepwise);
      try_amounts(std::move(stepwise), part.cap - wanted);
      // Parts of one node share its room, which a flat choice would not see.
      if (depth == level_depth_ - 1 || level_depth_ == kSiteDepth) continue;
      auto all = parts_of(here, level_depth_, units_[level_depth_], occupied);
      Amounts flat;
      pick(all, wanted, flat);
      try_amounts(std::move(flat), part.cap - wanted);
    }
  }
  return best.counts;
}

std::optional<CountFill::Counts> CountFill::choose_exact(const Container& container,
                                                         std::int32_t wanted,
                                                         const Occupied& occupied) {
  const std::int32_t exact = problem_.rules.exact;
  Amounts forced;
  std::int32_t left = wanted;
  const auto [begin, end] = parts(container, level_depth_);
  for (std::size_t i = begin; i < end; ++i) {
    const std::int32_t here = occupied.counts[i];
    const std::int32_t cap = caps_[level_depth_][i];
    units_[level_depth_][i] = here == 0 && cap >= exact ? 1 : 0;
    if (here == 0 || here == exact) continue;
    if (cap < exact - here) return std::nullopt;
    forced.emplace_back(i, exact - here);
    left -= exact - here;
    if (level_depth_ < kSiteDepth) continue;
    std::int32_t& room = node_room_[index(sites_[i].position)];
    room -= exact - here;
    if (room < 0) return std::nullopt;
  }
  if (left < 0 || left % exact != 0) return std::nullopt;
  sum_up(container, units_, level_depth_, exact);
  if (units_[container.depth][container.index] < left / exact) return std::nullopt;
  if (left == 0) return inside(forced, occupied);
  return choose(container, left / exact, exact, forced, occupied);
}

/// How many bundles there are room for when no domain of the level holds more than `height`; and
/// which, one round after the other, so that a node with little room uses many of its parts.
std::int64_t CountFill::fill_to_height(const Container& container, std::int32_t height,
                                       const Occupied& occupied, Amounts* out) const {
  const Caps& caps = caps_[level_depth_];
  const auto below = [&](std::size_t i, std::int32_t h) {
    return std::clamp(h - occupied.counts[i], 0, caps[i]);
  };
  std::int64_t sum = 0;
  if (level_depth_ < kSiteDepth) {
    const auto [begin, end] = parts(container, level_depth_);
    for (std::size_t i = begin; i < end; ++i) {
      sum += below(i, height);
      if (out != nullptr && below(i, height) > 0) out->emplace_back(i, below(i, height));
    }
    return sum;
  }
  const auto [begin, end] = parts(container, kNodeDepth);
  for (std::size_t node = begin; node < end; ++node) {
    const std::size_t first = sites_.begin_of(node);
    const std::size_t last = sites_.begin_of(node + 1);
    std::int64_t wanted = 0;
    for (std::size_t i = first; i < last; ++i) wanted += below(i, height);
    const std::int64_t room = std::min<std::int64_t>(wanted, node_room_[node]);
    sum += room;
    if (out == nullptr) continue;
    std::vector<std::int32_t> taken(last - first, 0);
    std::int64_t left = room;
    for (std::int32_t h = 1; h <= height && left > 0; ++h) {
      for (std::size_t i = first; i < last && left > 0; ++i) {
        if (below(i, h) <= taken[i - first]) continue;
        ++taken[i - first];
        --left;
      }
    }
    for (std::size_t i = first; i < last; ++i) {
      if (taken[i - first] > 0) out->emplace_back(i, taken[i - first]);
    }
  }
  return sum;
}

/// Fills all domains to the same height, as far as they go; the last round chooses.
std::optional<CountFill::Counts> CountFill::choose_spread(const Container& container,
                                                          std::int32_t wanted,
                                                          const Occupied& occupied) {
  std::int32_t low = 0;  // too low
  std::int32_t high = occupied.total + wanted;
  if (fill_to_height(container, high, occupied, nullptr) < wanted) return std::nullopt;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    const bool enough = fill_to_height(container, middle, occupied, nullptr) >= wanted;
    (enough ? high : low) = middle;
  }
  Amounts forced;
  std::int32_t left = wanted;
  left -= static_cast<std::int32_t>(fill_to_height(container, low, occupied, &forced));
  Caps& units = units_[level_depth_];
  const auto [begin, end] = parts(container, level_depth_);
  for (std::size_t i = begin; i < end; ++i)
    units[i] = std::clamp(high - occupied.counts[i], 0, caps_[level_depth_][i]);
  for (const auto& [part, amount] : forced) {
    units[part] -= amount;
    if (level_depth_ == kSiteDepth) node_room_[index(sites_[part].position)] -= amount;
  }
  sum_up(container, units_, level_depth_);
  return choose(container, left, 1, forced, occupied);
}

std::optional<std::vector<SiteCount>> CountFill::fill(const Shape& shape, std::int32_t wanted,
                                                      const Container& container,
                                                      const Occupied& occupied, std::int32_t only) {
  measure(shape, wanted, container, occupied, only);
  if (room(container) < wanted) return std::nullopt;
  if (container.depth >= level_depth_) {
    Amounts leaves;
    descend(container, wanted, leaf_depth_, caps_, occupied, leaves);
    std::sort(leaves.begin(), leaves.end());
    Counts counts;
    for (const auto& [site, amount] : leaves) counts.push_back({site, amount});
    return counts;
  }
  if (problem_.rules.exact > 0) return choose_exact(container, wanted, occupied);
  if (!problem_.packs() && occupied.total + wanted > 1)
    return choose_spread(container, wanted, occupied);
  for (int depth = level_depth_; depth >= container.depth; --depth) units_[depth] = caps_[depth];
  return choose(container, wanted, 1, {}, occupied);
}

}  // namespace troupe::placement

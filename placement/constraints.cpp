#include "placement/constraints.hpp"

#include "placement/place.hpp"
#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::placement {
namespace {

std::int32_t domain_at(const NodeState& node, std::size_t position, Level level) {
  if (level == Level::kRack) return node.rack;
  return level == Level::kDomain ? node.domain : static_cast<std::int32_t>(position);
}

tl::unexpected<Error> broken(const GroupRequest& request, const BundlePlacement& bundle,
                             const std::string& why) {
  return fail(ErrorCode::kConflict, "group {}: bundle {} on {}: {}", request.name, bundle.bundle,
              bundle.node_name, why);
}

/// At socket and device level a bundle lies inside one of them.
result<void> check_inside(const GroupRequest& request, const NodeSpec& node,
                          const BundlePlacement& bundle) {
  if (request.level == Level::kDevice && bundle.devices.size() != 1)
    return broken(request, bundle,
                  fmt::format("level device, but {} devices", bundle.devices.size()));
  if (request.level != Level::kSocket) return {};
  for (const auto& [device, amount] : bundle.devices) {
    const std::int32_t socket = node.devices[static_cast<std::size_t>(device)].socket;
    if (socket != bundle.socket)
      return broken(request, bundle,
                    fmt::format("device {} is in socket {}, the bundle in {}", device, socket,
                                bundle.socket));
  }
  for (const auto& [core, amount] : bundle.cores) {
    const std::int32_t socket = socket_of_core(node, core);
    if (socket != bundle.socket)
      return broken(
          request, bundle,
          fmt::format("core {} is in socket {}, the bundle in {}", core, socket, bundle.socket));
  }
  return {};
}

std::string why_not(const NodeRules::Verdict& verdict) {
  if (verdict.kind == NodeRules::Verdict::Kind::kSelector)
    return fmt::format("label {} does not hold", to_string(*verdict.selector));
  return fmt::format("must be {} group {}", verdict.apart ? "apart from" : "near", verdict.group);
}

}  // namespace

DomainIndex::DomainIndex(const Cluster& cluster, Level level) : cluster_(&cluster), level_(level) {
  const auto nodes = cluster.nodes();
  if (level == Level::kRack) {
    count_ = cluster.tree().racks.size();
  } else if (level == Level::kDomain) {
    count_ = cluster.tree().domains.size();
  } else if (level == Level::kNode) {
    count_ = nodes.size();
  } else {
    first_.reserve(nodes.size());
    for (const NodeState& node : nodes) {
      first_.push_back(static_cast<std::int32_t>(count_));
      count_ += level == Level::kSocket ? static_cast<std::size_t>(node.spec.sockets)
                                        : node.spec.devices.size();
    }
  }
}

std::string DomainIndex::name(std::int32_t domain) const {
  const auto index = static_cast<std::size_t>(domain);
  if (level_ == Level::kRack) return fmt::format("rack {}", cluster_->tree().racks[index].name);
  if (level_ == Level::kDomain)
    return fmt::format("domain {}", cluster_->tree().domains[index].name);
  if (level_ == Level::kNode) return fmt::format("node {}", cluster_->nodes()[index].spec.name);
  const auto after = std::upper_bound(first_.begin(), first_.end(), domain);
  const auto position = static_cast<std::size_t>(after - first_.begin()) - 1;
  return fmt::format("{} {} of {}", level_name(level_), domain - first_[position],
                     cluster_->nodes()[position].spec.name);
}

DomainRules rules_of(const GroupRequest& request) {
  DomainRules rules;
  rules.single = request.strategy == Strategy::kStrictPack;
  if (rules.single) return rules;  // `validate` has seen that per-domain numbers agree
  if (request.per_domain_max > 0) rules.most = request.per_domain_max;
  if (request.per_domain_exact > 0) {
    rules.exact = request.per_domain_exact;
    rules.most = std::min(rules.most, rules.exact);
  } else if (request.strategy == Strategy::kStrictSpread && request.per_domain_max == 0) {
    rules.most = 1;
  }
  return rules;
}

NodeRules::NodeRules(const Cluster& cluster, const GroupRequest& request, bool look_at_groups)
    : cluster_(&cluster) {
  if (!look_at_groups) return;
  for (const Affinity& affinity : request.affinities) {
    const bool active = cluster.group(affinity.group) != nullptr;
    // A wish about a group that is nowhere is kept or broken by every place alike.
    if (!active && (affinity.apart || !affinity.strict)) continue;
    auto& rules = affinity.strict ? strict_ : wishes_;
    rules.push_back(rule_about(affinity.group, affinity.level, affinity.apart));
  }
  const auto* others = cluster.kept_apart_from(request.name);
  if (others == nullptr) return;
  for (const std::string& other : *others) {
    const ActiveGroup* group = cluster.group(other);
    if (group == nullptr) continue;
    for (const Affinity& affinity : group->request.affinities) {
      if (affinity.group == request.name && affinity.apart && affinity.strict)
        strict_.push_back(rule_about(other, affinity.level, true));
    }
  }
}

NodeRules::Rule NodeRules::rule_about(const std::string& group, Level level, bool apart) const {
  Rule rule{group, level, apart, {}};
  rule.occupied.assign(cluster_->node_count(), 0);  // never more racks or domains than nodes
  const ActiveGroup* other = cluster_->group(group);
  if (other == nullptr) return rule;
  for (const auto& [index, bundle] : other->bundles) {
    const std::size_t position = cluster_->position_of(bundle.node);
    const std::int32_t domain = domain_at(cluster_->nodes()[position], position, level);
    rule.occupied[static_cast<std::size_t>(domain)] = 1;
  }
  return rule;
}

bool NodeRules::holds(const Rule& rule, std::size_t position) const {
  const std::int32_t domain = domain_at(cluster_->nodes()[position], position, rule.level);
  return (rule.occupied[static_cast<std::size_t>(domain)] != 0) != rule.apart;
}

bool NodeRules::all_hold(const std::vector<Rule>& rules, std::size_t position) const {
  return std::all_of(rules.begin(), rules.end(),
                     [this, position](const Rule& rule) { return holds(rule, position); });
}

NodeRules::Verdict NodeRules::verdict(const Bundle& bundle, std::size_t position) const {
  const NodeSpec& node = cluster_->nodes()[position].spec;
  if (node.draining) return {.kind = Verdict::Kind::kDraining};
  for (const LabelSelector& selector : bundle.selectors) {
    if (!matches(selector, node.labels))
      return {.kind = Verdict::Kind::kSelector, .selector = &selector};
  }
  for (const Rule& rule : strict_) {
    if (!holds(rule, position))
      return {.kind = Verdict::Kind::kAffinity, .group = rule.group, .apart = rule.apart};
  }
  return {};
}

result<void> check_placement(const Cluster& cluster, const GroupRequest& request,
                             std::span<const BundlePlacement> bundles) {
  const DomainIndex domains(cluster, request.level);
  const DomainRules rules = rules_of(request);
  const NodeRules node_rules(cluster, request, true);
  std::map<std::int32_t, std::int32_t> counts;
  std::int32_t placed = 0;
  for (const BundlePlacement& bundle : bundles) {
    const NodeState* node = cluster.node(bundle.node);
    if (node == nullptr) return broken(request, bundle, "no such node");
    const std::size_t position = cluster.position_of(bundle.node);
    const auto index = static_cast<std::size_t>(bundle.bundle);
    if (bundle.bundle < 0 || index >= request.bundles.size())
      return broken(request, bundle, "no such bundle");
    TROUPE_TRY_VOID(check_inside(request, node->spec, bundle));
    const NodeRules::Verdict verdict = node_rules.verdict(request.bundles[index], position);
    // A node may start to drain, a group with a wish may come, after a bundle was placed.
    const bool selector = verdict.kind == NodeRules::Verdict::Kind::kSelector;
    // The group it was placed near may have ended since.
    const bool affinity = verdict.kind == NodeRules::Verdict::Kind::kAffinity &&
                          (verdict.apart || cluster.group(verdict.group) != nullptr);
    if (selector || affinity) return broken(request, bundle, why_not(verdict));
    const std::int32_t device = bundle.devices.empty() ? 0 : bundle.devices[0].device;
    const std::int32_t domain = domains.of(position, bundle.socket, device);
    std::int32_t& here = counts[domain];
    if (!rules.may_join(here, placed - here))
      return broken(request, bundle,
                    fmt::format("{} holds {} of the group, {} lie elsewhere, at most {}{}",
                                domains.name(domain), here, placed - here, rules.most,
                                rules.single ? ", all in one" : ""));
    ++here;
    ++placed;
  }
  if (bundles.size() < request.bundles.size()) return {};  // a group under repair
  for (const auto& [domain, here] : counts) {
    if (!rules.may_stay(here))
      return fail(ErrorCode::kConflict, "group {}: {} holds {} bundles, want exactly {}",
                  request.name, domains.name(domain), here, rules.exact);
  }
  return {};
}

PlacementCost cost_of(const Cluster& cluster, const GroupRequest& request,
                      std::span<const BundlePlacement> bundles) {
  const DomainIndex domains(cluster, request.level);
  const NodeRules rules(cluster, request, true);
  std::map<std::int32_t, std::int32_t> level_counts;
  std::set<std::int32_t> racks;
  std::set<std::int32_t> nv_domains;
  std::set<std::size_t> nodes;
  PlacementCost cost;
  bool wants_gpu = false;
  for (const Bundle& bundle : request.bundles)
    wants_gpu = wants_gpu || bundle.resources.gpu.units > 0;
  for (const BundlePlacement& bundle : bundles) {
    const std::size_t position = cluster.position_of(bundle.node);
    const NodeState& node = cluster.nodes()[position];
    const std::int32_t device = bundle.devices.empty() ? 0 : bundle.devices[0].device;
    ++level_counts[domains.of(position, bundle.socket, device)];
    racks.insert(node.rack);
    nv_domains.insert(node.domain);
    nodes.insert(position);
    cost.breaks_wish = cost.breaks_wish || !rules.wish_holds(position);
    cost.uses_gpu_nodes = cost.uses_gpu_nodes || (!wants_gpu && !node.spec.devices.empty());
  }
  cost.level_domains = static_cast<std::int32_t>(level_counts.size());
  if (!is_pack(request.strategy)) {
    cost.level_domains = -cost.level_domains;
    for (const auto& [domain, count] : level_counts)
      cost.level_most = std::max(cost.level_most, count);
  }
  cost.racks = static_cast<std::int32_t>(racks.size());
  cost.domains = static_cast<std::int32_t>(nv_domains.size());
  cost.nodes = static_cast<std::int32_t>(nodes.size());
  return cost;
}

}  // namespace troupe::placement

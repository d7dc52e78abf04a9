#include "placement/defragment.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace troupe::placement {
namespace {

struct Tenant {
  std::string group;
  std::int32_t bundle = 0;

  auto operator<=>(const Tenant&) const = default;
};

/// Tries to clear one set of nodes for the waiting group.
class Clearing {
 public:
  Clearing(const Cluster& cluster, const GroupRequest& request, const DefragmentOptions& options)
      : options_(options), cluster_(cluster), request_(request), placer_(options.search) {}

  /// Moves bundles off `nodes`, fewest devices first, until the group fits.
  std::optional<Defragmentation> run(const std::set<NodeId>& nodes) {
    Cluster work = cluster_;
    Defragmentation out;
    const ActiveGroup* active = cluster_.group(request_.name);
    const std::map<std::int32_t, BundlePlacement> kept =
        active != nullptr ? active->bundles : std::map<std::int32_t, BundlePlacement>{};
    for (const Tenant& tenant : tenants(nodes)) {
      if (out.moves.size() >= options_.moves_max) return std::nullopt;
      if (!move(work, tenant, nodes, out)) continue;
      PlaceResult place = placer_.place(work, request_, kept, View::kFree);
      if (place.outcome != PlaceOutcome::kFound) continue;
      out.bundles = std::move(place.bundles);
      return drop_needless(std::move(out), kept);
    }
    return std::nullopt;
  }

 private:
  /// Movable bundles on the nodes; the smallest first, for they go elsewhere most easily.
  std::vector<Tenant> tenants(const std::set<NodeId>& nodes) const {
    std::vector<std::pair<std::int64_t, Tenant>> found;
    for (const auto& [name, group] : cluster_.groups()) {
      if (!group.request.movable || name == request_.name) continue;
      for (const auto& [number, bundle] : group.bundles) {
        if (!nodes.contains(bundle.node)) continue;
        std::int64_t size = 0;
        for (const DeviceShare& share : bundle.devices) size += share.amount.units;
        found.emplace_back(size, Tenant{name, number});
      }
    }
    std::sort(found.begin(), found.end());
    std::vector<Tenant> list;
    for (auto& [size, tenant] : found) list.push_back(std::move(tenant));
    return list;
  }

  /// A place for one bundle off the nodes, with its group's other bundles where they are.
  bool move(Cluster& work, const Tenant& tenant, const std::set<NodeId>& nodes,
            Defragmentation& out) {
    const ActiveGroup group = *work.group(tenant.group);
    std::map<std::int32_t, BundlePlacement> kept = group.bundles;
    const BundlePlacement from = kept.at(tenant.bundle);
    if (!group.is_complete()) return false;  // its repair decides
    kept.erase(tenant.bundle);
    Cluster shut = work;
    TROUPE_CHECK(shut.release_bundles(tenant.group, {{tenant.bundle}}), "tenant vanished");
    for (const NodeId node : nodes) TROUPE_CHECK(shut.set_draining(node, true), "node vanished");
    PlaceResult place = placer_.place(shut, group.request, kept, View::kFree);
    if (place.outcome != PlaceOutcome::kFound) return false;
    const auto taken = work.allocate_moved(group.request, from, place.bundles.front());
    if (!taken) return false;
    out.moves.push_back({tenant.group, from, std::move(place.bundles.front())});
    return true;
  }

  /// Leaves out moves without which the group fits as well, the last ones first.
  Defragmentation drop_needless(Defragmentation out,
                                const std::map<std::int32_t, BundlePlacement>& kept) {
    for (std::size_t i = out.moves.size(); i-- > 0 && out.moves.size() > 1;) {
      std::vector<Move> fewer = out.moves;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      Cluster work = cluster_;
      const bool legal = std::all_of(fewer.begin(), fewer.end(), [&work](const Move& move) {
        const GroupRequest request = work.group(move.group)->request;
        return work.allocate_moved(request, move.from, move.to).has_value();
      });
      if (!legal) continue;
      PlaceResult place = placer_.place(work, request_, kept, View::kFree);
      if (place.outcome != PlaceOutcome::kFound) continue;
      out.moves = std::move(fewer);
      out.bundles = std::move(place.bundles);
    }
    return out;
  }

  const DefragmentOptions& options_;
  const Cluster& cluster_;
  const GroupRequest& request_;
  Placer placer_;
};

/// Sets of nodes worth clearing: single nodes, then domains, then racks; those with least to move
/// for the room they give come first. And the nodes of the place the group would wait for.
std::vector<std::set<NodeId>> node_sets(const Cluster& cluster) {
  std::map<NodeId, std::int64_t> used;
  for (const auto& [name, group] : cluster.groups()) {
    for (const auto& [number, bundle] : group.bundles) ++used[bundle.node];
  }
  std::vector<std::tuple<int, std::int64_t, std::size_t, std::set<NodeId>>> sets;
  const auto add = [&](int depth, std::size_t begin, std::size_t end) {
    std::set<NodeId> nodes;
    std::int64_t tenants = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const NodeState& node = cluster.nodes()[i];
      if (node.spec.draining) continue;
      nodes.insert(node.id);
      tenants += used[node.id];
    }
    if (!nodes.empty() && tenants > 0) sets.emplace_back(depth, tenants, begin, std::move(nodes));
  };
  for (std::size_t i = 0; i < cluster.node_count(); ++i) add(0, i, i + 1);
  for (const auto& domain : cluster.tree().domains) {
    if (domain.end - domain.begin > 1) add(1, domain.begin, domain.end);
  }
  for (const auto& rack : cluster.tree().racks) {
    if (rack.end - rack.begin > 1) add(2, rack.begin, rack.end);
  }
  std::sort(sets.begin(), sets.end());
  std::vector<std::set<NodeId>> list;
  for (auto& [depth, tenants, begin, nodes] : sets) list.push_back(std::move(nodes));
  return list;
}

}  // namespace

result<Defragmentation> suggest_moves(const Cluster& cluster, const GroupRequest& request,
                                      const DefragmentOptions& options) {
  TROUPE_TRY_VOID(validate(request));
  const ActiveGroup* active = cluster.group(request.name);
  const std::map<std::int32_t, BundlePlacement> kept =
      active != nullptr ? active->bundles : std::map<std::int32_t, BundlePlacement>{};
  Placer placer(options.search);
  if (placer.place(cluster, request, kept, View::kFree).outcome == PlaceOutcome::kFound)
    return fail(ErrorCode::kNotFound, "group {}: fits without moves", request.name);
  const PlaceResult goal = placer.place(cluster, request, kept, View::kCapacity);
  if (goal.outcome != PlaceOutcome::kFound)
    return fail(ErrorCode::kNotFound, "group {}: no place, whatever is moved", request.name);
  std::vector<std::set<NodeId>> sets(1);
  for (const BundlePlacement& bundle : goal.bundles) sets.front().insert(bundle.node);
  for (std::set<NodeId>& nodes : node_sets(cluster)) sets.push_back(std::move(nodes));
  Clearing clearing(cluster, request, options);
  std::optional<Defragmentation> best;
  std::size_t tries = 0;
  for (const std::set<NodeId>& nodes : sets) {
    if (++tries > options.tries_max) break;
    auto found = clearing.run(nodes);
    if (found && (!best || found->moves.size() < best->moves.size())) best = std::move(found);
    if (best && best->moves.size() <= 1) break;
  }
  if (!best)
    return fail(ErrorCode::kNotFound, "group {}: no moves found in {} tries", request.name,
                std::min(sets.size(), options.tries_max));
  return std::move(*best);
}

}  // namespace troupe::placement

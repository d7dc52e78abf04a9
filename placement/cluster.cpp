#include "placement/cluster.hpp"

#include "runtime/base/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace troupe::placement {
namespace {

constexpr std::int32_t kNodeIdMax = 1 << 24;  // positions are looked up in a table

/// Natural order of (rack, domain, name); a node without a domain is a domain of its own.
bool comes_before(const NodeSpec& a, const NodeSpec& b) {
  const auto key = [](const NodeSpec& node) {
    return std::tuple<std::string_view, std::string_view, bool, std::string_view>(
        node.rack, node.domain.empty() ? node.name : node.domain, node.domain.empty(), node.name);
  };
  const auto x = key(a);
  const auto y = key(b);
  if (const auto order = natural_order(std::get<0>(x), std::get<0>(y)); order != 0)
    return order < 0;
  if (const auto order = natural_order(std::get<1>(x), std::get<1>(y)); order != 0)
    return order < 0;
  if (std::get<2>(x) != std::get<2>(y)) return std::get<2>(y);
  return natural_order(std::get<3>(x), std::get<3>(y)) < 0;
}

bool same_domain(const NodeSpec& a, const NodeSpec& b) {
  return !a.domain.empty() && a.rack == b.rack && a.domain == b.domain;
}

template <class Value>
Value& grown(std::vector<Value>& values, std::size_t index) {
  if (values.size() <= index) values.resize(index + 1);
  return values[index];
}

template <class Value>
void subtract_down_to_zero(Value& from, Value amount) {
  from = std::max<Value>(from - amount, 0);
}

/// Shares in ascending order without repeats, each above zero and at most one whole.
template <class Share, class IdOf>
result<void> check_shares(const std::vector<Share>& shares, std::string_view what,
                          const BundlePlacement& bundle, IdOf id_of) {
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].amount <= Amount{} || shares[i].amount > Amount::whole(1))
      return fail(ErrorCode::kInvalidArgument, "node {} {} {}: share {}", bundle.node_name, what,
                  id_of(shares[i]), to_string(shares[i].amount));
    if (i > 0 && id_of(shares[i - 1]) >= id_of(shares[i]))
      return fail(ErrorCode::kInvalidArgument, "node {}: {} {} is listed after {}",
                  bundle.node_name, what, id_of(shares[i]), id_of(shares[i - 1]));
  }
  return {};
}

tl::unexpected<Error> not_free(const NodeState& node, std::string_view group,
                               const BundlePlacement& bundle, const std::string& what,
                               const std::string& wanted, const std::string& found) {
  return fail(ErrorCode::kConflict, "node {}: {}: group {} bundle {} wants {}, free {}",
              node.spec.name, what, group, bundle.bundle, wanted, found);
}

}  // namespace

result<Cluster> Cluster::create(std::vector<NodeSpec> nodes) {
  Cluster cluster;
  std::int32_t id = 0;
  for (NodeSpec& spec : nodes) TROUPE_TRY_VOID(cluster.insert(std::move(spec), NodeId{id++}));
  std::stable_sort(
      cluster.nodes_.begin(), cluster.nodes_.end(),
      [](const NodeState& a, const NodeState& b) { return comes_before(a.spec, b.spec); });
  cluster.rebuild();
  return cluster;
}

/// Puts the node at the end; the caller restores the order and rebuilds.
result<void> Cluster::insert(NodeSpec spec, NodeId id) {
  TROUPE_TRY_VOID(validate(spec));
  if (nodes_.size() >= kNodesMax)
    return fail(ErrorCode::kResourceExhausted, "node {}: the cluster has {} nodes, at most {}",
                spec.name, nodes_.size(), kNodesMax);
  if (id.value < 0 || id.value >= kNodeIdMax)
    return fail(ErrorCode::kInvalidArgument, "node {}: id {}, want 0 to {}", spec.name, id.value,
                kNodeIdMax - 1);
  const auto index = static_cast<std::size_t>(id.value);
  if (index < positions_.size() && positions_[index] != kUnusedId)
    return fail(ErrorCode::kAlreadyExists, "node {}: id {} was used before", spec.name, id.value);
  if (!ids_.emplace(spec.name, id).second)
    return fail(ErrorCode::kAlreadyExists, "node {}: there is a node of this name", spec.name);
  while (positions_.size() <= index) positions_.push_back(kUnusedId);
  positions_[index] = 0;
  NodeState state;
  state.id = id;
  state.cores.assign(static_cast<std::size_t>(spec.cores),
                     static_cast<std::int32_t>(Amount::kUnitsPerOne));
  state.free.devices.assign(spec.devices.size(), static_cast<std::int32_t>(Amount::kUnitsPerOne));
  state.free.cpu.assign(static_cast<std::size_t>(spec.sockets), 0);
  for (std::int32_t core = 0; core < spec.cores; ++core) {
    const std::int32_t socket = socket_of_core(spec, core);
    state.core_sockets.push_back(static_cast<std::uint8_t>(socket));
    state.free.cpu[static_cast<std::size_t>(socket)] += Amount::kUnitsPerOne;
  }
  state.free.memory = spec.memory.value;
  for (const auto& [name, amount] : spec.named) {
    const std::size_t named = named_.emplace(name, named_.size()).first->second;
    grown(state.free.named, named) = amount.units;
  }
  state.capacity = state.free;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    if (spec.devices[i].failed) state.capacity.devices[i] = 0;
  }
  state.spec = std::move(spec);
  nodes_.push_back(std::move(state));
  return {};
}

result<NodeId> Cluster::add_node(NodeSpec spec) {
  const NodeId id{static_cast<std::int32_t>(positions_.size())};
  TROUPE_TRY_VOID(add_node(std::move(spec), id));
  return id;
}

result<void> Cluster::add_node(NodeSpec spec, NodeId id) {
  TROUPE_TRY_VOID(insert(std::move(spec), id));
  NodeState added = std::move(nodes_.back());
  nodes_.pop_back();
  const auto at = std::upper_bound(
      nodes_.begin(), nodes_.end(), added,
      [](const NodeState& a, const NodeState& b) { return comes_before(a.spec, b.spec); });
  nodes_.insert(at, std::move(added));
  rebuild();
  return {};
}

result<std::vector<LostBundle>> Cluster::remove_node(NodeId id) {
  if (node(id) == nullptr) return fail(ErrorCode::kNotFound, "no node with id {}", id.value);
  std::vector<LostBundle> lost;
  for (auto& [name, group] : groups_) {
    for (auto at = group.bundles.begin(); at != group.bundles.end();) {
      if (at->second.node != id) {
        ++at;
        continue;
      }
      lost.push_back({name, at->first});
      at = group.bundles.erase(at);
    }
  }
  const std::size_t position = position_of(id);
  ids_.erase(ids_.find(nodes_[position].spec.name));
  nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(position));
  positions_[static_cast<std::size_t>(id.value)] = kGoneId;
  rebuild();
  return lost;
}

result<void> Cluster::set_draining(NodeId id, bool draining) {
  if (node(id) == nullptr) return fail(ErrorCode::kNotFound, "no node with id {}", id.value);
  const std::size_t position = position_of(id);
  nodes_[position].spec.draining = draining;
  refresh_capacity(position);
  ++version_;
  ++topology_version_;
  return {};
}

result<void> Cluster::set_device_failed(NodeId id, std::int32_t device, bool failed) {
  if (node(id) == nullptr) return fail(ErrorCode::kNotFound, "no node with id {}", id.value);
  const std::size_t position = position_of(id);
  NodeState& state = nodes_[position];
  const auto index = static_cast<std::size_t>(device);
  if (device < 0 || index >= state.spec.devices.size())
    return fail(ErrorCode::kNotFound, "node {}: no device {} of {}", state.spec.name, device,
                state.spec.devices.size());
  state.spec.devices[index].failed = failed;
  state.capacity.devices[index] = failed ? 0 : static_cast<std::int32_t>(Amount::kUnitsPerOne);
  refresh_capacity(position);
  ++version_;
  ++topology_version_;
  return {};
}

std::optional<NodeId> Cluster::find_node(std::string_view name) const {
  const auto found = ids_.find(name);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const NodeState* Cluster::node(NodeId id) const {
  const auto index = static_cast<std::size_t>(id.value);
  if (id.value < 0 || index >= positions_.size() || positions_[index] < 0) return nullptr;
  return &nodes_[static_cast<std::size_t>(positions_[index])];
}

std::size_t Cluster::position_of(NodeId id) const {
  const NodeState* found = node(id);
  TROUPE_CHECK(found != nullptr, "cluster: no node with id {}", id.value);
  return static_cast<std::size_t>(found - nodes_.data());
}

void Cluster::rebuild() {
  tree_ = {};
  holds_.clear();  // they are by position, and the next pass makes them anew
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    NodeState& state = nodes_[i];
    positions_[static_cast<std::size_t>(state.id.value)] = static_cast<std::int32_t>(i);
    const NodeSpec& spec = state.spec;
    if (i == 0 || nodes_[i - 1].spec.rack != spec.rack) {
      tree_.racks.push_back({spec.rack, i, i, tree_.domains.size(), tree_.domains.size()});
    }
    TopologyTree::Rack& rack = tree_.racks.back();
    if (rack.begin == i || !same_domain(nodes_[i - 1].spec, spec)) {
      tree_.domains.push_back({spec.domain.empty() ? spec.name : spec.domain,
                               static_cast<std::int32_t>(tree_.racks.size() - 1), i, i});
    }
    tree_.domains.back().end = i + 1;
    rack.end = i + 1;
    rack.domain_end = tree_.domains.size();
    state.rack = static_cast<std::int32_t>(tree_.racks.size() - 1);
    state.domain = static_cast<std::int32_t>(tree_.domains.size() - 1);
  }
  offered_.resize(nodes_.size());
  offered_capacity_.resize(nodes_.size());
  capacity_.resize(nodes_.size());
  plain_.resize(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) refresh_capacity(i);
  ++version_;
  ++topology_version_;
}

void Cluster::subtract_hold(std::size_t position, NodeFree& free) const {
  const auto held = holds_.find(position);
  if (held == holds_.end()) return;
  const NodeFree& amounts = held->second;
  for (std::size_t i = 0; i < amounts.devices.size(); ++i)
    subtract_down_to_zero(free.devices[i], amounts.devices[i]);
  // Cores are alike, so only the node's sum must stay; each socket gives its own part first.
  std::int64_t over = 0;
  for (std::size_t i = 0; i < amounts.cpu.size(); ++i) {
    over += std::max<std::int64_t>(amounts.cpu[i] - free.cpu[i], 0);
    subtract_down_to_zero(free.cpu[i], amounts.cpu[i]);
  }
  for (std::size_t i = 0; i < free.cpu.size() && over > 0; ++i) {
    const std::int64_t part = std::min(over, free.cpu[i]);
    free.cpu[i] -= part;
    over -= part;
  }
  subtract_down_to_zero(free.memory, amounts.memory);
  for (std::size_t i = 0; i < std::min(amounts.named.size(), free.named.size()); ++i)
    subtract_down_to_zero(free.named[i], amounts.named[i]);
}

std::span<const NodeSummary> Cluster::summaries(View view) const {
  if (view == View::kFree) return offered_;
  return view == View::kCapacity ? offered_capacity_ : capacity_;
}

const NodeFree* Cluster::plain_free(std::size_t position, View view) const {
  if (view == View::kEmpty) return &nodes_[position].capacity;
  if (plain_[position] == 0) return nullptr;
  return view == View::kFree ? &nodes_[position].free : &nodes_[position].capacity;
}

NodeFree Cluster::free_at(std::size_t position, View view) const {
  const NodeState& state = nodes_[position];
  NodeFree free = view == View::kFree ? state.free : state.capacity;
  for (std::size_t i = 0; i < free.devices.size(); ++i) {
    if (state.spec.devices[i].failed) free.devices[i] = 0;
  }
  if (view != View::kEmpty) subtract_hold(position, free);
  return free;
}

void Cluster::refresh(std::size_t position) {
  const NodeState& state = nodes_[position];
  const bool accepts = !state.spec.draining;
  offered_[position] = plain_[position] != 0 ? summary_of(state.free, accepts)
                                             : summary_of(free_at(position, View::kFree), accepts);
}

void Cluster::refresh_capacity(std::size_t position) {
  const NodeState& state = nodes_[position];
  bool plain = !holds_.contains(position);
  for (const DeviceSpec& device : state.spec.devices) plain = plain && !device.failed;
  plain_[position] = plain ? 1 : 0;
  offered_capacity_[position] =
      summary_of(free_at(position, View::kCapacity), !state.spec.draining);
  capacity_[position] = summary_of(state.capacity, !state.spec.draining);
  refresh(position);
}

result<void> Cluster::take(const BundlePlacement& bundle, std::string_view group) {
  const NodeState* found = node(bundle.node);
  if (found == nullptr || found->spec.name != bundle.node_name)
    return fail(ErrorCode::kConflict, "group {} bundle {}: no node {} with id {}", group,
                bundle.bundle, bundle.node_name, bundle.node.value);
  NodeState& state = state_of(bundle.node);
  TROUPE_TRY_VOID(
      check_shares(bundle.devices, "device", bundle, [](const auto& s) { return s.device; }));
  TROUPE_TRY_VOID(check_shares(bundle.cores, "core", bundle, [](const auto& s) { return s.core; }));
  for (const auto& [id, amount] : bundle.devices) {
    const auto index = static_cast<std::size_t>(id);
    const bool exists = id >= 0 && index < state.free.devices.size();
    const Amount free{exists ? state.free.devices[index] : 0};
    if (free < amount)
      return not_free(state, group, bundle, fmt::format("device {}", id), to_string(amount),
                      to_string(free));
  }
  for (const auto& [id, amount] : bundle.cores) {
    const auto index = static_cast<std::size_t>(id);
    const bool exists = id >= 0 && index < state.cores.size();
    const Amount free{exists ? state.cores[index] : 0};
    if (free < amount)
      return not_free(state, group, bundle, fmt::format("core {}", id), to_string(amount),
                      to_string(free));
  }
  if (bundle.memory < Bytes{0} || bundle.memory.value > state.free.memory)
    return not_free(state, group, bundle, "memory", to_string(bundle.memory),
                    to_string(Bytes{state.free.memory}));
  for (const auto& [name, amount] : bundle.named) {
    const auto index = named_index(name);
    const bool exists = index && *index < state.free.named.size();
    const Amount free{exists ? state.free.named[*index] : 0};
    if (amount < Amount{} || free < amount)
      return not_free(state, group, bundle, name, to_string(amount), to_string(free));
  }
  for (const auto& [id, amount] : bundle.devices)
    state.free.devices[static_cast<std::size_t>(id)] -= static_cast<std::int32_t>(amount.units);
  for (const auto& [id, amount] : bundle.cores) {
    state.cores[static_cast<std::size_t>(id)] -= static_cast<std::int32_t>(amount.units);
    state.free.cpu[state.core_sockets[static_cast<std::size_t>(id)]] -= amount.units;
  }
  state.free.memory -= bundle.memory.value;
  for (const auto& [name, amount] : bundle.named) {
    if (amount.units > 0) state.free.named[*named_index(name)] -= amount.units;
  }
  refresh(position_of(bundle.node));
  return {};
}

void Cluster::give_back(const BundlePlacement& bundle) {
  NodeState& state = state_of(bundle.node);
  for (const auto& [id, amount] : bundle.devices)
    state.free.devices[static_cast<std::size_t>(id)] += static_cast<std::int32_t>(amount.units);
  for (const auto& [id, amount] : bundle.cores) {
    state.cores[static_cast<std::size_t>(id)] += static_cast<std::int32_t>(amount.units);
    state.free.cpu[state.core_sockets[static_cast<std::size_t>(id)]] += amount.units;
  }
  state.free.memory += bundle.memory.value;
  for (const auto& [name, amount] : bundle.named) {
    if (amount.units > 0) state.free.named[*named_index(name)] += amount.units;
  }
  refresh(position_of(bundle.node));
}

result<void> Cluster::allocate(const GroupRequest& request,
                               std::span<const BundlePlacement> bundles) {
  const auto existing = groups_.find(request.name);
  std::size_t taken = 0;
  result<void> state;
  std::set<std::int32_t> seen;
  for (const BundlePlacement& bundle : bundles) {
    const bool in_range =
        bundle.bundle >= 0 && static_cast<std::size_t>(bundle.bundle) < request.bundles.size();
    if (!in_range) {
      state = fail(ErrorCode::kInvalidArgument, "group {}: no bundle {} of {}", request.name,
                   bundle.bundle, request.bundles.size());
    } else if ((existing != groups_.end() && existing->second.bundles.contains(bundle.bundle)) ||
               (bundles.size() > 1 && !seen.insert(bundle.bundle).second)) {
      state = fail(ErrorCode::kAlreadyExists, "group {} holds bundle {} already", request.name,
                   bundle.bundle);
    } else {
      state = take(bundle, request.name);
    }
    if (!state) break;
    ++taken;
  }
  if (!state) {
    for (const BundlePlacement& bundle : bundles.first(taken)) give_back(bundle);
    return state;
  }
  ActiveGroup& group = existing != groups_.end() ? existing->second : groups_[request.name];
  forget_affinities(group.request);
  if (existing == groups_.end() || group.request != request) group.request = request;
  learn_affinities(group.request);
  for (const BundlePlacement& bundle : bundles) group.bundles.emplace(bundle.bundle, bundle);
  ++version_;
  return {};
}

result<void> Cluster::release(std::string_view group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return fail(ErrorCode::kNotFound, "no active group {}", group);
  for (const auto& [index, bundle] : found->second.bundles) give_back(bundle);
  forget_affinities(found->second.request);
  groups_.erase(found);
  ++version_;
  return {};
}

result<void> Cluster::release_bundles(std::string_view group,
                                      std::span<const std::int32_t> bundles) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return fail(ErrorCode::kNotFound, "no active group {}", group);
  for (const std::int32_t bundle : bundles) {
    if (!found->second.bundles.contains(bundle))
      return fail(ErrorCode::kNotFound, "group {} holds no bundle {}", group, bundle);
  }
  for (const std::int32_t bundle : bundles) {
    const auto at = found->second.bundles.find(bundle);
    if (at == found->second.bundles.end()) continue;  // listed twice
    give_back(at->second);
    found->second.bundles.erase(at);
  }
  ++version_;
  return {};
}

result<void> Cluster::allocate_moved(const GroupRequest& request, const BundlePlacement& from,
                                     const BundlePlacement& to) {
  TROUPE_TRY_VOID(release_bundles(request.name, {{from.bundle}}));
  auto moved = allocate(request, {{to}});
  if (moved) return moved;
  const auto restored = allocate(request, {{from}});
  TROUPE_CHECK(restored, "cluster: {}", restored.error().message);
  return moved;
}

const ActiveGroup* Cluster::group(std::string_view name) const {
  const auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : &found->second;
}

void Cluster::learn_affinities(const GroupRequest& request) {
  for (const Affinity& affinity : request.affinities) {
    if (affinity.apart && affinity.strict) kept_apart_[affinity.group].insert(request.name);
  }
}

void Cluster::forget_affinities(const GroupRequest& request) {
  for (const Affinity& affinity : request.affinities) {
    const auto found = kept_apart_.find(affinity.group);
    if (!affinity.apart || !affinity.strict || found == kept_apart_.end()) continue;
    found->second.erase(request.name);
    if (found->second.empty()) kept_apart_.erase(found);
  }
}

const std::set<std::string>* Cluster::kept_apart_from(std::string_view group) const {
  const auto found = kept_apart_.find(group);
  return found == kept_apart_.end() ? nullptr : &found->second;
}

std::optional<std::size_t> Cluster::named_index(std::string_view name) const {
  const auto found = named_.find(name);
  if (found == named_.end()) return std::nullopt;
  return found->second;
}

void Cluster::hold(std::span<const BundlePlacement> bundles) {
  for (const BundlePlacement& bundle : bundles) {
    if (node(bundle.node) == nullptr) continue;
    const std::size_t position = position_of(bundle.node);
    NodeFree& held = holds_[position];
    for (const auto& [device, amount] : bundle.devices)
      grown(held.devices, static_cast<std::size_t>(device)) +=
          static_cast<std::int32_t>(amount.units);
    const NodeSpec& spec = nodes_[position].spec;
    for (const auto& [core, amount] : bundle.cores)
      grown(held.cpu, static_cast<std::size_t>(socket_of_core(spec, core))) += amount.units;
    held.memory += bundle.memory.value;
    for (const auto& [name, amount] : bundle.named) {
      if (const auto index = named_index(name)) grown(held.named, *index) += amount.units;
    }
    refresh_capacity(position);
  }
}

void Cluster::clear_holds() {
  std::map<std::size_t, NodeFree> gone;
  gone.swap(holds_);
  for (const auto& [position, held] : gone) {
    refresh_capacity(position);
  }
}

void Cluster::check_invariants() const {
  std::map<std::int32_t, NodeFree> used;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> cores;
  for (const auto& [name, group] : groups_) {
    for (const auto& [index, bundle] : group.bundles) {
      const NodeState* at = node(bundle.node);
      TROUPE_CHECK(at != nullptr, "group {} bundle {}: its node is gone", name, index);
      NodeFree& sum = used[bundle.node.value];
      for (const auto& [device, amount] : bundle.devices)
        grown(sum.devices, static_cast<std::size_t>(device)) +=
            static_cast<std::int32_t>(amount.units);
      for (const auto& [core, amount] : bundle.cores) {
        cores[{bundle.node.value, core}] += amount.units;
        grown(sum.cpu, static_cast<std::size_t>(socket_of_core(at->spec, core))) += amount.units;
      }
      sum.memory += bundle.memory.value;
      for (const auto& [resource, amount] : bundle.named) {
        if (const auto named = named_index(resource)) grown(sum.named, *named) += amount.units;
      }
    }
  }
  for (const NodeState& state : nodes_) {
    NodeFree& sum = used[state.id.value];
    NodeFree total = state.free;
    for (std::size_t i = 0; i < total.devices.size(); ++i) {
      const std::int64_t device = total.devices[i] + grown(sum.devices, i);
      TROUPE_CHECK(total.devices[i] >= 0 && device == Amount::kUnitsPerOne,
                   "node {} device {}: free and given make {}", state.spec.name, i, device);
    }
    for (std::size_t i = 0; i < total.cpu.size(); ++i)
      TROUPE_CHECK(total.cpu[i] >= 0 && total.cpu[i] + grown(sum.cpu, i) == state.capacity.cpu[i],
                   "node {} socket {}: cpu free {} and given {} of {}", state.spec.name, i,
                   total.cpu[i], sum.cpu[i], state.capacity.cpu[i]);
    for (std::size_t i = 0; i < state.cores.size(); ++i) {
      const std::int64_t core = state.cores[i] + cores[{state.id.value, static_cast<int>(i)}];
      TROUPE_CHECK(state.cores[i] >= 0 && core == Amount::kUnitsPerOne,
                   "node {} core {}: free and given make {}", state.spec.name, i, core);
    }
    TROUPE_CHECK(total.memory >= 0 && total.memory + sum.memory == state.capacity.memory,
                 "node {}: memory free {} and given {} of {}", state.spec.name, total.memory,
                 sum.memory, state.capacity.memory);
    for (std::size_t i = 0; i < total.named.size(); ++i)
      TROUPE_CHECK(
          total.named[i] >= 0 && total.named[i] + grown(sum.named, i) == state.capacity.named[i],
          "node {} named {}: free {} and given {}", state.spec.name, i, total.named[i],
          sum.named[i]);
  }
}

}  // namespace troupe::placement

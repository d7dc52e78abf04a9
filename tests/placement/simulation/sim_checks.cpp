#include "placement/place.hpp"
#include "placement/scheduler.hpp"
#include "tests/placement/simulation/sim_world.hpp"

#include <algorithm>
#include <utility>

namespace troupe::placement::simulation {

void SimWorld::check_all() {
  const bool head = std::exchange(head_touched_, false);
  const bool nodes = std::exchange(nodes_touched_, false);
  if (nodes) check_nodes();
  if (!head_) return;
  if (head || nodes) check_groups();
  // What the core says of itself is dear to check and follows from few places.
  if (head && ++head_checks_ % 8 == 0) head_->check_invariants();
}

/// A unit belongs to at most one live reservation; sums stay within the node.
void SimWorld::check_nodes() {
  for (const SimNode& node : nodes_) {
    if (!node.core) continue;
    const TimePoint now = now_ + node.clock_ahead;
    std::map<std::int32_t, std::int64_t> devices;
    std::map<std::int32_t, std::int64_t> cores;
    std::map<std::string, std::int64_t> named;
    std::int64_t memory = 0;
    for (const auto& [key, held] : node.core->held()) {
      if (!held.committed) {
        if (held.lease_until <= now) continue;
        require(held.lease_until - now <= plan_.core.lease,
                "node {}: group {} is prepared beyond its lease", node.spec.name, held.group.value);
      }
      for (const DeviceShare& share : held.placement.devices)
        devices[share.device] += share.amount.units;
      for (const CoreShare& share : held.placement.cores) cores[share.core] += share.amount.units;
      for (const auto& [name, amount] : held.placement.named) named[name] += amount.units;
      memory += held.placement.memory.value;
    }
    for (const auto& [device, units] : devices)
      require(device >= 0 && static_cast<std::size_t>(device) < node.spec.devices.size() &&
                  units <= Amount::kUnitsPerOne,
              "node {}: device {} is given out {} times", node.spec.name, device,
              Amount{units}.value());
    for (const auto& [core, units] : cores)
      require(core >= 0 && core < node.spec.cores && units <= Amount::kUnitsPerOne,
              "node {}: core {} is given out {} times", node.spec.name, core,
              Amount{units}.value());
    require(memory <= node.spec.memory.value, "node {}: {} bytes of {} are given out",
            node.spec.name, memory, node.spec.memory.value);
    for (const auto& [name, units] : named) {
      const auto has = node.spec.named.find(name);
      require(has != node.spec.named.end() && units <= has->second.units,
              "node {}: {} units of {} are given out", node.spec.name, units, name);
    }
  }
}

/// Active groups keep their strategy and really hold what the head says; replay gives the state.
void SimWorld::check_groups() {
  std::map<std::string, bool> attached;
  for (const NodeView& view : head_->nodes()) attached[view.name] = view.attached;
  std::size_t live = 0;
  head_->for_each_group([&](const LedgerGroup& group, GroupStatus status) {
    if (status == GroupStatus::kRemoving) {
      require(!appended_.groups.contains(group.id), "group {}: is being removed without a record",
              group.id.value);
      return;
    }
    ++live;
    const auto recorded = appended_.groups.find(group.id);
    require(recorded != appended_.groups.end() && recorded->second == group,
            "group {}: replay of the ledger gives another state", group.id.value);
    if (status != GroupStatus::kActive) return;
    std::vector<BundlePlacement> placements;
    bool all_in_cluster = true;
    for (const auto& [bundle, slot] : group.slots) {
      const BundlePlacement& placement = slot.slot.placement;
      placements.push_back(placement);
      all_in_cluster = all_in_cluster && head_->cluster().node(placement.node) != nullptr;
      if (!attached[placement.node_name]) continue;
      const auto committed = committed_.find({group.id, slot.slot.slot, slot.epoch});
      require(committed != committed_.end(), "group {}: active, yet slot {} was never committed",
              group.id.value, slot.slot.slot);
      const SimNode& node = nodes_[committed->second.first];
      if (!node.core || node.incarnation != committed->second.second) continue;
      const auto held = node.core->held().find({group.id, slot.slot.slot});
      require(held != node.core->held().end() && held->second.committed &&
                  held->second.epoch == slot.epoch,
              "group {}: active, yet node {} does not hold slot {}", group.id.value, node.spec.name,
              slot.slot.slot);
    }
    if (!all_in_cluster) return;
    const result<void> kept = check_placement(head_->cluster(), group.request, placements);
    require(kept.has_value(), "group {}: {}", group.id.value,
            kept ? std::string() : kept.error().message);
  });
  require(live == appended_.groups.size(), "the head has {} groups, the ledger {}", live,
          appended_.groups.size());
}

/// Nothing leaves the head that a crash could make untrue.
void SimWorld::check_outward(const CoreEffects& effects) {
  const LedgerState& durable = ledger_.durable();
  for (const Answer& answer : effects.answers) {
    const auto* outcomes = std::get_if<GroupOutcomes>(&answer.body);
    if (outcomes == nullptr) continue;
    for (const result<GroupId>& id : *outcomes) {
      if (!id) continue;
      require(*id < durable.counters.next_group, "group {}: answered before it was durable",
              id->value);
      const SimToken& token = tokens_.at(answer.token);
      const SimClient& client = clients_[token.endpoint - nodes_.size()];
      const auto request = client.open.find(token.number);
      if (request != client.open.end() && request->second.kind == SimRequest::Kind::kRemove)
        check_removed(*id);
    }
  }
  for (const TellOwner& told : effects.changes) {
    for (const GroupChange& change : told.changes) {
      const auto group = durable.groups.find(change.group);
      if (change.kind == ChangeKind::kRemoved) {
        require(group == durable.groups.end(), "group {}: told removed before that was durable",
                change.group.value);
        check_removed(change.group);
        continue;
      }
      require(change.group < durable.counters.next_group, "group {}: told before it was durable",
              change.group.value);
      if (group == durable.groups.end()) continue;
      require(change.epoch <= group->second.epoch, "group {}: told of epoch {}, durable is {}",
              change.group.value, change.epoch.value, group->second.epoch.value);
    }
  }
}

/// A removed group leaves nothing on the nodes that the head can see.
void SimWorld::check_removed(GroupId id) {
  for (const NodeView& view : head_->nodes()) {
    // One that was away when the group went and is being told now.
    if (!view.attached || view.cancelling.contains(id)) continue;
    for (const SimNode& node : nodes_) {
      if (node.spec.name != view.name || !node.core) continue;
      const auto held = node.core->held().lower_bound({id, 0});
      require(held == node.core->held().end() || held->first.first != id,
              "group {}: removed, yet node {} holds slot {}", id.value, node.spec.name,
              held == node.core->held().end() ? 0 : held->first.second);
    }
  }
}

/// What a node applied is newer than all it applied before.
void SimWorld::check_pass_order(SimNode& node, const NodePass& pass) {
  const auto next = std::tuple(pass.term, pass.session, pass.number);
  const auto last = std::tuple(node.term, node.session, node.number);
  require(next > last, "node {}: applied pass ({}, {}, {}) after ({}, {}, {})", node.spec.name,
          pass.term, pass.session, pass.number, node.term, node.session, node.number);
  std::tie(node.term, node.session, node.number) = next;
}

// ---- liveness ------------------------------------------------------------------------------

/// After so long without faults everything that can happen has happened.
Duration SimWorld::patience() const {
  const CoreOptions& core = plan_.core;
  return core.settle + core.owner_lease + core.reattach_within + core.backoff_max * 2 +
         core.repair_hold + core.truth_every + core.reply_within * 3 + core.repass_every +
         std::chrono::seconds(30);
}

void SimWorld::check_quiescent() {
  require(head_.has_value(), "the head is down");
  for (const NodeView& view : head_->nodes())
    require(view.attached, "node {} is not attached", view.name);
  require(head_->nodes().size() == nodes_.size(), "{} of {} nodes are attached",
          head_->nodes().size(), nodes_.size());
  require(head_->attempts_open() == 0, "{} attempts are under way", head_->attempts_open());
  Cluster copy = head_->cluster();
  std::vector<QueuedGroup> waiting;
  std::map<std::string, std::string> why;
  head_->for_each_group([&](const LedgerGroup& group, GroupStatus status) {
    if (status == GroupStatus::kActive) return;
    const GroupView view = head_->view(group.id);
    why[view.name] = view.why;
    require(!view.why.empty(), "group {}: {} without saying why", group.id.value,
            group_status_name(status));
    require(status == GroupStatus::kPending || status == GroupStatus::kRescheduling ||
                status == GroupStatus::kInfeasible,
            "group {}: still {}", group.id.value, group_status_name(status));
    Scheduler fresh(plan_.core.scheduler);
    const bool feasible = fresh.check_feasible(copy, group.request).has_value();
    require(feasible == (status != GroupStatus::kInfeasible), "group {}: {} ({}), yet {}",
            group.id.value, group_status_name(status), view.why,
            feasible ? "feasible" : "infeasible");
    if (status != GroupStatus::kInfeasible)
      waiting.push_back({.request = group.request, .arrival = group.id.value, .waited = view.age});
  });
  Scheduler fresh(plan_.core.scheduler);
  const result<PassResult> pass = fresh.pass(copy, waiting);
  require(pass.has_value(), "a pass over the waiting groups fails");
  const std::string reserved(wait_reason_name(WaitReason::kReserved));
  for (const Decision& decision : pass->decisions) {
    // What would fit only where a place is held for a group before it may wait; that it gets its
    // turn is shown when groups are removed one by one. The scheduler does not tell that reason of
    // groups under repair.
    const bool repaired = head_->cluster().group(decision.group) != nullptr;
    require(decision.kind != DecisionKind::kPlaced || why[decision.group] == reserved || repaired,
            "group '{}' waits, yet it fits: {}", decision.group, why[decision.group]);
  }
  check_clients();
}

/// Owners know of their groups what the head knows.
void SimWorld::check_clients() {
  for (const SimClient& client : clients_) {
    require(client.open.empty(), "{}: request {} never ended", client.owner.name,
            client.open.empty() ? 0 : client.open.begin()->first);
    std::set<GroupId> owned;
    head_->for_each_group([&](const LedgerGroup& group, GroupStatus status) {
      if (group.owner != client.owner) return;
      owned.insert(group.id);
      const auto known = client.groups.find(group.id);
      require(known != client.groups.end(), "{}: was not told of group {}", client.owner.name,
              group.id.value);
      if (status == GroupStatus::kActive)
        require(known->second.status == status, "{}: group {} is active, told {}",
                client.owner.name, group.id.value, group_status_name(known->second.status));
    });
    for (const auto& [id, known] : client.groups)
      require(owned.contains(id), "{}: believes in group {}", client.owner.name, id.value);
  }
}

/// Removes groups one after the other; all that waited must get their turn.
void SimWorld::drain_groups() {
  SimClient& admin = clients_.back();
  const auto settled = [this] {
    bool all = head_->attempts_open() == 0;
    head_->for_each_group([&](const LedgerGroup&, GroupStatus status) {
      all = all && status != GroupStatus::kRemoving && status != GroupStatus::kPrepared;
    });
    return all;
  };
  for (;;) {
    std::optional<GroupId> active;
    std::optional<GroupId> infeasible;
    std::size_t count = 0;
    head_->for_each_group([&](const LedgerGroup& group, GroupStatus status) {
      ++count;
      if (status == GroupStatus::kActive && !active) active = group.id;
      if (status == GroupStatus::kInfeasible && !infeasible) infeasible = group.id;
    });
    if (count == 0) return;
    std::string waiting;
    head_->for_each_group([&](const LedgerGroup& group, GroupStatus status) {
      waiting += fmt::format(" {} {} ({})", group.id.value, group_status_name(status),
                             head_->view(group.id).why);
    });
    require(active || infeasible, "no group is active:{}", waiting);
    const std::uint64_t number = admin.next_number++;
    admin.open[number] =
        SimRequest{.kind = SimRequest::Kind::kRemove, .remove = active ? *active : *infeasible};
    ask(admin, number);
    const TimePoint end = now_ + std::chrono::seconds(10) + plan_.core.backoff_max;
    while (now_ < end && (admin.open.contains(number) || !settled())) {
      require(run_one(), "nothing happens any more");
    }
    run_until(now_ + plan_.latency_max * 8 + plan_.flush_max * 4 + std::chrono::milliseconds(50));
    require(!admin.open.contains(number), "the removal of group {} does not end",
            admin.open.begin()->second.remove.value);
  }
}

void SimWorld::check_empty() {
  run_until(now_ + plan_.core.lease + std::chrono::seconds(1));
  for (SimNode& node : nodes_) {
    if (!node.core) continue;
    node.core->expire(now_ + node.clock_ahead);
    require(node.core->held().empty(), "node {}: {} slots are left over", node.spec.name,
            node.core->held().size());
  }
  require(head_->cluster().groups().empty(), "{} groups are left over in the cluster",
          head_->cluster().groups().size());
  require(head_->requests_open() == 0, "{} requests were never answered", head_->requests_open());
  require(ledger_.durable().groups.empty(), "{} groups are left over in the ledger",
          ledger_.durable().groups.size());
}

}  // namespace troupe::placement::simulation

#include "placement/placement_core.hpp"

#include "placement/core_machine.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::placement {

// ---- the machine ---------------------------------------------------------------------------

CoreMachine::CoreMachine(CoreOptions options, LedgerState ledger, TimePoint now)
    : options_(std::move(options)),
      counters_(ledger.counters),
      started_(now),
      now_(now),
      scheduler_(options_.scheduler) {
  ++counters_.term;
  for (auto& [id, saved] : ledger.groups) {
    Group group{.ledger = std::move(saved)};
    group.created = group.queued_since = now;
    group.next_slot = group.ledger.next_slot;
    group.status = group.ledger.was_active ? GroupStatus::kRescheduling : GroupStatus::kPending;
    if (group.complete()) group.status = GroupStatus::kActive;
    group.why = "the head was restarted";
    bundles_ += group.ledger.request.bundles.size();
    names_.emplace(group.name(), id);
    for (const auto& [bundle, slot] : group.ledger.slots) {
      // Nodes that hold bundles have until `settle` to come back.
      const BundlePlacement& placement = slot.slot.placement;
      NodeLink& link = nodes_[placement.node_name];
      link.id = placement.node;
      link.spec.name = placement.node_name;
      link.lost_at = now + options_.settle;
      node_names_[placement.node] = placement.node_name;
    }
    OwnerLink& owner = owners_[group.ledger.owner];
    owner.groups.insert(id);
    owner.numbers.emplace(group.ledger.number, id);
    owner.lost_at = now + options_.settle + options_.owner_lease;
    Group& kept = groups_.emplace(id, std::move(group)).first->second;
    if (!kept.complete()) {
      for (std::int32_t i = 0; i < static_cast<std::int32_t>(kept.wanted().bundles.size()); ++i) {
        if (kept.ledger.was_active && !kept.ledger.slots.contains(i)) kept.lost.push_back(i);
      }
      if (kept.ledger.was_active) kept.lost_since = now;
      add_timer(now, TimerKind::kGroup, id.value);
    }
    reindex(kept);
  }
  for (auto& [name, link] : nodes_) wake_link_at(link, *link.lost_at);
  for (const auto& [owner, link] : owners_)
    add_timer(*link.lost_at, TimerKind::kOwner, owner.instance, owner.name);
}

CoreEffects CoreMachine::step(const std::vector<CoreEvent>& events, TimePoint now, Rng& rng) {
  now_ = std::max(now_, now);
  rng_ = &rng;
  effects_ = {};
  for (const CoreEvent& event : events) std::visit([this](const auto& one) { handle(one); }, event);
  run_timers();
  run_pass();
  if (!waiting_.empty()) {
    const TimePoint at = pass_wanted_ ? next_pass_ : now_ + options_.repass_every;
    wake_pass_at(std::max(now_, at));
  }
  for (const std::string& name : std::exchange(busy_, {})) send_due(nodes_.find(name)->second);
  snapshot_if_due();
  release_deferred();
  effects_.last_record = records_;
  return std::exchange(effects_, {});
}

void CoreMachine::handle(const LedgerDurable& event) {
  durable_ = std::max(durable_, event.records);
}

void CoreMachine::defer(std::variant<Answer, std::pair<Owner, GroupChange>> effect) {
  deferred_.push_back({.record = records_, .effect = std::move(effect)});
}

void CoreMachine::release_deferred() {
  const bool early = options_.mutation == CoreMutation::kAnswerEarly;
  while (!deferred_.empty() && (deferred_.front().record <= durable_ || early)) {
    auto effect = std::move(deferred_.front().effect);
    deferred_.pop_front();
    if (auto* const one = std::get_if<Answer>(&effect)) {
      effects_.answers.push_back(std::move(*one));
      continue;
    }
    auto& [owner, change] = std::get<std::pair<Owner, GroupChange>>(effect);
    const auto link = owners_.find(owner);
    if (link == owners_.end() || link->second.connection == 0) continue;
    const ConnectionId connection = link->second.connection;
    if (effects_.changes.empty() || effects_.changes.back().connection != connection)
      effects_.changes.push_back({.connection = connection, .changes = {}});
    effects_.changes.back().changes.push_back(std::move(change));
  }
}

void CoreMachine::add_timer(TimePoint at, TimerKind kind, std::uint64_t key, std::string name) {
  timers_.emplace(at, kind, key, std::move(name));
}

void CoreMachine::wake_pass_at(TimePoint at) {
  if (pass_at_ && *pass_at_ <= at) return;
  pass_at_ = at;
  add_timer(at, TimerKind::kPass, 0);
}

void CoreMachine::run_timers() {
  std::vector<Timer> due;
  while (!timers_.empty() && std::get<TimePoint>(*timers_.begin()) <= now_)
    due.push_back(std::move(timers_.extract(timers_.begin()).value()));
  for (const auto& [at, kind, key, name] : due) {
    switch (kind) {
      case TimerKind::kGroup:
        if (Group* const group = group_of(GroupId{key})) look_at(*group);
        break;
      case TimerKind::kNode:
        if (const auto found = nodes_.find(name); found != nodes_.end()) look_at(found->second);
        break;
      case TimerKind::kOwner:
        owner_gone({.name = name, .instance = key});
        break;
      case TimerKind::kPass:
        pass_wanted_ = true;
        pass_at_.reset();
        break;
    }
  }
}

std::optional<TimePoint> CoreMachine::next_wake() const {
  if (timers_.empty()) return std::nullopt;
  return std::get<TimePoint>(*timers_.begin());
}

bool CoreMachine::is_quiet() const {
  constexpr std::size_t kFewAnswers = 2;
  return waiting_.empty() && answers_.size() <= kFewAnswers;
}

LedgerState CoreMachine::ledger_state() const {
  LedgerState state{.counters = counters_, .groups = {}};
  // What replay derives: only ids that stand in a record count.
  state.counters.next_node = {};
  for (const auto& [id, group] : groups_) {
    if (group.status == GroupStatus::kRemoving) continue;
    state.groups.emplace(id, group.ledger);
  }
  return state;
}

void CoreMachine::snapshot_if_due() {
  const std::uint64_t most = std::max<std::uint64_t>(options_.snapshot_after, groups_.size() * 4);
  if (records_ - records_at_snapshot_ < most) return;
  records_at_snapshot_ = records_;
  LedgerState state = ledger_state();
  state.counters = counters_;
  effects_.snapshot = state.snapshot();
}

// ---- invariants ----------------------------------------------------------------------------

void CoreMachine::check_group(const Group& group) const {
  const ActiveGroup* const active = cluster_.group(group.name());
  std::map<std::int32_t, BundlePlacement> expected;
  if (group.status != GroupStatus::kRemoving) {
    for (const auto& [bundle, slot] : group.ledger.slots) {
      const auto name = node_names_.find(slot.slot.placement.node);
      TROUPE_CHECK(name != node_names_.end(), "group '{}': bundle {} is on a node that is gone",
                   group.name(), bundle);
      if (nodes_.find(name->second)->second.in_cluster)
        expected.emplace(bundle, slot.slot.placement);
    }
    if (group.attempt) {
      for (const auto& [node, part] : group.attempt->parts) {
        for (const Slot& slot : part.slots) expected.emplace(slot.placement.bundle, slot.placement);
      }
    }
  }
  const bool same = active == nullptr ? expected.empty() : active->bundles == expected;
  TROUPE_CHECK(same, "group '{}': the cluster has {} bundles of it, wanted {}", group.name(),
               active == nullptr ? 0 : active->bundles.size(), expected.size());
  TROUPE_CHECK(group.status != GroupStatus::kActive ||
                   group.ledger.slots.size() == group.ledger.request.bundles.size(),
               "group '{}': active with {} of {} bundles", group.name(), group.ledger.slots.size(),
               group.ledger.request.bundles.size());
  TROUPE_CHECK(names_.find(group.name())->second == group.id(), "group '{}': its name is lost",
               group.name());
  for (const NodeId node : group.cancelling) {
    const auto name = node_names_.find(node);
    TROUPE_CHECK(
        name != node_names_.end() && nodes_.find(name->second)->second.cancels.contains(group.id()),
        "group '{}': waits for a cancel that nobody was told", group.name());
  }
}

void CoreMachine::check_link(const NodeLink& link) const {
  for (const GroupId id : link.open_parts)
    TROUPE_CHECK(groups_.at(id).attempt && groups_.at(id).attempt->parts.contains(link.id),
                 "node {}: no attempt of group {}", link.spec.name, id.value);
  for (const GroupId id : link.holders)
    TROUPE_CHECK(groups_.at(id).on_nodes.contains(link.id), "node {}: group {} is not on it",
                 link.spec.name, id.value);
}

void CoreMachine::check_invariants() const {
  cluster_.check_invariants();
  std::size_t bundles = 0;
  for (const auto& [id, group] : groups_) {
    check_group(group);
    bundles += group.wanted().bundles.size();
  }
  TROUPE_CHECK(bundles == bundles_, "placement: {} bundles counted, wanted {}", bundles_, bundles);
  for (const auto& [name, link] : nodes_) check_link(link);
  for (const auto& [name, active] : cluster_.groups())
    TROUPE_CHECK(names_.contains(name), "group '{}': in the cluster, not in the head", name);
}

// ---- the face ------------------------------------------------------------------------------

PlacementCore::PlacementCore(CoreOptions options, LedgerState ledger, TimePoint now)
    : machine_(std::make_unique<CoreMachine>(std::move(options), std::move(ledger), now)) {}
PlacementCore::~PlacementCore() = default;
PlacementCore::PlacementCore(PlacementCore&&) noexcept = default;
PlacementCore& PlacementCore::operator=(PlacementCore&&) noexcept = default;

LedgerRecord PlacementCore::start_record() const { return machine_->counters(); }

CoreEffects PlacementCore::step(const std::vector<CoreEvent>& events, TimePoint now, Rng& rng) {
  return machine_->step(events, now, rng);
}

std::optional<TimePoint> PlacementCore::next_wake() const { return machine_->next_wake(); }
bool PlacementCore::is_quiet() const { return machine_->is_quiet(); }
LedgerState PlacementCore::ledger_state() const { return machine_->ledger_state(); }
const Cluster& PlacementCore::cluster() const { return machine_->cluster(); }
std::uint64_t PlacementCore::term() const { return machine_->counters().term; }
std::size_t PlacementCore::requests_open() const { return machine_->requests_open(); }
std::size_t PlacementCore::attempts_open() const {
  std::size_t open = 0;
  for (const auto& [id, group] : machine_->groups()) open += group.attempt ? 1 : 0;
  return open;
}

void PlacementCore::check_invariants() const { machine_->check_invariants(); }

void PlacementCore::for_each_group(
    const std::function<void(const LedgerGroup&, GroupStatus)>& visit) const {
  for (const auto& [id, group] : machine_->groups()) visit(group.ledger, group.status);
}

GroupView PlacementCore::view(GroupId id) const {
  const auto found = machine_->groups().find(id);
  TROUPE_CHECK(found != machine_->groups().end(), "placement: no group {}", id.value);
  return machine_->view_of(found->second);
}

std::vector<GroupId> PlacementCore::group_ids() const {
  std::vector<GroupId> ids;
  for (const auto& [id, group] : machine_->groups()) ids.push_back(id);
  return ids;
}

std::vector<NodeView> PlacementCore::nodes() const {
  std::vector<NodeView> views;
  for (const auto& [name, link] : machine_->nodes()) {
    NodeView view{.name = name, .id = link.id, .attached = link.attached};
    for (const auto& [id, work] : link.cancels) view.cancelling.insert(id);
    for (const GroupId id : link.holders) {
      for (const auto& [bundle, slot] : machine_->groups().at(id).ledger.slots)
        view.bundles += slot.slot.placement.node == link.id ? 1 : 0;
    }
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace troupe::placement

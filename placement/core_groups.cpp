#include "placement/core_machine.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::placement {
namespace {

std::vector<std::int32_t> bundles_of(const Group& group) {
  std::vector<std::int32_t> all;
  for (const auto& [bundle, slot] : group.ledger.slots) all.push_back(bundle);
  return all;
}

/// Where a group stands that has no place and waits for one.
GroupStatus waiting_status(const Group& group) {
  return group.ledger.was_active ? GroupStatus::kRescheduling : GroupStatus::kPending;
}

}  // namespace

// ---- placing -------------------------------------------------------------------------------

bool CoreMachine::may_place(const Group& group) const {
  const bool wants = group.status == GroupStatus::kPending ||
                     group.status == GroupStatus::kRescheduling ||
                     group.status == GroupStatus::kInfeasible ||
                     (group.status == GroupStatus::kActive && group.resize);
  if (!wants || group.attempt || group.complete() || group.not_before > now_) return false;
  // Bundles on a node that the ledger knows and that has not come back yet are not in the cluster:
  // the scheduler would place them a second time.
  return std::all_of(group.on_nodes.begin(), group.on_nodes.end(), [this](NodeId node) {
    return nodes_.find(node_names_.at(node))->second.in_cluster;
  });
}

/// Until then "can never fit" may still change without anybody doing anything.
std::optional<TimePoint> CoreMachine::verdict_at(const Group& group) const {
  TimePoint at = started_ + options_.settle;
  at = std::max(at, group.created + group.ledger.terms.feasible_within);
  if (at <= now_) return std::nullopt;
  return at;
}

bool CoreMachine::verdict_is_final(const Group& group) const {
  if (verdict_at(group)) return false;
  return std::all_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.second.in_cluster && entry.second.attached;
  });
}

void CoreMachine::look_at(Group& group) {
  if (group.resize && group.resize->deadline <= now_)
    end_resize(group, make_error(ErrorCode::kDeadline,
                                 "group '{}': its new bundles found no place in time: {}",
                                 group.name(), group.why));
  const bool holds = group.status == GroupStatus::kRescheduling && !group.attempt &&
                     !group.ledger.slots.empty() && group.lost_since;
  if (holds && *group.lost_since + options_.repair_hold <= now_) {
    notice(fmt::format("group '{}': no place for {} lost bundles in {:.1f} s, gives up the others",
                       group.name(), group.lost.size(), seconds(now_ - *group.lost_since)));
    restart_whole(group);
  }
  try_place(group);
}

void CoreMachine::try_place(Group& group) {
  if (!may_place(group)) {
    if (group.not_before > now_ && !group.attempt && !group.complete())
      add_timer(group.not_before, TimerKind::kGroup, group.id().value);
    return;
  }
  decide(group, scheduler_.place_one(cluster_, group.wanted()));
}

void CoreMachine::run_pass() {
  if (!pass_wanted_ || waiting_.empty()) {
    pass_wanted_ = false;
    return;
  }
  if (next_pass_ > now_) return;
  pass_wanted_ = false;
  const bool is_short = waiting_.size() <= options_.short_queue;
  next_pass_ = now_ + (is_short ? Duration{0} : options_.pass_every);
  std::vector<QueuedGroup> queue;
  for (const GroupId id : waiting_) {
    const Group& group = groups_.at(id);
    if (!may_place(group)) continue;
    if (group.status == GroupStatus::kInfeasible &&
        group.infeasible_at == cluster_.topology_version())
      continue;
    queue.push_back(
        {.request = group.wanted(), .arrival = id.value, .waited = now_ - group.queued_since});
  }
  result<PassResult> pass = scheduler_.pass(cluster_, queue);
  if (!pass) {
    notice(fmt::format("scheduling pass over {} groups: {}", queue.size(), pass.error().message));
    return;
  }
  for (const Decision& decision : pass->decisions)
    decide(groups_.at(names_.find(decision.group)->second), decision);
}

void CoreMachine::decide(Group& group, const Decision& decision) {
  if (decision.kind == DecisionKind::kPlaced) {
    waiting_.erase(group.id());
    start_attempt(group, decision.bundles);
    return;
  }
  group.why =
      decision.error ? decision.error->message : std::string(wait_reason_name(decision.wait));
  if (decision.kind == DecisionKind::kWaiting || !verdict_is_final(group)) {
    if (group.status == GroupStatus::kInfeasible && decision.kind == DecisionKind::kWaiting)
      group.status = waiting_status(group);
    if (waiting_.insert(group.id()).second) pass_wanted_ = true;
    if (const auto at = verdict_at(group); at && decision.kind != DecisionKind::kWaiting)
      add_timer(*at, TimerKind::kGroup, group.id().value);
    if (group.lost_since && !group.ledger.slots.empty())
      add_timer(*group.lost_since + options_.repair_hold, TimerKind::kGroup, group.id().value);
    return;
  }
  decide_infeasible(group, decision);
}

void CoreMachine::decide_infeasible(Group& group, const Decision& decision) {
  TROUPE_CHECK(decision.error, "placement: group '{}' refused without a reason", group.name());
  if (group.resize) {
    // Without the growth it may be complete, or repairable.
    end_resize(group, *decision.error);
    look_at(group);
    return;
  }
  if (!group.ledger.slots.empty()) {
    restart_whole(group);
    look_at(group);
    return;
  }
  waiting_.insert(group.id());
  group.infeasible_at = cluster_.topology_version();
  if (group.status == GroupStatus::kInfeasible) return;
  group.status = GroupStatus::kInfeasible;
  GroupChange change = change_of(group, ChangeKind::kInfeasible);
  change.cause = *decision.error;
  tell(group, std::move(change));
}

// ---- attempts ------------------------------------------------------------------------------

Epoch CoreMachine::next_epoch() {
  return Epoch{(counters_.term << kEpochCounterBits) + ++epoch_counter_};
}

void CoreMachine::start_attempt(Group& group, const std::vector<BundlePlacement>& bundles) {
  TROUPE_CHECK(!group.attempt && !bundles.empty(), "placement: group '{}': attempt over attempt",
               group.name());
  Attempt& attempt = group.attempt.emplace();
  attempt.epoch = next_epoch();
  for (const BundlePlacement& placement : bundles)
    attempt.parts[placement.node].slots.push_back(
        {.slot = group.next_slot++, .placement = placement});
  attempt.one_phase = options_.one_phase && attempt.parts.size() == 1;
  if (group.status == GroupStatus::kInfeasible) group.status = waiting_status(group);
  for (const auto& [node, part] : attempt.parts) {
    NodeLink* const link = link_of(node);
    link->due.insert(group.id());
    link->open_parts.insert(group.id());
    busy_.insert(link->spec.name);
  }
}

void CoreMachine::abort_attempt(Group& group) {
  const Attempt attempt = std::move(*group.attempt);
  group.attempt.reset();
  std::vector<std::int32_t> bundles;
  for (const auto& [node, part] : attempt.parts) {
    NodeLink* const link = link_of(node);
    link->due.erase(group.id());
    link->open_parts.erase(group.id());
    std::map<std::uint32_t, Epoch> slots;
    for (const Slot& slot : part.slots) {
      bundles.push_back(slot.placement.bundle);
      slots.emplace(slot.slot, attempt.epoch);
    }
    // Also when it is about to be asked again: the node may have heard it the first time.
    if (part.sent_in != 0) cancel_at(*link, group.id(), slots);
  }
  free_bundles(group, bundles);
  if (group.status == GroupStatus::kPrepared) group.status = GroupStatus::kPending;
}

void CoreMachine::attempt_failed(Group& group, const Error& error) {
  abort_attempt(group);
  group.why = error.message;
  const double factor =
      std::pow(options_.backoff_factor, std::min<std::uint32_t>(group.failures, 64));
  ++group.failures;
  const double span =
      std::min(seconds(options_.backoff_first) * factor, seconds(options_.backoff_max)) *
      (0.5 + 0.5 * rng_->uniform());
  group.not_before =
      now_ + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(span));
  look_at(group);
}

void CoreMachine::part_prepared(Group& group, NodeId node) {
  Attempt& attempt = *group.attempt;
  attempt.parts.at(node).stage = PartStage::kPrepared;
  const bool all_prepared =
      std::all_of(attempt.parts.begin(), attempt.parts.end(),
                  [](const auto& entry) { return entry.second.stage == PartStage::kPrepared; });
  if (!all_prepared) return;
  if (group.status == GroupStatus::kPending) group.status = GroupStatus::kPrepared;
  if (options_.mutation == CoreMutation::kSkipCommit) {
    placed(group);
    return;
  }
  for (auto& [id, part] : attempt.parts) {
    part.stage = PartStage::kToCommit;
    NodeLink* const link = link_of(id);
    link->due.insert(group.id());
    busy_.insert(link->spec.name);
  }
}

void CoreMachine::part_committed(Group& group, NodeLink& link, std::uint64_t number) {
  Attempt& attempt = *group.attempt;
  AttemptPart& part = attempt.parts.at(link.id);
  part.stage = PartStage::kCommitted;
  for (const Slot& slot : part.slots) group.committed_in[slot.slot] = {link.session, number};
  const bool all_committed =
      std::all_of(attempt.parts.begin(), attempt.parts.end(),
                  [](const auto& entry) { return entry.second.stage == PartStage::kCommitted; });
  if (all_committed) placed(group);
}

void CoreMachine::placed(Group& group) {
  std::vector<std::int32_t> bundles;
  for (auto& [node, part] : group.attempt->parts) {
    NodeLink* const link = link_of(node);
    link->open_parts.erase(group.id());
    link->due.erase(group.id());
    for (Slot& slot : part.slots) {
      bundles.push_back(slot.placement.bundle);
      group.ledger.slots.emplace(slot.placement.bundle,
                                 CommittedSlot{group.attempt->epoch, std::move(slot)});
    }
  }
  group.ledger.epoch = group.attempt->epoch;
  group.attempt.reset();
  std::sort(bundles.begin(), bundles.end());
  ChangeKind kind = ChangeKind::kActive;
  if (group.ledger.was_active)
    kind = group.lost.empty() && group.resize ? ChangeKind::kResized : ChangeKind::kMoved;
  group.status = GroupStatus::kActive;
  group.failures = 0;
  group.lost.clear();
  group.lost_since.reset();
  group.why.clear();
  group.ledger.was_active = true;
  reindex(group);
  if (group.resize) {
    const Resize done = std::move(*group.resize);
    group.resize.reset();
    group.ledger.request = done.request;
    group.ledger.resize_number = done.number;
    group.ledger.next_slot = group.next_slot;
    record(GroupPut{group.ledger});
    answer(done.token, view_of(group));
  } else {
    record_placed(group);
  }
  GroupChange change = change_of(group, kind);
  change.bundles = std::move(bundles);
  tell(group, std::move(change));
}

// ---- losing and giving up ------------------------------------------------------------------

/// Gives their place in the cluster back; the nodes are told by cancels.
void CoreMachine::free_bundles(const Group& group, const std::vector<std::int32_t>& bundles) {
  if (bundles.empty()) return;
  const result<void> freed = cluster_.release_bundles(group.name(), bundles);
  TROUPE_CHECK(freed, "placement: group '{}': {}", group.name(), freed.error().message);
  pass_wanted_ = true;
}

void CoreMachine::give_up_slots(Group& group, const std::vector<std::int32_t>& bundles) {
  if (group.attempt) abort_attempt(group);
  std::map<NodeId, std::map<std::uint32_t, Epoch>> cancels;
  std::vector<std::int32_t> in_cluster;
  for (const std::int32_t bundle : bundles) {
    const auto found = group.ledger.slots.find(bundle);
    const NodeId node = found->second.slot.placement.node;
    cancels[node].emplace(found->second.slot.slot, found->second.epoch);
    group.committed_in.erase(found->second.slot.slot);
    if (link_of(node)->in_cluster) in_cluster.push_back(bundle);
    group.ledger.slots.erase(found);
    group.lost.push_back(bundle);
  }
  for (const auto& [node, slots] : cancels) cancel_at(*link_of(node), group.id(), slots);
  free_bundles(group, in_cluster);
  reindex(group);
}

/// A group under repair gives up what it still holds, so that all of it can be placed anew.
void CoreMachine::restart_whole(Group& group) {
  give_up_slots(group, bundles_of(group));
  std::sort(group.lost.begin(), group.lost.end());
  record_placed(group);
  GroupChange change = change_of(group, ChangeKind::kLost);
  change.bundles = group.lost;
  change.cause =
      make_error(ErrorCode::kAborted, "group '{}' is placed anew: {}", group.name(), group.why);
  tell(group, std::move(change));
}

/// `bundles` are gone from their nodes and out of the cluster.
void CoreMachine::lose_bundles(Group& group, std::vector<std::int32_t> bundles,
                               const Error& cause) {
  if (group.status == GroupStatus::kRemoving || bundles.empty()) return;
  for (const std::int32_t bundle : bundles) {
    const auto found = group.ledger.slots.find(bundle);
    group.committed_in.erase(found->second.slot.slot);
    group.ledger.slots.erase(found);
  }
  reindex(group);
  if (group.attempt) abort_attempt(group);
  if (group.ledger.terms.repair == RepairPolicy::kFailGroup) {
    begin_removal(group, cause);
    return;
  }
  group.status = GroupStatus::kRescheduling;
  group.why = cause.message;
  if (!group.lost_since) group.lost_since = now_;
  group.queued_since = group.created;  // it had its turn before those that came later
  group.lost.insert(group.lost.end(), bundles.begin(), bundles.end());
  if (group.ledger.terms.repair == RepairPolicy::kRestartGroup)
    give_up_slots(group, bundles_of(group));
  std::sort(group.lost.begin(), group.lost.end());
  record_placed(group);
  GroupChange change = change_of(group, ChangeKind::kLost);
  change.bundles = group.lost;
  change.cause = cause;
  tell(group, std::move(change));
  if (options_.mutation == CoreMutation::kDropRepair) return;
  look_at(group);
}

// ---- removing ------------------------------------------------------------------------------

void CoreMachine::begin_removal(Group& group, std::optional<Error> cause) {
  if (group.status == GroupStatus::kRemoving) return;
  if (group.resize)
    end_resize(group,
               make_error(ErrorCode::kCancelled, "group '{}' is being removed", group.name()));
  if (group.attempt) abort_attempt(group);
  give_up_slots(group, bundles_of(group));
  if (cluster_.group(group.name()) != nullptr)
    TROUPE_CHECK(cluster_.release(group.name()), "placement: group '{}' stays", group.name());
  waiting_.erase(group.id());
  pass_wanted_ = true;
  group.status = GroupStatus::kRemoving;
  group.removal_cause = std::move(cause);
  record(GroupErased{group.id()});
  if (group.cancelling.empty()) finish_removal(group);
}

void CoreMachine::finish_removal(Group& group) {
  const GroupId id = group.id();
  group.status = GroupStatus::kRemoved;
  for (const AnswerSlot& slot : group.removers) complete(slot, id);
  GroupChange change{.kind = ChangeKind::kRemoved,
                     .group = id,
                     .status = GroupStatus::kRemoved,
                     .epoch = group.ledger.epoch};
  change.cause = group.removal_cause;
  tell(group, std::move(change));
  bundles_ -= group.ledger.request.bundles.size();
  names_.erase(group.name());
  if (const auto owner = owners_.find(group.ledger.owner); owner != owners_.end()) {
    owner->second.groups.erase(id);
    owner->second.numbers.erase(group.ledger.number);
    if (owner->second.groups.empty() && owner->second.connection == 0) owners_.erase(owner);
  }
  groups_.erase(id);
}

// ---- records -------------------------------------------------------------------------------

/// Keeps `on_nodes` and the nodes' `holders` in step with the slots.
void CoreMachine::reindex(Group& group) {
  std::set<NodeId> nodes;
  for (const auto& [bundle, slot] : group.ledger.slots) nodes.insert(slot.slot.placement.node);
  for (const NodeId node : group.on_nodes) {
    if (nodes.contains(node)) continue;
    if (NodeLink* const link = link_of(node)) link->holders.erase(group.id());
  }
  for (const NodeId node : nodes) link_of(node)->holders.insert(group.id());
  group.on_nodes = std::move(nodes);
}

void CoreMachine::record_placed(Group& group) {
  group.ledger.next_slot = group.next_slot;
  record(GroupPlaced{.id = group.id(),
                     .next_slot = group.ledger.next_slot,
                     .was_active = group.ledger.was_active,
                     .epoch = group.ledger.epoch,
                     .slots = group.ledger.slots});
}

void CoreMachine::record(LedgerRecord one) {
  ++records_;
  effects_.records.push_back(std::move(one));
}

}  // namespace troupe::placement

#include "placement/core_machine.hpp"
#include "placement/explain.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::placement {

// ---- answers -------------------------------------------------------------------------------

void CoreMachine::open_answer(RequestToken token, std::size_t items) {
  OpenAnswer& open = answers_[token];
  open.outcomes.resize(items);
  open.open = items;
  if (items == 0) {
    answers_.erase(token);
    answer(token, GroupOutcomes{});
  }
}

void CoreMachine::complete(AnswerSlot slot, result<GroupId> outcome) {
  const auto found = answers_.find(slot.token);
  TROUPE_CHECK(found != answers_.end() && !found->second.outcomes[slot.index],
               "placement: item {} of request {} is answered twice", slot.index, slot.token);
  found->second.outcomes[slot.index] = std::move(outcome);
  if (--found->second.open > 0) return;
  GroupOutcomes outcomes;
  outcomes.reserve(found->second.outcomes.size());
  for (auto& one : found->second.outcomes) outcomes.push_back(std::move(*one));
  answers_.erase(found);
  answer(slot.token, std::move(outcomes));
}

void CoreMachine::answer(RequestToken token, AnswerBody body) {
  defer(Answer{.token = token, .body = std::move(body)});
}

void CoreMachine::tell(const Group& group, GroupChange change) {
  defer(std::pair(group.ledger.owner, std::move(change)));
}

GroupChange CoreMachine::change_of(const Group& group, ChangeKind kind) const {
  GroupChange change{
      .kind = kind, .group = group.id(), .status = group.status, .epoch = group.ledger.epoch};
  for (const auto& [bundle, slot] : group.ledger.slots)
    change.placements.push_back(slot.slot.placement);
  return change;
}

// ---- owners --------------------------------------------------------------------------------

OwnerLink* CoreMachine::owner_of(ConnectionId connection, Owner& owner) {
  const auto found = owner_connections_.find(connection);
  if (found == owner_connections_.end()) return nullptr;
  owner = found->second;
  return &owners_.at(owner);
}

void CoreMachine::handle(const SessionAsked& event) {
  const Owner& owner = event.session.owner;
  const auto other = owner_connections_.find(event.connection);
  if (owner.name.empty() || owner.name.size() > kNameBytesMax) {
    answer(event.token,
           make_error(ErrorCode::kInvalidArgument, "owner: a name of {} bytes, wanted 1..{}",
                      owner.name.size(), kNameBytesMax));
    return;
  }
  if (other != owner_connections_.end() && other->second != owner) {
    answer(event.token,
           make_error(ErrorCode::kConflict, "owner {}: its channel is that of owner {}", owner.name,
                      other->second.name));
    return;
  }
  if (owners_.size() >= options_.owners_max && !owners_.contains(owner)) {
    answer(event.token, make_error(ErrorCode::kResourceExhausted,
                                   "owner {}: the head has {} owners", owner.name, owners_.size()));
    return;
  }
  OwnerLink& link = owners_[owner];
  if (link.connection != 0) owner_connections_.erase(link.connection);
  link.connection = event.connection;
  link.lost_at.reset();
  owner_connections_[event.connection] = owner;
  answer(event.token, Done{});
  for (const GroupId id : event.session.known) {
    if (link.groups.contains(id)) continue;
    defer(std::pair(
        owner,
        GroupChange{.kind = ChangeKind::kRemoved, .group = id, .status = GroupStatus::kRemoved}));
  }
  for (const GroupId id : link.groups) tell_present(groups_.at(id));
}

void CoreMachine::tell_present(const Group& group) {
  switch (group.status) {
    case GroupStatus::kActive:
      tell(group, change_of(group, ChangeKind::kActive));
      return;
    case GroupStatus::kRescheduling: {
      GroupChange change = change_of(group, ChangeKind::kLost);
      change.bundles = group.lost;
      change.cause = make_error(ErrorCode::kRankDead, "{}", group.why);
      tell(group, std::move(change));
      return;
    }
    case GroupStatus::kInfeasible: {
      GroupChange change = change_of(group, ChangeKind::kInfeasible);
      change.cause = make_error(ErrorCode::kResourceExhausted, "{}", group.why);
      tell(group, std::move(change));
      return;
    }
    default:
      return;
  }
}

void CoreMachine::owner_down(const Owner& owner, bool silent) {
  OwnerLink& link = owners_.at(owner);
  link.connection = 0;
  if (link.groups.empty()) {
    owners_.erase(owner);
    return;
  }
  link.lost_at = silent ? now_ : now_ + options_.owner_lease;
  add_timer(*link.lost_at, TimerKind::kOwner, owner.instance, owner.name);
}

void CoreMachine::owner_gone(const Owner& owner) {
  const auto found = owners_.find(owner);
  if (found == owners_.end() || !found->second.lost_at || *found->second.lost_at > now_) return;
  found->second.lost_at.reset();
  const std::set<GroupId> ids = found->second.groups;
  for (const GroupId id : ids) {
    Group& group = groups_.at(id);
    if (group.ledger.terms.detached) continue;
    begin_removal(group, make_error(ErrorCode::kAborted, "group '{}': its owner {} is gone",
                                    group.name(), owner.name));
  }
}

// ---- create and remove ---------------------------------------------------------------------

result<void> CoreMachine::check_create(const CreateGroup& asked) const {
  const GroupRequest& request = asked.request;
  TROUPE_TRY_VOID(validate(request));
  if (request.bundles.size() > kGroupBundlesMax)
    return fail(ErrorCode::kInvalidArgument, "group '{}': {} bundles, at most {}", request.name,
                request.bundles.size(), kGroupBundlesMax);
  if (const auto found = names_.find(request.name); found != names_.end()) {
    const Group& other = groups_.at(found->second);
    return fail(ErrorCode::kAlreadyExists, "group '{}': exists already, as group {} of {} ({})",
                request.name, other.id().value, other.ledger.owner.name,
                group_status_name(other.status));
  }
  if (groups_.size() >= options_.groups_max)
    return fail(ErrorCode::kResourceExhausted, "group '{}': the head has {} groups, at most {}",
                request.name, groups_.size(), options_.groups_max);
  if (bundles_ + request.bundles.size() > options_.bundles_max)
    return fail(ErrorCode::kResourceExhausted,
                "group '{}': {} bundles more than the {} there are, at most {}", request.name,
                request.bundles.size(), bundles_, options_.bundles_max);
  return {};
}

result<GroupId> CoreMachine::create(const Owner& owner, OwnerLink& link, const CreateGroup& asked) {
  if (const auto again = link.numbers.find(asked.number); again != link.numbers.end())
    return again->second;
  TROUPE_TRY_VOID(check_create(asked));
  const GroupId id = counters_.next_group;
  Group group{.ledger = {.id = id,
                         .owner = owner,
                         .number = asked.number,
                         .resize_number = 0,
                         .request = asked.request,
                         .terms = asked.terms}};
  group.created = group.queued_since = now_;
  const Decision decision = scheduler_.place_one(cluster_, asked.request);
  const bool refused = decision.kind == DecisionKind::kRejected ||
                       (decision.kind == DecisionKind::kInfeasible && verdict_is_final(group));
  if (refused) {
    TROUPE_CHECK(decision.error, "placement: group '{}' refused without a reason", group.name());
    return fail(*decision.error);
  }
  ++counters_.next_group.value;
  bundles_ += asked.request.bundles.size();
  names_.emplace(asked.request.name, id);
  link.groups.insert(id);
  link.numbers.emplace(asked.number, id);
  record(GroupPut{group.ledger});
  decide(groups_.emplace(id, std::move(group)).first->second, decision);
  return id;
}

void CoreMachine::handle(const CreateAsked& event) {
  Owner owner;
  OwnerLink* const link = owner_of(event.connection, owner);
  if (link == nullptr) {
    answer(event.token,
           make_error(ErrorCode::kConflict, "placement: create without a session of its owner"));
    return;
  }
  if (answers_.size() >= options_.requests_max || event.groups.size() > kRequestsPerMessageMax) {
    answer(event.token, make_error(ErrorCode::kResourceExhausted,
                                   "placement: {} requests are open, at most {}; {} groups in "
                                   "one, at most {}",
                                   answers_.size(), options_.requests_max, event.groups.size(),
                                   kRequestsPerMessageMax));
    return;
  }
  open_answer(event.token, event.groups.size());
  for (std::size_t i = 0; i < event.groups.size(); ++i)
    complete({.token = event.token, .index = i}, create(owner, *link, event.groups[i]));
}

result<Group*> CoreMachine::find(const GroupKey& key) {
  GroupId id = key.id;
  if (id.value == 0) {
    const auto named = names_.find(key.name);
    if (named == names_.end())
      return fail(ErrorCode::kNotFound, "group '{}' does not exist", key.name);
    id = named->second;
  }
  const auto found = groups_.find(id);
  if (found != groups_.end()) return &found->second;
  if (id < counters_.next_group)
    return fail(ErrorCode::kNotFound, "group {} was removed", id.value);
  return fail(ErrorCode::kNotFound, "group {} does not exist", id.value);
}

void CoreMachine::remove_one(const GroupKey& key, AnswerSlot slot) {
  result<Group*> group = find(key);
  if (!group) {
    complete(slot, fail(std::move(group).error()));
    return;
  }
  (*group)->removers.push_back(slot);
  begin_removal(**group, std::nullopt);
}

void CoreMachine::handle(const RemoveAsked& event) {
  if (answers_.size() >= options_.requests_max || event.groups.size() > kRequestsPerMessageMax) {
    answer(event.token,
           make_error(ErrorCode::kResourceExhausted, "placement: {} requests are open, at most {}",
                      answers_.size(), options_.requests_max));
    return;
  }
  open_answer(event.token, event.groups.size());
  for (std::size_t i = 0; i < event.groups.size(); ++i)
    remove_one(event.groups[i], {.token = event.token, .index = i});
}

// ---- resize --------------------------------------------------------------------------------

void CoreMachine::handle(const ResizeAsked& event) {
  if (result<void> done = resize(event); !done) answer(event.token, std::move(done).error());
}

result<void> CoreMachine::resize(const ResizeAsked& event) {
  TROUPE_TRY(Group * group, find(event.resize.group));
  if (group->ledger.resize_number == event.resize.number && event.resize.number != 0) {
    answer(event.token, view_of(*group));
    return {};
  }
  if (group->resize && group->resize->number == event.resize.number) {
    // Asked again over a new channel: the old question has nobody to answer to.
    answer(std::exchange(group->resize->token, event.token),
           make_error(ErrorCode::kAborted, "placement: asked again"));
    return {};
  }
  const bool none = event.resize.remove.empty() && event.resize.add.empty();
  if (none || (!event.resize.remove.empty() && !event.resize.add.empty()))
    return fail(ErrorCode::kInvalidArgument,
                "group '{}': resize adds {} and removes {} bundles, wanted one of both",
                group->name(), event.resize.add.size(), event.resize.remove.size());
  if (group->status != GroupStatus::kActive || group->resize)
    return fail(ErrorCode::kConflict, "group '{}': is {}{}, wanted ACTIVE", group->name(),
                group_status_name(group->status), group->resize ? " and being resized" : "");
  for (const NodeId node : group->on_nodes) {
    const NodeLink* const link = link_of(node);
    if (!link->in_cluster)
      return fail(ErrorCode::kConflict, "group '{}': node {} has not come back yet", group->name(),
                  link->spec.name);
  }
  if (!event.resize.add.empty()) return grow_group(*group, event);
  TROUPE_TRY_VOID(shrink_group(*group, event.resize));
  answer(event.token, view_of(*group));
  return {};
}

result<void> CoreMachine::shrink_group(Group& group, const ResizeGroup& asked) {
  TROUPE_TRY(const std::vector<std::int32_t> kept, shrink(cluster_, group.name(), asked.remove));
  const GroupRequest& smaller = cluster_.group(group.name())->request;
  const std::set<std::int32_t> dropped(asked.remove.begin(), asked.remove.end());
  TROUPE_CHECK(kept.size() + dropped.size() == group.ledger.slots.size(),
               "placement: group '{}': {} of {} bundles kept, {} dropped", group.name(),
               kept.size(), group.ledger.slots.size(), dropped.size());
  std::map<std::int32_t, CommittedSlot> slots;
  std::map<NodeId, std::map<std::uint32_t, Epoch>> cancels;
  for (auto& [bundle, slot] : group.ledger.slots) {
    const NodeId node = slot.slot.placement.node;
    if (dropped.contains(bundle)) {
      cancels[node].emplace(slot.slot.slot, slot.epoch);
      continue;
    }
    const auto next = static_cast<std::int32_t>(slots.size());
    if (next != bundle) {
      NodeLink* const link = link_of(node);
      RenumberWork& work = link->renumbers[group.id()];
      work.epoch = slot.epoch;
      work.bundles[slot.slot.slot] = next;
      work.sent_in = 0;
      busy_.insert(link->spec.name);
    }
    slot.slot.placement.bundle = next;
    slots.emplace(next, std::move(slot));
  }
  bundles_ -= dropped.size();
  group.ledger.slots = std::move(slots);
  group.ledger.request = smaller;
  group.ledger.resize_number = asked.number;
  group.ledger.epoch = next_epoch();
  group.ledger.next_slot = group.next_slot;
  record(GroupPut{group.ledger});
  for (const auto& [node, some] : cancels) cancel_at(*link_of(node), group.id(), some);
  reindex(group);
  pass_wanted_ = true;
  GroupChange change = change_of(group, ChangeKind::kResized);
  change.bundles.assign(dropped.begin(), dropped.end());
  tell(group, std::move(change));
  return {};
}

result<void> CoreMachine::grow_group(Group& group, const ResizeAsked& event) {
  const ActiveGroup* const active = cluster_.group(group.name());
  TROUPE_CHECK(active != nullptr, "placement: group '{}' is not in the cluster", group.name());
  TROUPE_TRY(GroupRequest larger, grow(*active, event.resize.add));
  TROUPE_TRY_VOID(validate(larger));
  const std::size_t added = event.resize.add.size();
  if (larger.bundles.size() > kGroupBundlesMax || bundles_ + added > options_.bundles_max)
    return fail(ErrorCode::kResourceExhausted, "group '{}': {} bundles, at most {}; {} in all, {}",
                group.name(), larger.bundles.size(), kGroupBundlesMax, bundles_ + added,
                options_.bundles_max);
  bundles_ += added;
  group.resize = Resize{.token = event.token,
                        .number = event.resize.number,
                        .deadline = event.deadline,
                        .request = std::move(larger)};
  group.queued_since = now_;
  group.failures = 0;
  group.not_before = now_;
  add_timer(event.deadline, TimerKind::kGroup, group.id().value);
  look_at(group);
  return {};
}

void CoreMachine::end_resize(Group& group, const Error& error) {
  if (!group.resize) return;
  if (group.attempt) abort_attempt(group);
  const Resize ended = std::move(*group.resize);
  group.resize.reset();
  bundles_ -= ended.request.bundles.size() - group.ledger.request.bundles.size();
  if (cluster_.group(group.name()) != nullptr)
    TROUPE_CHECK(cluster_.allocate(group.ledger.request, {}),
                 "placement: group '{}' cannot go back to its size", group.name());
  if (group.status == GroupStatus::kActive) waiting_.erase(group.id());
  answer(ended.token, error);
}

// ---- looking -------------------------------------------------------------------------------

GroupView CoreMachine::view_of(const Group& group) const {
  GroupView view{.id = group.id(),
                 .name = group.name(),
                 .owner = group.ledger.owner,
                 .status = group.status,
                 .terms = group.ledger.terms,
                 .epoch = group.ledger.epoch,
                 .bundles = static_cast<std::uint32_t>(group.ledger.request.bundles.size()),
                 .placements = {},
                 .age = now_ - group.created,
                 .why = group.status == GroupStatus::kActive ? std::string() : group.why};
  for (const auto& [bundle, slot] : group.ledger.slots)
    view.placements.push_back(slot.slot.placement);
  return view;
}

void CoreMachine::handle(const ViewAsked& event) {
  result<Group*> group = find(event.group);
  if (group) {
    answer(event.token, view_of(**group));
  } else {
    answer(event.token, std::move(group).error());
  }
}

void CoreMachine::handle(const ListAsked& event) {
  GroupPage page;
  const std::size_t limit = std::clamp<std::size_t>(event.list.limit, 1, kListLimitMax);
  std::size_t placements = 0;
  for (auto at = groups_.upper_bound(event.list.after); at != groups_.end(); ++at) {
    if (page.groups.size() >= limit) {
      page.more = true;
      break;
    }
    GroupView view = view_of(at->second);
    placements += view.placements.size();
    // A page must fit one frame; the first group always does.
    if (placements > kGroupBundlesMax && !page.groups.empty()) {
      page.more = true;
      break;
    }
    page.groups.push_back(std::move(view));
  }
  answer(event.token, std::move(page));
}

void CoreMachine::handle(const ExplainAsked& event) {
  result<Group*> group = find(event.group);
  if (group) {
    answer(event.token, explain_group(**group));
  } else {
    answer(event.token, std::move(group).error());
  }
}

std::string CoreMachine::explain_group(const Group& group) {
  std::string text = fmt::format("group {} '{}' of {}: {} for {:.1f} s", group.id().value,
                                 group.name(), group.ledger.owner.name,
                                 group_status_name(group.status), seconds(now_ - group.created));
  if (group.attempt) {
    for (const auto& [node, part] : group.attempt->parts) {
      const bool prepared =
          part.stage == PartStage::kPrepared || part.stage >= PartStage::kToCommit;
      text += fmt::format("\n  node {}: {} bundles {}", node_names_.at(node), part.slots.size(),
                          part.stage == PartStage::kCommitted ? "committed"
                          : prepared                          ? "prepared"
                                                              : "asked for");
    }
    return text;
  }
  for (const NodeId node : group.cancelling)
    text +=
        fmt::format("\n  node {}: has not confirmed that it gave bundles up", node_names_.at(node));
  if (group.not_before > now_)
    text += fmt::format("\n  tried {} times; again in {:.1f} s", group.failures,
                        seconds(group.not_before - now_));
  if (!group.why.empty() && group.status != GroupStatus::kActive) text += "\n  " + group.why;
  if (!waiting_.contains(group.id())) return text;
  std::vector<QueuedGroup> queue;
  for (const GroupId id : waiting_) {
    const Group& other = groups_.at(id);
    queue.push_back(
        {.request = other.wanted(), .arrival = id.value, .waited = now_ - other.queued_since});
  }
  return text + "\n" + explain(cluster_, scheduler_, queue, group.name()).to_string();
}

}  // namespace troupe::placement

#include "placement/core_machine.hpp"
#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::placement {
namespace {

/// About what an operation takes on the wire, from above.
std::size_t bytes_of(const NodeOp& op) {
  std::size_t bytes = 96 + op.name.size() + op.bundles.size() * 8;
  for (const Slot& slot : op.slots)
    bytes += 160 + slot.placement.devices.size() * 16 + slot.placement.cores.size() * 16 +
             slot.placement.named.size() * 48 + slot.placement.nic.size();
  return bytes;
}

/// The parts of a node that may change while it holds bundles.
NodeSpec without_flags(NodeSpec spec) {
  spec.draining = false;
  for (DeviceSpec& device : spec.devices) device.failed = false;
  return spec;
}

}  // namespace

NodeLink* CoreMachine::link_of(NodeId id) {
  const auto name = node_names_.find(id);
  if (name == node_names_.end()) return nullptr;
  return &nodes_.find(name->second)->second;
}

NodeLink* CoreMachine::link_of_connection(ConnectionId connection) {
  const auto found = node_connections_.find(connection);
  if (found == node_connections_.end()) return nullptr;
  return &nodes_.find(found->second)->second;
}

Group* CoreMachine::group_of(GroupId id) {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : &found->second;
}

// ---- sessions ------------------------------------------------------------------------------

void CoreMachine::handle(const HelloArrived& event) {
  result<void> done = greet(event);
  if (done) {
    answer(event.token, Done{});
  } else {
    notice(fmt::format("refused: {}", done.error().message));
    answer(event.token, std::move(done).error());
  }
}

result<void> CoreMachine::greet(const HelloArrived& event) {
  const NodeHello& hello = event.hello;
  TROUPE_TRY_VOID(validate(hello.spec));
  const std::string name = hello.spec.name;
  if (const auto found = nodes_.find(name); found != nodes_.end()) {
    NodeLink& link = found->second;
    const bool known = link.incarnation != 0;
    if (known && link.incarnation != hello.incarnation) {
      if (link.connection != 0)
        return fail(ErrorCode::kAlreadyExists, "node {}: another agent is attached under this name",
                    name);
      node_lost(name, make_error(ErrorCode::kRankDead, "node {}: its agent was restarted", name));
    } else if (known && hello.hello <= link.hello) {
      return fail(ErrorCode::kConflict, "node {}: hello {} after hello {}", name, hello.hello,
                  link.hello);
    }
  }
  if (nodes_.size() >= kNodesMax && !nodes_.contains(name))
    return fail(ErrorCode::kResourceExhausted, "node {}: the head has {} nodes", name,
                nodes_.size());
  NodeLink& link = nodes_[name];
  if (link.in_cluster) TROUPE_TRY_VOID(change_spec(link, hello.spec));
  if (link.connection != 0) node_connections_.erase(link.connection);
  node_connections_[event.connection] = name;
  end_session(link, true);
  link.spec = hello.spec;
  link.incarnation = hello.incarnation;
  link.hello = hello.hello;
  link.connection = event.connection;
  link.session = ++session_counter_;
  link.number = 0;
  link.want_truth = true;
  link.lost_at.reset();
  busy_.insert(name);
  return {};
}

/// What a node says anew of itself: failed devices lose their bundles.
result<void> CoreMachine::change_spec(NodeLink& link, const NodeSpec& spec) {
  if (without_flags(link.spec) != without_flags(spec))
    return fail(ErrorCode::kConflict, "node {}: has changed; restart its agent", spec.name);
  std::set<std::int32_t> failed;
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    if (spec.devices[i].failed == link.spec.devices[i].failed) continue;
    const auto device = static_cast<std::int32_t>(i);
    if (spec.devices[i].failed) failed.insert(device);
    const bool done =
        cluster_.set_device_failed(link.id, device, spec.devices[i].failed).has_value();
    TROUPE_CHECK(done, "placement: node {} has no device {}", spec.name, device);
  }
  link.spec = spec;
  const std::set<GroupId> holders = failed.empty() ? std::set<GroupId>() : link.holders;
  for (const GroupId id : holders) {
    Group& group = groups_.at(id);
    std::vector<std::int32_t> lost;
    std::map<std::uint32_t, Epoch> slots;
    for (const auto& [bundle, slot] : group.ledger.slots) {
      const BundlePlacement& placement = slot.slot.placement;
      const bool hit = placement.node == link.id &&
                       std::any_of(placement.devices.begin(), placement.devices.end(),
                                   [&](const DeviceShare& s) { return failed.contains(s.device); });
      if (!hit) continue;
      lost.push_back(bundle);
      slots.emplace(slot.slot.slot, slot.epoch);
    }
    if (lost.empty()) continue;
    free_bundles(group, lost);
    lose_bundles(group, lost,
                 make_error(ErrorCode::kRankDead, "node {}: device {} has failed", spec.name,
                            fmt::join(failed, ", ")));
  }
  return {};
}

/// Forgets what was said in the session; truth at the next one tells what became of it.
void CoreMachine::end_session(NodeLink& link, bool node_stays) {
  link.attached = false;
  link.sent.clear();
  link.renumbers.clear();
  if (link.in_cluster) {
    TROUPE_CHECK(cluster_.set_draining(link.id, true), "placement: node {} is not in the cluster",
                 link.spec.name);
  }
  const std::set<GroupId> parts = link.open_parts;
  for (const GroupId id : parts)
    attempt_failed(groups_.at(id),
                   make_error(ErrorCode::kRankDead, "node {}: its channel closed during an attempt",
                              link.spec.name));
  if (node_stays) {
    for (auto& [id, work] : link.cancels) work.sent_in = 0;
    return;
  }
  // Nothing more can be said to it. When it comes back, its truth tells what it still holds.
  const std::map<GroupId, CancelWork> cancels = std::exchange(link.cancels, {});
  for (const auto& [id, work] : cancels) cancel_done(link, id);
}

void CoreMachine::handle(const ConnectionLost& event) {
  if (NodeLink* const link = link_of_connection(event.connection)) {
    node_connections_.erase(event.connection);
    node_down(*link, event.silent);
  }
  const auto owner = owner_connections_.find(event.connection);
  if (owner == owner_connections_.end()) return;
  const Owner lost = owner->second;
  owner_connections_.erase(owner);
  owner_down(lost, event.silent);
}

void CoreMachine::node_down(NodeLink& link, bool silent) {
  link.connection = 0;
  end_session(link, false);
  link.lost_at = silent ? now_ : now_ + options_.reattach_within;
  wake_link_at(link, *link.lost_at);
  if (silent) look_at(link);
}

void CoreMachine::node_lost(const std::string& name, const Error& cause) {
  NodeLink& link = nodes_.find(name)->second;
  notice(fmt::format("{}; {} groups hold bundles there", cause.message, link.holders.size()));
  end_session(link, false);
  const std::set<GroupId> holders = link.holders;
  if (link.in_cluster)
    TROUPE_CHECK(cluster_.remove_node(link.id), "placement: node {} is not in the cluster", name);
  link.in_cluster = false;
  for (const GroupId id : holders) {
    Group& group = groups_.at(id);
    std::vector<std::int32_t> lost;
    for (const auto& [bundle, slot] : group.ledger.slots) {
      if (slot.slot.placement.node == link.id) lost.push_back(bundle);
    }
    lose_bundles(group, std::move(lost), cause);
  }
  node_names_.erase(link.id);
  if (link.connection != 0) node_connections_.erase(link.connection);
  busy_.erase(name);
  nodes_.erase(name);
  pass_wanted_ = true;
}

// ---- what nodes answer ---------------------------------------------------------------------

void CoreMachine::handle(const ReplyArrived& event) {
  NodeLink* const link = link_of_connection(event.connection);
  const NodeReply& reply = event.reply;
  if (link == nullptr || reply.term != counters_.term || reply.session != link->session) return;
  const auto found = link->sent.find(reply.number);
  if (found == link->sent.end()) return;
  const SentPass pass = std::move(found->second);
  link->sent.erase(found);
  if (pass.ops.size() != reply.refusals.size()) {
    notice(fmt::format("node {}: {} answers to {} operations", link->spec.name,
                       reply.refusals.size(), pass.ops.size()));
    link->want_truth = true;
  } else {
    for (std::size_t i = 0; i < pass.ops.size(); ++i)
      op_done(*link, pass.ops[i], reply.number, reply.refusals[i]);
  }
  if (reply.has_truth) reconcile(*link, reply);
  if (!link->due.empty() || !link->cancels.empty() || !link->renumbers.empty())
    busy_.insert(link->spec.name);
}

/// As if the node had refused all of it; cancels go again with the next pass.
void CoreMachine::handle(const PassFailed& event) {
  NodeLink* const link = link_of_connection(event.connection);
  if (link == nullptr || event.session != link->session) return;
  const auto found = link->sent.find(event.number);
  if (found == link->sent.end()) return;
  const SentPass pass = std::move(found->second);
  link->sent.erase(found);
  link->want_truth = link->want_truth || pass.truth;
  for (auto& [id, work] : link->cancels) work.sent_in = 0;
  for (auto& [id, work] : link->renumbers) work.sent_in = 0;
  for (const SentOp& op : pass.ops) {
    if (op.kind != NodeOpKind::kCancel && op.kind != NodeOpKind::kRenumber)
      op_done(*link, op, event.number, event.error);
  }
  busy_.insert(link->spec.name);
}

void CoreMachine::op_done(NodeLink& link, const SentOp& op, std::uint64_t number,
                          const std::optional<Error>& refusal) {
  if (op.kind == NodeOpKind::kCancel) {
    const auto work = link.cancels.find(op.group);
    if (work == link.cancels.end() || work->second.sent_in != number) return;
    link.cancels.erase(work);
    cancel_done(link, op.group);
    return;
  }
  if (op.kind == NodeOpKind::kRenumber) {
    const auto work = link.renumbers.find(op.group);
    if (work != link.renumbers.end() && work->second.sent_in == number) link.renumbers.erase(work);
    return;
  }
  Group* const group = group_of(op.group);
  if (group == nullptr || !group->attempt || group->attempt->epoch != op.epoch) return;
  AttemptPart& part = group->attempt->parts.at(link.id);
  if (part.sent_in != number) return;
  if (refusal) {
    notice(fmt::format("group '{}': {} at node {} refused: {}", group->name(),
                       node_op_name(op.kind), link.spec.name, refusal->message));
    // The node knows better: say again what it may not have heard, and ask what it holds.
    link.want_truth = true;
    for (auto& [id, work] : link.cancels) work.sent_in = 0;
    busy_.insert(link.spec.name);
    attempt_failed(*group, *refusal);
    return;
  }
  if (op.kind == NodeOpKind::kPrepare) {
    part_prepared(*group, link.id);
  } else {
    part_committed(*group, link, number);
  }
}

void CoreMachine::cancel_done(NodeLink& link, GroupId id) {
  Group* const group = group_of(id);
  if (group == nullptr) return;
  group->cancelling.erase(link.id);
  if (group->status == GroupStatus::kRemoving && group->cancelling.empty()) finish_removal(*group);
}

void CoreMachine::cancel_at(NodeLink& link, GroupId group,
                            const std::map<std::uint32_t, Epoch>& slots) {
  if (link.connection == 0 || slots.empty()) return;
  if (options_.mutation == CoreMutation::kForgetCancels && !link.attached) return;
  CancelWork& work = link.cancels[group];
  for (const auto& [slot, epoch] : slots) {
    Epoch& most = work.slots[slot];
    most = std::max(most, epoch);
  }
  work.sent_in = 0;
  if (Group* const live = group_of(group)) live->cancelling.insert(link.id);
  busy_.insert(link.spec.name);
}

// ---- truth ---------------------------------------------------------------------------------

/// Compares what the node holds with what it should. `truth` is as of `reply.number`.
void CoreMachine::reconcile(NodeLink& link, const NodeReply& reply) {
  std::map<std::pair<GroupId, std::uint32_t>, const HeldSlot*> truth;
  for (const HeldSlot& held : reply.truth) truth.emplace(std::pair(held.group, held.slot), &held);
  if (!link.in_cluster) join_cluster(link);
  const std::set<GroupId> holders = link.holders;
  for (const GroupId id : holders) {
    Group& group = groups_.at(id);
    std::vector<std::int32_t> lost;
    for (const auto& [bundle, slot] : group.ledger.slots) {
      if (slot.slot.placement.node != link.id) continue;
      const auto found = truth.find({id, slot.slot.slot});
      const bool held =
          found != truth.end() && found->second->committed && (found->second->epoch == slot.epoch);
      const auto since = group.committed_in.find(slot.slot.slot);
      const bool newer = since != group.committed_in.end() && since->second.first == link.session &&
                         since->second.second > reply.number;
      const ActiveGroup* const active = cluster_.group(group.name());
      const bool placed = active != nullptr && active->bundles.contains(bundle);
      if ((!held && !newer) || !placed) lost.push_back(bundle);
    }
    if (lost.empty()) continue;
    std::vector<std::int32_t> in_cluster;
    for (const std::int32_t bundle : lost) {
      const ActiveGroup* const active = cluster_.group(group.name());
      if (active != nullptr && active->bundles.contains(bundle)) in_cluster.push_back(bundle);
    }
    free_bundles(group, in_cluster);
    lose_bundles(group, lost,
                 make_error(ErrorCode::kRankDead, "node {}: does not hold bundles {} of group '{}'",
                            link.spec.name, fmt::join(lost, ", "), group.name()));
  }
  for (const HeldSlot& held : reply.truth) judge_held(link, held);
  if (!link.attached) {
    link.attached = true;
    link.truth_at = now_ + options_.truth_every;
    TROUPE_CHECK(cluster_.set_draining(link.id, link.spec.draining),
                 "placement: node {} is not in the cluster", link.spec.name);
    notice(fmt::format("node {}: attached, holds {} bundles", link.spec.name, reply.truth.size()));
    pass_wanted_ = true;
    for (const GroupId id : std::set<GroupId>(link.holders)) look_at(groups_.at(id));
    busy_.insert(link.spec.name);
    wake_link_at(link, link.truth_at);
  }
}

/// The node's bundles of before a restart of the head go into the cluster with it; those that do
/// not fit (the node came back smaller) are left out and so count as lost.
void CoreMachine::join_cluster(NodeLink& link) {
  if (link.id.value < 0) {
    link.id = counters_.next_node;
    ++counters_.next_node.value;
    node_names_[link.id] = link.spec.name;
  }
  NodeSpec spec = link.spec;
  spec.draining = true;
  const result<void> added = cluster_.add_node(spec, link.id);
  TROUPE_CHECK(added, "placement: {}", added.error().message);
  link.in_cluster = true;
  for (const GroupId id : link.holders) {
    Group& group = groups_.at(id);
    for (const auto& [bundle, slot] : group.ledger.slots) {
      if (slot.slot.placement.node != link.id) continue;
      const result<void> taken =
          cluster_.allocate(group.wanted(), std::span(&slot.slot.placement, 1));
      if (!taken) notice(fmt::format("group '{}': {}", group.name(), taken.error().message));
    }
  }
}

void CoreMachine::judge_held(NodeLink& link, const HeldSlot& held) {
  Group* const group = group_of(held.group);
  const bool live = group != nullptr && group->status != GroupStatus::kRemoving;
  if (live) {
    for (const auto& [bundle, slot] : group->ledger.slots) {
      if (slot.slot.slot != held.slot || slot.epoch != held.epoch) continue;
      if (slot.slot.placement.node != link.id) break;
      if (bundle == held.bundle) return;
      RenumberWork& work = link.renumbers[held.group];
      work.epoch = slot.epoch;
      work.bundles[held.slot] = bundle;
      work.sent_in = 0;
      busy_.insert(link.spec.name);
      return;
    }
    if (group->attempt && group->attempt->epoch == held.epoch &&
        group->attempt->parts.contains(link.id))
      return;
    if (options_.mutation == CoreMutation::kKeepOldEpochs) return;
  }
  cancel_at(link, held.group, {{held.slot, held.epoch}});
}

// ---- what nodes are told -------------------------------------------------------------------

void CoreMachine::wake_link_at(NodeLink& link, TimePoint at) {
  if (link.wake_at && *link.wake_at <= at && *link.wake_at > now_) return;
  link.wake_at = at;
  add_timer(at, TimerKind::kNode, 0, link.spec.name);
}

void CoreMachine::look_at(NodeLink& link) {
  link.wake_at.reset();
  if (link.connection == 0) {
    if (!link.lost_at) return;
    if (*link.lost_at > now_) {
      wake_link_at(link, *link.lost_at);
      return;
    }
    const std::string name = link.spec.name;
    node_lost(name,
              make_error(ErrorCode::kRankDead, "node {}: lost, its agent does not answer", name));
    return;
  }
  resend_late(link);
  std::optional<TimePoint> next;
  const auto wake = [&next](TimePoint at) { next = next ? std::min(*next, at) : at; };
  if (!link.sent.empty()) wake(link.sent.begin()->second.at + options_.reply_within);
  if (!link.open_parts.empty()) {
    if (link.last_pass + options_.renew_every <= now_) {
      link.renew = true;
      busy_.insert(link.spec.name);
    }
    wake(std::max(link.last_pass, now_) + options_.renew_every);
  }
  if (link.attached) {
    if (link.truth_at <= now_) {
      link.want_truth = true;
      link.truth_at = now_ + options_.truth_every;
      busy_.insert(link.spec.name);
    }
    wake(link.truth_at);
  }
  if (next) wake_link_at(link, *next);
}

/// What was sent long ago and not answered is due again; nodes take everything twice.
void CoreMachine::resend_late(NodeLink& link) {
  while (!link.sent.empty() && link.sent.begin()->second.at + options_.reply_within <= now_) {
    const auto [number, pass] = *link.sent.begin();
    link.sent.erase(link.sent.begin());
    link.want_truth = link.want_truth || pass.truth;
    for (const SentOp& op : pass.ops) {
      if (const auto work = link.cancels.find(op.group);
          op.kind == NodeOpKind::kCancel && work != link.cancels.end()) {
        if (work->second.sent_in == number) work->second.sent_in = 0;
      }
      if (const auto work = link.renumbers.find(op.group);
          op.kind == NodeOpKind::kRenumber && work != link.renumbers.end()) {
        if (work->second.sent_in == number) work->second.sent_in = 0;
      }
      Group* const group = group_of(op.group);
      if (group == nullptr || !group->attempt || group->attempt->epoch != op.epoch) continue;
      const auto part = group->attempt->parts.find(link.id);
      if (part == group->attempt->parts.end() || part->second.sent_in != number) continue;
      if (part->second.stage == PartStage::kPreparing) part->second.stage = PartStage::kToPrepare;
      if (part->second.stage == PartStage::kCommitting) part->second.stage = PartStage::kToCommit;
      link.due.insert(op.group);
    }
    busy_.insert(link.spec.name);
  }
}

void CoreMachine::add_cancels(NodeLink& link, std::vector<NodeOp>& ops) {
  for (auto& [id, work] : link.cancels) {
    if (work.sent_in != 0) continue;
    NodeOp op{.kind = NodeOpKind::kCancel, .group = id, .epoch = {}};
    for (const auto& [slot, epoch] : work.slots) {
      op.epoch = std::max(op.epoch, epoch);
      op.bundles.push_back({.slot = slot, .bundle = 0});
    }
    ops.push_back(std::move(op));
  }
}

void CoreMachine::add_renumbers(NodeLink& link, std::vector<NodeOp>& ops) {
  for (auto& [id, work] : link.renumbers) {
    if (work.sent_in != 0) continue;
    NodeOp op{.kind = NodeOpKind::kRenumber, .group = id, .epoch = work.epoch};
    for (const auto& [slot, bundle] : work.bundles)
      op.bundles.push_back({.slot = slot, .bundle = bundle});
    ops.push_back(std::move(op));
  }
}

/// What the part of an attempt at this node has to say now.
std::optional<NodeOp> CoreMachine::part_op(NodeLink& link, GroupId id) {
  Group* const group = group_of(id);
  if (group == nullptr || !group->attempt) return std::nullopt;
  AttemptPart& part = group->attempt->parts.at(link.id);
  NodeOp op{.group = id, .epoch = group->attempt->epoch};
  if (part.stage == PartStage::kToPrepare) {
    op.kind = group->attempt->one_phase ? NodeOpKind::kReserve : NodeOpKind::kPrepare;
    op.name = group->name();
    op.slots = part.slots;
    return op;
  }
  if (part.stage != PartStage::kToCommit) return std::nullopt;
  op.kind = NodeOpKind::kCommit;
  return op;
}

void CoreMachine::send_due(NodeLink& link) {
  if (link.connection == 0) return;
  if (!link.attached) {
    if (link.want_truth) send_pass(link, {});
    return;
  }
  if (link.sent.size() >= options_.passes_in_flight_max) return;
  std::vector<NodeOp> ops;
  add_cancels(link, ops);
  add_renumbers(link, ops);
  for (const GroupId id : std::exchange(link.due, {})) {
    if (std::optional<NodeOp> op = part_op(link, id)) ops.push_back(std::move(*op));
  }
  if (ops.empty()) {
    if (link.want_truth || link.renew) send_pass(link, {});
    return;
  }
  std::size_t bytes = 0;
  std::vector<NodeOp> some;
  for (NodeOp& op : ops) {
    const std::size_t more = bytes_of(op);
    if (!some.empty() && bytes + more > options_.pass_bytes_max) {
      send_pass(link, std::exchange(some, {}));
      bytes = 0;
    }
    bytes += more;
    some.push_back(std::move(op));
  }
  send_pass(link, std::move(some));
}

void CoreMachine::send_pass(NodeLink& link, std::vector<NodeOp> ops) {
  const std::uint64_t number = ++link.number;
  SentPass sent{.at = now_, .truth = link.want_truth, .ops = {}};
  sent.ops.reserve(ops.size());
  for (const NodeOp& op : ops) {
    sent.ops.push_back({.kind = op.kind, .group = op.group, .epoch = op.epoch});
    if (op.kind == NodeOpKind::kCancel) {
      link.cancels.at(op.group).sent_in = number;
    } else if (op.kind == NodeOpKind::kRenumber) {
      link.renumbers.at(op.group).sent_in = number;
    } else {
      AttemptPart& part = groups_.at(op.group).attempt->parts.at(link.id);
      part.stage = op.kind == NodeOpKind::kCommit ? PartStage::kCommitting : PartStage::kPreparing;
      part.sent_in = number;
    }
  }
  link.sent.emplace(number, std::move(sent));
  effects_.passes.push_back({.connection = link.connection,
                             .pass = {.term = counters_.term,
                                      .session = link.session,
                                      .number = number,
                                      .hello = link.hello,
                                      .lease = options_.lease,
                                      .want_truth = std::exchange(link.want_truth, false),
                                      .ops = std::move(ops)}});
  link.renew = false;
  link.last_pass = now_;
  wake_link_at(link, now_ + std::min(options_.reply_within, options_.renew_every));
}

}  // namespace troupe::placement

#include "placement/node_reservations.hpp"

#include <algorithm>
#include <tuple>

namespace troupe::placement {

NodeReservations::NodeReservations(NodeSpec spec, std::uint64_t incarnation, NodeMutation mutation)
    : spec_(std::move(spec)), incarnation_(incarnation), mutation_(mutation) {
  used_.devices.resize(spec_.devices.size());
  used_.cores.resize(static_cast<std::size_t>(spec_.cores));
}

result<NodeReservations> NodeReservations::create(NodeSpec spec, std::uint64_t incarnation,
                                                  NodeMutation mutation) {
  TROUPE_TRY_VOID(validate(spec));
  return NodeReservations(std::move(spec), incarnation, mutation);
}

NodeHello NodeReservations::hello() {
  session_.reset();
  return {.spec = spec_, .incarnation = incarnation_, .hello = ++hello_};
}

result<void> NodeReservations::set_device_failed(std::int32_t device, bool failed) {
  if (device < 0 || static_cast<std::size_t>(device) >= spec_.devices.size())
    return fail(ErrorCode::kInvalidArgument, "node {}: device {} of {}", spec_.name, device,
                spec_.devices.size());
  spec_.devices[static_cast<std::size_t>(device)].failed = failed;
  return {};
}

bool NodeReservations::admit(const NodePass& pass) {
  if (mutation_ == NodeMutation::kIgnoreOrder) return true;
  if (pass.term < term_max_) return false;
  if (!session_) {
    // A new session answers the latest hello, so what the head is told of was not changed since.
    if (pass.hello != hello_ || hello_ == 0) return false;
    session_ = Session{.term = pass.term, .session = pass.session, .number = 0};
  }
  if (session_->term != pass.term || session_->session != pass.session) return false;
  if (pass.number <= session_->number) return false;
  session_->number = pass.number;
  term_max_ = pass.term;
  return true;
}

std::optional<NodeReply> NodeReservations::step(const NodePass& pass, TimePoint now,
                                                ReservationChanges& changes) {
  expire(now);
  if (!admit(pass)) return std::nullopt;
  NodeReply reply{.term = pass.term,
                  .session = pass.session,
                  .number = pass.number,
                  .draining = spec_.draining};
  for (const NodeOp& op : pass.ops) {
    result<void> done = apply(op, pass, now, changes);
    if (!done) {
      changes.notices.push_back(fmt::format("node {}: {} of group {} refused: {}", spec_.name,
                                            node_op_name(op.kind), op.group.value,
                                            done.error().message));
      reply.refusals.push_back(std::move(done).error());
    } else {
      reply.refusals.emplace_back();
    }
  }
  for (auto& [key, held] : held_) {
    if (!held.committed) held.lease_until = now + std::min(pass.lease, kLeaseMax);
  }
  if (pass.want_truth) {
    reply.has_truth = true;
    for (const auto& [key, held] : held_)
      reply.truth.push_back({.group = key.first,
                             .slot = key.second,
                             .bundle = held.placement.bundle,
                             .epoch = held.epoch,
                             .committed = held.committed});
  }
  return reply;
}

result<void> NodeReservations::apply(const NodeOp& op, const NodePass& pass, TimePoint now,
                                     ReservationChanges& changes) {
  switch (op.kind) {
    case NodeOpKind::kPrepare:
      return prepare(op, pass, now);
    case NodeOpKind::kReserve:
      TROUPE_TRY_VOID(prepare(op, pass, now));
      return commit(op, changes);
    case NodeOpKind::kCommit:
      return commit(op, changes);
    case NodeOpKind::kCancel:
      return cancel(op, changes);
    case NodeOpKind::kRenumber:
      return renumber(op);
  }
  return fail(ErrorCode::kUnsupported, "unknown operation {}", static_cast<int>(op.kind));
}

result<void> NodeReservations::prepare(const NodeOp& op, const NodePass& pass, TimePoint now) {
  if (op.slots.empty()) return fail(ErrorCode::kInvalidArgument, "no slots");
  std::vector<const Slot*> taken;
  const auto take_all = [&]() -> result<void> {
    for (const Slot& slot : op.slots) {
      const auto found = held_.find({op.group, slot.slot});
      if (found != held_.end()) {
        // The same again, after a lost answer. A slot is never used twice, so anything else is a
        // head that forgot, or an attempt that is over.
        if (found->second.epoch == op.epoch && found->second.placement == slot.placement) continue;
        return fail(ErrorCode::kConflict, "slot {} is held by epoch {}, asked for by {}", slot.slot,
                    found->second.epoch.value, op.epoch.value);
      }
      if (spec_.draining)
        return fail(ErrorCode::kResourceExhausted, "node {} is draining", spec_.name);
      if (held_.size() >= kNodeBundlesMax)
        return fail(ErrorCode::kResourceExhausted, "node {} holds {} bundles, at most {}",
                    spec_.name, held_.size(), kNodeBundlesMax);
      if (mutation_ != NodeMutation::kIgnoreCapacity) TROUPE_TRY_VOID(check_fits(slot.placement));
      take(slot.placement);
      held_.emplace(SlotKey{op.group, slot.slot},
                    HeldBundle{.group = op.group,
                               .slot = slot.slot,
                               .name = op.name,
                               .epoch = op.epoch,
                               .committed = false,
                               .lease_until = now + std::min(pass.lease, kLeaseMax),
                               .placement = slot.placement});
      taken.push_back(&slot);
    }
    return {};
  };
  result<void> done = take_all();
  if (!done) {
    for (const Slot* slot : taken) {
      give_back(slot->placement);
      held_.erase({op.group, slot->slot});
    }
  }
  return done;
}

result<void> NodeReservations::commit(const NodeOp& op, ReservationChanges& changes) {
  bool any = false;
  const auto begin = held_.lower_bound({op.group, 0});
  for (auto at = begin; at != held_.end() && at->first.first == op.group; ++at) {
    HeldBundle& held = at->second;
    if (held.epoch != op.epoch) continue;
    any = true;
    if (held.committed) continue;
    held.committed = true;
    changes.committed.push_back(held);
  }
  if (!any)
    return fail(ErrorCode::kNotFound, "nothing is prepared for epoch {}; its lease may be over",
                op.epoch.value);
  return {};
}

result<void> NodeReservations::cancel(const NodeOp& op, ReservationChanges& changes) {
  if (mutation_ == NodeMutation::kIgnoreCancel) return {};
  for (const SlotBundle& named : op.bundles) {
    const auto found = held_.find({op.group, named.slot});
    if (found == held_.end() || found->second.epoch > op.epoch) continue;
    give_back(found->second.placement);
    if (found->second.committed) changes.released.push_back(found->second);
    held_.erase(found);
  }
  return {};
}

result<void> NodeReservations::renumber(const NodeOp& op) {
  for (const SlotBundle& named : op.bundles) {
    const auto found = held_.find({op.group, named.slot});
    if (found == held_.end()) return fail(ErrorCode::kNotFound, "slot {} is not held", named.slot);
  }
  for (const SlotBundle& named : op.bundles)
    held_.find({op.group, named.slot})->second.placement.bundle = named.bundle;
  return {};
}

void NodeReservations::expire(TimePoint now) {
  for (auto at = held_.begin(); at != held_.end();) {
    if (at->second.committed || at->second.lease_until > now) {
      ++at;
      continue;
    }
    give_back(at->second.placement);
    at = held_.erase(at);
  }
}

std::optional<HeldBundle> NodeReservations::find(std::string_view group,
                                                 std::int32_t bundle) const {
  for (const auto& [key, held] : held_) {
    if (held.committed && held.placement.bundle == bundle && held.name == group) return held;
  }
  return std::nullopt;
}

result<void> NodeReservations::check_fits(const BundlePlacement& placement) const {
  constexpr std::int64_t kWhole = Amount::kUnitsPerOne;
  const auto refuse = [this](std::string_view what, std::int64_t wanted, std::int64_t free) {
    return fail(ErrorCode::kResourceExhausted, "node {}: {}: wanted {}, free {}", spec_.name, what,
                wanted, free);
  };
  std::int32_t last = -1;
  for (const DeviceShare& share : placement.devices) {
    const auto index = static_cast<std::size_t>(share.device);
    if (share.device <= last || index >= spec_.devices.size() || share.amount.units <= 0)
      return fail(ErrorCode::kInvalidArgument, "node {}: device {} of {}, share {}", spec_.name,
                  share.device, spec_.devices.size(), share.amount.units);
    last = share.device;
    if (spec_.devices[index].failed)
      return fail(ErrorCode::kResourceExhausted, "node {}: device {} has failed", spec_.name,
                  share.device);
    const std::int64_t free = kWhole - used_.devices[index];
    if (share.amount.units > free)
      return refuse(fmt::format("device {}", share.device), share.amount.units, free);
  }
  last = -1;
  for (const CoreShare& share : placement.cores) {
    const auto index = static_cast<std::size_t>(share.core);
    if (share.core <= last || index >= used_.cores.size() || share.amount.units <= 0)
      return fail(ErrorCode::kInvalidArgument, "node {}: core {} of {}, share {}", spec_.name,
                  share.core, used_.cores.size(), share.amount.units);
    last = share.core;
    const std::int64_t free = kWhole - used_.cores[index];
    if (share.amount.units > free)
      return refuse(fmt::format("core {}", share.core), share.amount.units, free);
  }
  const std::int64_t memory_free = spec_.memory.value - used_.memory;
  if (placement.memory.value < 0 || placement.memory.value > memory_free)
    return refuse("memory", placement.memory.value, memory_free);
  for (const auto& [name, amount] : placement.named) {
    const auto has = spec_.named.find(name);
    const auto used = used_.named.find(name);
    const std::int64_t free = (has == spec_.named.end() ? 0 : has->second.units) -
                              (used == used_.named.end() ? 0 : used->second);
    if (amount.units < 0 || amount.units > free) return refuse(name, amount.units, free);
  }
  return {};
}

void NodeReservations::take(const BundlePlacement& placement) {
  for (const DeviceShare& share : placement.devices)
    used_.devices[static_cast<std::size_t>(share.device)] += share.amount.units;
  for (const CoreShare& share : placement.cores)
    used_.cores[static_cast<std::size_t>(share.core)] += share.amount.units;
  used_.memory += placement.memory.value;
  for (const auto& [name, amount] : placement.named) used_.named[name] += amount.units;
}

void NodeReservations::give_back(const BundlePlacement& placement) {
  for (const DeviceShare& share : placement.devices)
    used_.devices[static_cast<std::size_t>(share.device)] -= share.amount.units;
  for (const CoreShare& share : placement.cores)
    used_.cores[static_cast<std::size_t>(share.core)] -= share.amount.units;
  used_.memory -= placement.memory.value;
  for (const auto& [name, amount] : placement.named) used_.named[name] -= amount.units;
}

}  // namespace troupe::placement

#include "placement/protocol_codec.hpp"

#include "placement/values_codec.hpp"

#include <string>
#include <utility>

namespace troupe::placement {
namespace {

using runtime::list_size;
using runtime::text_of;
using runtime::whole_text;

void write_placements(const std::vector<BundlePlacement>& placements,
                      schemas::PlacementSlots::Builder out) {
  std::vector<EpochSlot> slots;
  slots.reserve(placements.size());
  for (const BundlePlacement& placement : placements) slots.push_back({{}, {0, placement}});
  write_slots(slots, out);
}

result<std::vector<BundlePlacement>> read_placements(schemas::PlacementSlots::Reader in) {
  TROUPE_TRY(std::vector<EpochSlot> slots, read_slots(in));
  std::vector<BundlePlacement> placements;
  placements.reserve(slots.size());
  for (EpochSlot& entry : slots) placements.push_back(std::move(entry.slot.placement));
  return placements;
}

void write_key(const GroupKey& key, schemas::PlacementGroupKey::Builder out) {
  out.setId(key.id.value);
  out.setName(whole_text(key.name));
}

result<GroupKey> read_key(schemas::PlacementGroupKey::Reader in) {
  TROUPE_TRY_VOID(check_count(in.getName().size(), kNameBytesMax, "bytes of a group's name"));
  return GroupKey{.id = GroupId{in.getId()}, .name = text_of(in.getName())};
}

void write_view(const GroupView& view, schemas::PlacementView::Builder out) {
  out.setId(view.id.value);
  out.setName(whole_text(view.name));
  write_owner(view.owner, out.initOwner());
  out.setStatus(static_cast<std::uint8_t>(view.status));
  write_terms(view.terms, out.initTerms());
  out.setEpoch(view.epoch.value);
  out.setBundles(view.bundles);
  write_placements(view.placements, out.initPlacements());
  out.setAge(view.age.count());
  out.setWhy(whole_text(view.why));
}

result<GroupView> read_view(schemas::PlacementView::Reader in) {
  GroupView view{.id = GroupId{in.getId()},
                 .name = text_of(in.getName()),
                 .owner = {},
                 .terms = {},
                 .epoch = Epoch{in.getEpoch()},
                 .bundles = in.getBundles(),
                 .why = text_of(in.getWhy())};
  TROUPE_TRY(view.owner, read_owner(in.getOwner()));
  TROUPE_TRY(view.status, read_enum(in.getStatus(), GroupStatus::kInfeasible, "status"));
  TROUPE_TRY(view.terms, read_terms(in.getTerms()));
  TROUPE_TRY(view.placements, read_placements(in.getPlacements()));
  TROUPE_TRY(view.age, read_span(in.getAge(), "age"));
  return view;
}

void write_change(const GroupChange& change, schemas::PlacementChange::Builder out) {
  out.setKind(static_cast<std::uint8_t>(change.kind));
  out.setGroup(change.group.value);
  out.setStatus(static_cast<std::uint8_t>(change.status));
  out.setEpoch(change.epoch.value);
  auto bundles = out.initBundles(list_size(change.bundles.size()));
  for (unsigned i = 0; i < bundles.size(); ++i) bundles.set(i, change.bundles[i]);
  write_placements(change.placements, out.initPlacements());
  if (change.cause) write_error(*change.cause, out.initCause());
}

result<GroupChange> read_change(schemas::PlacementChange::Reader in) {
  GroupChange change{.group = GroupId{in.getGroup()}, .epoch = Epoch{in.getEpoch()}};
  TROUPE_TRY(change.kind, read_enum(in.getKind(), ChangeKind::kRemoved, "change"));
  TROUPE_TRY(change.status, read_enum(in.getStatus(), GroupStatus::kInfeasible, "status"));
  TROUPE_TRY_VOID(check_count(in.getBundles().size(), kBundlesMax, "bundles"));
  for (const std::int32_t bundle : in.getBundles()) change.bundles.push_back(bundle);
  TROUPE_TRY(change.placements, read_placements(in.getPlacements()));
  if (in.hasCause()) {
    TROUPE_TRY(change.cause, read_error(in.getCause()));
  }
  return change;
}

void write_op(const NodeOp& op, schemas::PlacementNodeOp::Builder out) {
  out.setKind(static_cast<std::uint8_t>(op.kind));
  out.setGroup(op.group.value);
  out.setEpoch(op.epoch.value);
  if (!op.name.empty()) out.setName(whole_text(op.name));
  if (!op.slots.empty()) {
    std::vector<EpochSlot> slots;
    slots.reserve(op.slots.size());
    for (const Slot& slot : op.slots) slots.push_back({{}, slot});
    write_slots(slots, out.initSlots());
  }
  if (op.bundles.empty()) return;
  auto bundles = out.initBundles(list_size(op.bundles.size()));
  for (unsigned i = 0; i < bundles.size(); ++i) {
    bundles[i].setSlot(op.bundles[i].slot);
    bundles[i].setBundle(op.bundles[i].bundle);
  }
}

result<NodeOp> read_op(schemas::PlacementNodeOp::Reader in) {
  NodeOp op{.group = GroupId{in.getGroup()},
            .epoch = Epoch{in.getEpoch()},
            .name = text_of(in.getName())};
  TROUPE_TRY(op.kind, read_enum(in.getKind(), NodeOpKind::kRenumber, "operation"));
  TROUPE_TRY_VOID(check_count(op.name.size(), kNameBytesMax, "bytes of a group's name"));
  TROUPE_TRY(std::vector<EpochSlot> slots, read_slots(in.getSlots()));
  op.slots.reserve(slots.size());
  for (EpochSlot& entry : slots) op.slots.push_back(std::move(entry.slot));
  TROUPE_TRY_VOID(check_count(in.getBundles().size(), kBundlesMax, "slots"));
  for (const auto named : in.getBundles())
    op.bundles.push_back({.slot = named.getSlot(), .bundle = named.getBundle()});
  return op;
}

}  // namespace

MessageBytes encode_session(const OpenSession& session) {
  return encode_message<schemas::PlacementSession>([&](schemas::PlacementSession::Builder out) {
    write_owner(session.owner, out.initOwner());
    auto known = out.initKnown(list_size(session.known.size()));
    for (unsigned i = 0; i < known.size(); ++i) known.set(i, session.known[i].value);
  });
}

result<OpenSession> decode_session(MessageView bytes) {
  return decode_message<OpenSession, schemas::PlacementSession>(
      "placement session", bytes, [](schemas::PlacementSession::Reader in) -> result<OpenSession> {
        OpenSession session;
        TROUPE_TRY(session.owner, read_owner(in.getOwner()));
        for (const std::uint64_t id : in.getKnown()) session.known.push_back(GroupId{id});
        return session;
      });
}

MessageBytes encode_creates(std::span<const CreateGroup> groups) {
  return encode_message<schemas::PlacementCreate>([&](schemas::PlacementCreate::Builder out) {
    auto list = out.initGroups(list_size(groups.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setNumber(groups[i].number);
      write_request(groups[i].request, list[i].initRequest());
      write_terms(groups[i].terms, list[i].initTerms());
    }
  });
}

result<std::vector<CreateGroup>> decode_creates(MessageView bytes) {
  using Groups = std::vector<CreateGroup>;
  return decode_message<Groups, schemas::PlacementCreate>(
      "placement create", bytes, [](schemas::PlacementCreate::Reader in) -> result<Groups> {
        TROUPE_TRY_VOID(check_count(in.getGroups().size(), kRequestsPerMessageMax, "groups"));
        Groups groups;
        for (const auto entry : in.getGroups()) {
          CreateGroup group{.number = entry.getNumber(), .request = {}, .terms = {}};
          TROUPE_TRY(group.request, read_request(entry.getRequest()));
          TROUPE_TRY(group.terms, read_terms(entry.getTerms()));
          groups.push_back(std::move(group));
        }
        return groups;
      });
}

MessageBytes encode_outcomes(const GroupOutcomes& outcomes) {
  return encode_message<schemas::PlacementOutcomes>([&](schemas::PlacementOutcomes::Builder out) {
    auto list = out.initOutcomes(list_size(outcomes.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      if (outcomes[i]) {
        list[i].setId(outcomes[i]->value);
      } else {
        write_error(outcomes[i].error(), list[i].initError());
      }
    }
  });
}

result<GroupOutcomes> decode_outcomes(MessageView bytes) {
  return decode_message<GroupOutcomes, schemas::PlacementOutcomes>(
      "placement outcomes", bytes,
      [](schemas::PlacementOutcomes::Reader in) -> result<GroupOutcomes> {
        TROUPE_TRY_VOID(check_count(in.getOutcomes().size(), kRequestsPerMessageMax, "outcomes"));
        GroupOutcomes outcomes;
        for (const auto entry : in.getOutcomes()) {
          if (entry.isId()) {
            outcomes.emplace_back(GroupId{entry.getId()});
          } else {
            TROUPE_TRY(Error error, read_error(entry.getError()));
            outcomes.emplace_back(fail(std::move(error)));
          }
        }
        return outcomes;
      });
}

MessageBytes encode_keys(std::span<const GroupKey> keys) {
  return encode_message<schemas::PlacementKeys>([&](schemas::PlacementKeys::Builder out) {
    auto list = out.initGroups(list_size(keys.size()));
    for (unsigned i = 0; i < list.size(); ++i) write_key(keys[i], list[i]);
  });
}

result<std::vector<GroupKey>> decode_keys(MessageView bytes) {
  using Keys = std::vector<GroupKey>;
  return decode_message<Keys, schemas::PlacementKeys>(
      "placement groups", bytes, [](schemas::PlacementKeys::Reader in) -> result<Keys> {
        TROUPE_TRY_VOID(check_count(in.getGroups().size(), kRequestsPerMessageMax, "groups"));
        Keys keys;
        for (const auto entry : in.getGroups()) {
          TROUPE_TRY(GroupKey key, read_key(entry));
          keys.push_back(std::move(key));
        }
        return keys;
      });
}

MessageBytes encode_resize(const ResizeGroup& resize) {
  return encode_message<schemas::PlacementResize>([&](schemas::PlacementResize::Builder out) {
    out.setNumber(resize.number);
    write_key(resize.group, out.initGroup());
    auto remove = out.initRemove(list_size(resize.remove.size()));
    for (unsigned i = 0; i < remove.size(); ++i) remove.set(i, resize.remove[i]);
    write_bundles(resize.add, [&out](unsigned count) { return out.initAdd(count); });
  });
}

result<ResizeGroup> decode_resize(MessageView bytes) {
  return decode_message<ResizeGroup, schemas::PlacementResize>(
      "placement resize", bytes, [](schemas::PlacementResize::Reader in) -> result<ResizeGroup> {
        ResizeGroup resize{.number = in.getNumber(), .group = {}};
        TROUPE_TRY(resize.group, read_key(in.getGroup()));
        TROUPE_TRY_VOID(check_count(in.getRemove().size(), kBundlesMax, "bundles"));
        for (const std::int32_t bundle : in.getRemove()) resize.remove.push_back(bundle);
        TROUPE_TRY(resize.add, read_bundles(in.getAdd()));
        return resize;
      });
}

MessageBytes encode_list(const ListGroups& list) {
  return encode_message<schemas::PlacementList>([&](schemas::PlacementList::Builder out) {
    out.setAfter(list.after.value);
    out.setLimit(list.limit);
  });
}

result<ListGroups> decode_list(MessageView bytes) {
  return decode_message<ListGroups, schemas::PlacementList>(
      "placement list", bytes, [](schemas::PlacementList::Reader in) -> result<ListGroups> {
        return ListGroups{.after = GroupId{in.getAfter()}, .limit = in.getLimit()};
      });
}

MessageBytes encode_view(const GroupView& view) {
  return encode_message<schemas::PlacementView>(
      [&](schemas::PlacementView::Builder out) { write_view(view, out); });
}

result<GroupView> decode_view(MessageView bytes) {
  return decode_message<GroupView, schemas::PlacementView>(
      "placement view", bytes,
      [](schemas::PlacementView::Reader in) -> result<GroupView> { return read_view(in); });
}

MessageBytes encode_page(const GroupPage& page) {
  return encode_message<schemas::PlacementPage>([&](schemas::PlacementPage::Builder out) {
    out.setMore(page.more);
    auto list = out.initGroups(list_size(page.groups.size()));
    for (unsigned i = 0; i < list.size(); ++i) write_view(page.groups[i], list[i]);
  });
}

result<GroupPage> decode_page(MessageView bytes) {
  return decode_message<GroupPage, schemas::PlacementPage>(
      "placement page", bytes, [](schemas::PlacementPage::Reader in) -> result<GroupPage> {
        TROUPE_TRY_VOID(check_count(in.getGroups().size(), kListLimitMax, "groups"));
        GroupPage page{.groups = {}, .more = in.getMore()};
        for (const auto entry : in.getGroups()) {
          TROUPE_TRY(GroupView view, read_view(entry));
          page.groups.push_back(std::move(view));
        }
        return page;
      });
}

MessageBytes encode_changes(std::span<const GroupChange> changes) {
  return encode_message<schemas::PlacementChanges>([&](schemas::PlacementChanges::Builder out) {
    auto list = out.initChanges(list_size(changes.size()));
    for (unsigned i = 0; i < list.size(); ++i) write_change(changes[i], list[i]);
  });
}

result<std::vector<GroupChange>> decode_changes(MessageView bytes) {
  using Changes = std::vector<GroupChange>;
  return decode_message<Changes, schemas::PlacementChanges>(
      "placement changes", bytes, [](schemas::PlacementChanges::Reader in) -> result<Changes> {
        Changes changes;
        for (const auto entry : in.getChanges()) {
          TROUPE_TRY(GroupChange change, read_change(entry));
          changes.push_back(std::move(change));
        }
        return changes;
      });
}

MessageBytes encode_hello(const NodeHello& hello) {
  return encode_message<schemas::PlacementHello>([&](schemas::PlacementHello::Builder out) {
    write_spec(hello.spec, out.initSpec());
    out.setIncarnation(hello.incarnation);
    out.setHello(hello.hello);
  });
}

result<NodeHello> decode_hello(MessageView bytes) {
  return decode_message<NodeHello, schemas::PlacementHello>(
      "placement hello", bytes, [](schemas::PlacementHello::Reader in) -> result<NodeHello> {
        NodeHello hello{.spec = {}, .incarnation = in.getIncarnation(), .hello = in.getHello()};
        TROUPE_TRY(hello.spec, read_spec(in.getSpec()));
        return hello;
      });
}

MessageBytes encode_pass(const NodePass& pass) {
  return encode_message<schemas::PlacementPass>([&](schemas::PlacementPass::Builder out) {
    out.setTerm(pass.term);
    out.setSession(pass.session);
    out.setNumber(pass.number);
    out.setHello(pass.hello);
    out.setLease(pass.lease.count());
    out.setWantTruth(pass.want_truth);
    auto ops = out.initOps(list_size(pass.ops.size()));
    for (unsigned i = 0; i < ops.size(); ++i) write_op(pass.ops[i], ops[i]);
  });
}

result<NodePass> decode_pass(MessageView bytes) {
  return decode_message<NodePass, schemas::PlacementPass>(
      "placement pass", bytes, [](schemas::PlacementPass::Reader in) -> result<NodePass> {
        NodePass pass{.term = in.getTerm(),
                      .session = in.getSession(),
                      .number = in.getNumber(),
                      .hello = in.getHello(),
                      .lease = {},
                      .want_truth = in.getWantTruth()};
        TROUPE_TRY(pass.lease, read_span(in.getLease(), "lease"));
        for (const auto entry : in.getOps()) {
          TROUPE_TRY(NodeOp op, read_op(entry));
          pass.ops.push_back(std::move(op));
        }
        return pass;
      });
}

MessageBytes encode_reply(const NodeReply& reply) {
  return encode_message<schemas::PlacementReply>([&](schemas::PlacementReply::Builder out) {
    out.setTerm(reply.term);
    out.setSession(reply.session);
    out.setNumber(reply.number);
    out.setDraining(reply.draining);
    out.setOps(list_size(reply.refusals.size()));
    std::size_t count = 0;
    for (const auto& refusal : reply.refusals) count += refusal ? 1 : 0;
    auto refusals = out.initRefusals(list_size(count));
    unsigned at = 0;
    for (unsigned op = 0; op < reply.refusals.size(); ++op) {
      if (!reply.refusals[op]) continue;
      refusals[at].setOp(op);
      write_error(*reply.refusals[op], refusals[at++].initError());
    }
    out.setHasTruth(reply.has_truth);
    auto truth = out.initTruth(list_size(reply.truth.size()));
    for (unsigned i = 0; i < truth.size(); ++i) {
      const HeldSlot& held = reply.truth[i];
      truth[i].setGroup(held.group.value);
      truth[i].setEpoch(held.epoch.value);
      truth[i].setSlot(held.slot);
      truth[i].setBundle(held.bundle);
      truth[i].setCommitted(held.committed);
    }
  });
}

result<NodeReply> decode_reply(MessageView bytes) {
  return decode_message<NodeReply, schemas::PlacementReply>(
      "placement reply", bytes, [](schemas::PlacementReply::Reader in) -> result<NodeReply> {
        NodeReply reply{.term = in.getTerm(),
                        .session = in.getSession(),
                        .number = in.getNumber(),
                        .draining = in.getDraining()};
        TROUPE_TRY_VOID(check_count(in.getOps(), kListEntriesMax, "operations"));
        reply.refusals.resize(in.getOps());
        for (const auto entry : in.getRefusals()) {
          if (entry.getOp() >= reply.refusals.size())
            return fail(ErrorCode::kCorrupt, "operation {} of {}", entry.getOp(),
                        reply.refusals.size());
          TROUPE_TRY(reply.refusals[entry.getOp()], read_error(entry.getError()));
        }
        reply.has_truth = in.getHasTruth();
        TROUPE_TRY_VOID(check_count(in.getTruth().size(), kNodeBundlesMax, "slots"));
        for (const auto held : in.getTruth())
          reply.truth.push_back({.group = GroupId{held.getGroup()},
                                 .slot = held.getSlot(),
                                 .bundle = held.getBundle(),
                                 .epoch = Epoch{held.getEpoch()},
                                 .committed = held.getCommitted()});
        return reply;
      });
}

}  // namespace troupe::placement

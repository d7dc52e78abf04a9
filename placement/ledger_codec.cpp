#include "placement/ledger.hpp"
#include "placement/values_codec.hpp"

#include <utility>

namespace troupe::placement {
namespace {

using runtime::list_size;

void write_committed(const std::map<std::int32_t, CommittedSlot>& slots,
                     schemas::PlacementSlots::Builder out) {
  std::vector<EpochSlot> list;
  list.reserve(slots.size());
  for (const auto& [bundle, slot] : slots) list.push_back({slot.epoch, slot.slot});
  write_slots(list, out);
}

result<std::map<std::int32_t, CommittedSlot>> read_committed(schemas::PlacementSlots::Reader in) {
  TROUPE_TRY(std::vector<EpochSlot> list, read_slots(in));
  std::map<std::int32_t, CommittedSlot> slots;
  for (EpochSlot& entry : list) {
    const std::int32_t bundle = entry.slot.placement.bundle;
    if (!slots.emplace(bundle, CommittedSlot{entry.epoch, std::move(entry.slot)}).second)
      return fail(ErrorCode::kCorrupt, "bundle {} comes twice", bundle);
  }
  return slots;
}

void write_group(const LedgerGroup& group, schemas::PlacementLedgerGroup::Builder out) {
  out.setId(group.id.value);
  write_owner(group.owner, out.initOwner());
  out.setNumber(group.number);
  out.setResizeNumber(group.resize_number);
  write_request(group.request, out.initRequest());
  write_terms(group.terms, out.initTerms());
  out.setNextSlot(group.next_slot);
  out.setWasActive(group.was_active);
  out.setEpoch(group.epoch.value);
  write_committed(group.slots, out.initSlots());
}

result<LedgerGroup> read_group(schemas::PlacementLedgerGroup::Reader in) {
  LedgerGroup group{.id = GroupId{in.getId()},
                    .owner = {},
                    .number = in.getNumber(),
                    .resize_number = in.getResizeNumber(),
                    .request = {},
                    .terms = {},
                    .next_slot = in.getNextSlot(),
                    .was_active = in.getWasActive(),
                    .epoch = Epoch{in.getEpoch()}};
  TROUPE_TRY(group.owner, read_owner(in.getOwner()));
  TROUPE_TRY(group.request, read_request(in.getRequest()));
  TROUPE_TRY(group.terms, read_terms(in.getTerms()));
  TROUPE_TRY(group.slots, read_committed(in.getSlots()));
  TROUPE_TRY_VOID(runtime::as_corrupt(validate(group.request)));
  return group;
}

void write_record(const LedgerRecord& record, schemas::PlacementRecord::Builder out) {
  if (const auto* counters = std::get_if<LedgerCounters>(&record)) {
    auto entry = out.initCounters();
    entry.setTerm(counters->term);
    entry.setNextGroup(counters->next_group.value);
    entry.setNextNode(counters->next_node.value);
  } else if (const auto* put = std::get_if<GroupPut>(&record)) {
    write_group(put->group, out.initPut());
  } else if (const auto* placed = std::get_if<GroupPlaced>(&record)) {
    auto entry = out.initPlaced();
    entry.setId(placed->id.value);
    entry.setNextSlot(placed->next_slot);
    entry.setWasActive(placed->was_active);
    entry.setEpoch(placed->epoch.value);
    write_committed(placed->slots, entry.initSlots());
  } else {
    out.setErased(std::get<GroupErased>(record).id.value);
  }
}

result<LedgerRecord> read_record(schemas::PlacementRecord::Reader in) {
  switch (in.which()) {
    case schemas::PlacementRecord::COUNTERS: {
      const auto entry = in.getCounters();
      if (entry.getNextNode() < 0)
        return fail(ErrorCode::kCorrupt, "next node is {}", entry.getNextNode());
      return LedgerCounters{.term = entry.getTerm(),
                            .next_group = GroupId{entry.getNextGroup()},
                            .next_node = NodeId{entry.getNextNode()}};
    }
    case schemas::PlacementRecord::PUT: {
      TROUPE_TRY(LedgerGroup group, read_group(in.getPut()));
      return GroupPut{std::move(group)};
    }
    case schemas::PlacementRecord::PLACED: {
      const auto entry = in.getPlaced();
      GroupPlaced placed{.id = GroupId{entry.getId()},
                         .next_slot = entry.getNextSlot(),
                         .was_active = entry.getWasActive(),
                         .epoch = Epoch{entry.getEpoch()}};
      TROUPE_TRY(placed.slots, read_committed(entry.getSlots()));
      return placed;
    }
    case schemas::PlacementRecord::ERASED:
      return GroupErased{GroupId{in.getErased()}};
  }
  return fail(ErrorCode::kCorrupt, "record of kind {}", static_cast<unsigned>(in.which()));
}

}  // namespace

result<std::vector<std::byte>> encode_records(std::span<const LedgerRecord> records) {
  return encode_message<schemas::PlacementRecords>([&](schemas::PlacementRecords::Builder out) {
    auto list = out.initRecords(list_size(records.size()));
    for (unsigned i = 0; i < list.size(); ++i) write_record(records[i], list[i]);
  });
}

result<std::vector<LedgerRecord>> decode_records(std::span<const std::byte> payload) {
  using Records = std::vector<LedgerRecord>;
  return decode_message<Records, schemas::PlacementRecords>(
      "ledger record", payload, [](schemas::PlacementRecords::Reader in) -> result<Records> {
        Records records;
        for (const auto entry : in.getRecords()) {
          TROUPE_TRY(LedgerRecord record, read_record(entry));
          records.push_back(std::move(record));
        }
        return records;
      });
}

}  // namespace troupe::placement

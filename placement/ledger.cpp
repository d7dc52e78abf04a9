#include "placement/ledger.hpp"

#include <algorithm>
#include <utility>

namespace troupe::placement {
namespace {

template <class... Handlers>
struct Overload : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overload(Handlers...) -> Overload<Handlers...>;

void count_nodes(LedgerCounters& counters, const std::map<std::int32_t, CommittedSlot>& slots) {
  for (const auto& [bundle, slot] : slots)
    counters.next_node.value =
        std::max(counters.next_node.value, slot.slot.placement.node.value + 1);
}

}  // namespace

result<void> LedgerState::apply(const LedgerRecord& record) {
  const auto missing = [](GroupId id, std::string_view what) {
    return fail(ErrorCode::kCorrupt, "{}: group {} does not exist", what, id.value);
  };
  return std::visit(Overload{[&](const LedgerCounters& next) -> result<void> {
                               counters.term = std::max(counters.term, next.term);
                               counters.next_group = std::max(counters.next_group, next.next_group);
                               counters.next_node = std::max(counters.next_node, next.next_node);
                               return {};
                             },
                             [&](const GroupPut& put) -> result<void> {
                               counters.next_group.value =
                                   std::max(counters.next_group.value, put.group.id.value + 1);
                               count_nodes(counters, put.group.slots);
                               groups.insert_or_assign(put.group.id, put.group);
                               return {};
                             },
                             [&](const GroupPlaced& placed) -> result<void> {
                               const auto found = groups.find(placed.id);
                               if (found == groups.end()) return missing(placed.id, "placed");
                               found->second.next_slot = placed.next_slot;
                               found->second.was_active = placed.was_active;
                               found->second.epoch = placed.epoch;
                               found->second.slots = placed.slots;
                               count_nodes(counters, placed.slots);
                               return {};
                             },
                             [&](const GroupErased& erased) -> result<void> {
                               if (groups.erase(erased.id) == 0)
                                 return missing(erased.id, "erased");
                               return {};
                             }},
                    record);
}

std::vector<LedgerRecord> LedgerState::snapshot() const {
  std::vector<LedgerRecord> records{counters};
  records.reserve(groups.size() + 1);
  for (const auto& [id, group] : groups) records.emplace_back(GroupPut{group});
  return records;
}

result<LedgerState> replay(std::span<const std::span<const std::byte>> payloads) {
  LedgerState state;
  for (std::size_t frame = 0; frame < payloads.size(); ++frame) {
    const auto apply_frame = [&]() -> result<void> {
      TROUPE_TRY(const std::vector<LedgerRecord> records, decode_records(payloads[frame]));
      for (const LedgerRecord& record : records) TROUPE_TRY_VOID(state.apply(record));
      return {};
    };
    if (result<void> done = apply_frame(); !done) {
      Error error = std::move(done).error();
      error.message =
          fmt::format("ledger: frame {} of {}: {}", frame, payloads.size(), error.message);
      return fail(std::move(error));
    }
  }
  return state;
}

}  // namespace troupe::placement

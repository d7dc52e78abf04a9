// Saving the staleness ledger, and going on from what was saved.

#include "actors/pacing/staleness_ledger.hpp"
#include "runtime/wire/wire.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::size_t kColumns = 8;
constexpr std::int64_t kNumberMax = std::int64_t{1} << 40;

/// The form on disk: numbers in columns, so that a large ledger stays a small value.
struct SavedLedger {
  std::uint64_t next_group = 0;
  std::vector<std::int64_t> numbers{};  ///< steps trained, published, consumed, barren
  std::vector<std::int64_t> cancelled{};
  std::vector<std::uint64_t> groups{};
  std::vector<std::uint64_t> prompts{};
  std::vector<std::int64_t> columns{};  ///< kColumns per group
  static constexpr auto fields() {
    using runtime::field;
    return std::tuple{
        field("next_group", &SavedLedger::next_group), field("numbers", &SavedLedger::numbers),
        field("cancelled", &SavedLedger::cancelled),   field("groups", &SavedLedger::groups),
        field("prompts", &SavedLedger::prompts),       field("columns", &SavedLedger::columns)};
  }
};

result<void> in_range(std::string_view what, std::int64_t found, std::int64_t low,
                      std::int64_t high) {
  if (found >= low && found <= high) return {};
  return fail(ErrorCode::kCorrupt, "ledger state: {} is {}, wanted {} to {}", what, found, low,
              high);
}

result<OpenGroup> group_from(std::uint64_t number, std::uint64_t prompt,
                             std::span<const std::int64_t> columns) {
  TROUPE_TRY_VOID(in_range("stage", columns[3], 0, 2));
  return OpenGroup{
      .ticket = {.group = number,
                 .origin = {.prompt_id = prompt, .epoch = columns[0], .position = columns[1]},
                 .issued_at = WeightVersion{columns[2]}},
      .stage = static_cast<GroupStage>(columns[3]),
      .span = {.oldest = WeightVersion{columns[4]}, .newest = WeightVersion{columns[5]}},
      .crossed = columns[6],
      .age = columns[7]};
}

result<void> check_group(const OpenGroup& group, const LedgerState& state) {
  const GroupTicket& ticket = group.ticket;
  if (ticket.group >= state.next_group)
    return fail(ErrorCode::kCorrupt, "ledger state: group {} of {} issued", ticket.group,
                state.next_group);
  TROUPE_TRY_VOID(in_range("epoch", ticket.origin.epoch, 0, kNumberMax));
  TROUPE_TRY_VOID(in_range("position", ticket.origin.position, 0, kNumberMax));
  TROUPE_TRY_VOID(in_range("version at issue", ticket.issued_at.value, 0, state.published));
  TROUPE_TRY_VOID(in_range("span crossed", group.crossed, 0, state.steps_trained));
  if (group.stage == GroupStage::kRunning && group.span.empty() && group.span.newest == kNoVersion)
    return {};
  TROUPE_TRY_VOID(in_range("oldest version", group.span.oldest.value, ticket.issued_at.value,
                           state.steps_trained));
  return in_range("newest version", group.span.newest.value, group.span.oldest.value,
                  state.steps_trained);
}

result<void> check_state(const LedgerState& state) {
  TROUPE_TRY_VOID(in_range("steps trained", state.steps_trained, 0, kNumberMax));
  TROUPE_TRY_VOID(in_range("published version", state.published, 0, state.steps_trained));
  TROUPE_TRY_VOID(in_range("consumed", state.consumed, 0, kNumberMax));
  TROUPE_TRY_VOID(in_range("barren", state.barren, 0, kNumberMax));
  std::int64_t total = state.consumed + static_cast<std::int64_t>(state.open.size());
  for (const std::int64_t count : state.cancelled) {
    TROUPE_TRY_VOID(in_range("cancelled", count, 0, kNumberMax));
    total += count;
  }
  if (std::cmp_not_equal(total, state.next_group))
    return fail(ErrorCode::kCorrupt,
                "ledger state: {} issued, but consumed, open and cancelled make {}",
                state.next_group, total);
  std::optional<std::uint64_t> before;
  for (const OpenGroup& group : state.open) {
    if (before && group.ticket.group <= *before)
      return fail(ErrorCode::kCorrupt, "ledger state: group {} behind {}", group.ticket.group,
                  *before);
    before = group.ticket.group;
    TROUPE_TRY_VOID(check_group(group, state));
  }
  return {};
}

}  // namespace

result<std::vector<std::byte>> LedgerState::to_bytes() const {
  SavedLedger saved{.next_group = next_group,
                    .numbers = {steps_trained, published, consumed, barren},
                    .cancelled = {cancelled.begin(), cancelled.end()}};
  for (const OpenGroup& group : open) {
    saved.groups.push_back(group.ticket.group);
    saved.prompts.push_back(group.ticket.origin.prompt_id);
    for (const std::int64_t value :
         {group.ticket.origin.epoch, group.ticket.origin.position, group.ticket.issued_at.value,
          static_cast<std::int64_t>(group.stage), group.span.oldest.value, group.span.newest.value,
          group.crossed, group.age})
      saved.columns.push_back(value);
  }
  return runtime::encode_value(saved);
}

result<LedgerState> LedgerState::from_bytes(std::span<const std::byte> bytes) {
  TROUPE_TRY(const SavedLedger saved, runtime::decode_value<SavedLedger>(bytes));
  if (saved.numbers.size() != 4 || saved.cancelled.size() != kCancelReasons ||
      saved.prompts.size() != saved.groups.size() ||
      saved.columns.size() != saved.groups.size() * kColumns)
    return fail(ErrorCode::kCorrupt,
                "ledger state: {} numbers, {} reasons; {} groups, {} prompts, {} fields",
                saved.numbers.size(), saved.cancelled.size(), saved.groups.size(),
                saved.prompts.size(), saved.columns.size());
  LedgerState state{.next_group = saved.next_group,
                    .steps_trained = saved.numbers[0],
                    .published = saved.numbers[1],
                    .consumed = saved.numbers[2],
                    .barren = saved.numbers[3]};
  std::ranges::copy(saved.cancelled, state.cancelled.begin());
  for (std::size_t i = 0; i < saved.groups.size(); ++i) {
    const std::span<const std::int64_t> columns(saved.columns);
    TROUPE_TRY(const OpenGroup group, group_from(saved.groups[i], saved.prompts[i],
                                                 columns.subspan(i * kColumns, kColumns)));
    state.open.push_back(group);
  }
  TROUPE_TRY_VOID(check_state(state));
  return state;
}

LedgerState StalenessLedger::save() const {
  LedgerState state{.next_group = next_group_,
                    .steps_trained = steps_trained_,
                    .published = published_.value,
                    .consumed = consumed_,
                    .barren = barren_,
                    .cancelled = cancelled_};
  for (const auto& [number, group] : open_) {
    OpenGroup saved = group;
    // The step that took it has not ended: whoever resumes trains that step.
    if (saved.stage == GroupStage::kTaken) saved.stage = GroupStage::kFinished;
    saved.age = 0;
    state.open.push_back(saved);
  }
  return state;
}

result<StalenessLedger> StalenessLedger::restore(const LedgerOptions& options,
                                                 const LedgerState& state) {
  TROUPE_TRY_VOID(options.check());
  TROUPE_TRY_VOID(check_state(state));
  StalenessLedger ledger(options);
  ledger.next_group_ = state.next_group;
  ledger.steps_trained_ = state.steps_trained;
  ledger.published_ = WeightVersion{state.published};
  ledger.consumed_ = state.consumed;
  ledger.barren_ = state.barren;
  ledger.cancelled_ = ledger.cancelled_before_ = state.cancelled;
  for (OpenGroup group : state.open) {
    if (group.stage == GroupStage::kTaken) group.stage = GroupStage::kFinished;
    ledger.count_stage(group.stage, 1);
    ledger.open_.emplace(group.ticket.group, group);
  }
  for (const auto& [number, group] : ledger.open_)
    if (options.policy == StalePolicy::kWait &&
        group.ticket.issued_at.value + ledger.pacing_lead() < state.steps_trained)
      return fail(ErrorCode::kCorrupt,
                  "ledger state: group {} was issued at version {}, at step {} lead_max {} no "
                  "longer allows it: resume with at least the lead of the saved run, or with drop",
                  number, group.ticket.issued_at.value, state.steps_trained, options.lead_max);
  // A smaller lead than that of the saved run issues nothing until steps have caught up; but no
  // more groups may be due at one step than it takes.
  std::map<std::int64_t, std::int64_t> due;
  for (const auto& [number, group] : ledger.open_) ++due[group.ticket.issued_at.value];
  std::int64_t sum = 0;
  for (const auto& [issued_at, count] : due) {
    sum += count;
    const std::int64_t steps = issued_at + ledger.pacing_lead() - state.steps_trained + 1;
    if (options.policy == StalePolicy::kWait && sum > steps * options.groups_per_step)
      return fail(
          ErrorCode::kCorrupt,
          "ledger state: {} groups must be used within {} steps of {}: resume with at least "
          "the lead of the saved run, or with drop",
          sum, steps, options.groups_per_step);
  }
  return ledger;
}

}  // namespace troupe::actors

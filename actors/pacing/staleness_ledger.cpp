#include "actors/pacing/staleness_ledger.hpp"

#include "runtime/base/check.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::int64_t kCountMax = std::int64_t{1} << 31;
constexpr std::size_t kRecordsKept = 1024;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct CountOption {
  const char* name;
  std::int64_t value;
  std::int64_t low;
};

}  // namespace

std::string_view stale_policy_name(StalePolicy policy) {
  constexpr std::array<std::string_view, 3> kNames{"wait", "drop", "truncate"};
  return kNames[static_cast<std::size_t>(policy)];
}

result<StalePolicy> stale_policy_from_name(std::string_view name) {
  for (const StalePolicy policy : {StalePolicy::kWait, StalePolicy::kDrop, StalePolicy::kTruncate})
    if (stale_policy_name(policy) == name) return policy;
  return fail(ErrorCode::kConfig, "staleness policy '{}', wanted wait, drop or truncate", name);
}

result<void> LedgerOptions::check() const {
  for (const CountOption& one :
       {CountOption{"groups_per_step", groups_per_step, 1}, CountOption{"lead_max", lead_max, 0},
        CountOption{"age_max", age_max.value_or(0), 0},
        CountOption{"span_max", span_max.value_or(0), 0},
        CountOption{"groups_extra", groups_extra, 0}, CountOption{"running_max", running_max, 0},
        CountOption{"open_max", open_max, 0}, CountOption{"steps_max", steps_max, 0},
        CountOption{"barren_groups_max", barren_groups_max, 0}})
    if (one.value < one.low || one.value > kCountMax)
      return fail(ErrorCode::kInvalidArgument, "staleness ledger: {} is {}, wanted {} to {}",
                  one.name, one.value, one.low, kCountMax);
  if (open_max != 0 && open_max < groups_per_step)
    return fail(ErrorCode::kInvalidArgument,
                "staleness ledger: open_max {} is less than a step of {} groups: no step would "
                "ever be full",
                open_max, groups_per_step);
  const std::int64_t lead = lead_max + ceil_div(groups_extra, groups_per_step);
  if (policy == StalePolicy::kWait) {
    if (age_max && *age_max < lead)
      return fail(ErrorCode::kInvalidArgument,
                  "staleness ledger: policy wait keeps ages up to {}, age_max is {}: lower "
                  "lead_max or choose drop",
                  lead, *age_max);
    if (span_max && *span_max < lead)
      return fail(ErrorCode::kInvalidArgument,
                  "staleness ledger: policy wait lets trajectories cross {} versions, span_max is "
                  "{}: lower lead_max or choose drop",
                  lead, *span_max);
  }
  return {};
}

std::string EffectiveBound::to_string() const {
  const auto text = [](const std::optional<std::int64_t>& value) {
    return value ? fmt::format("{} versions", *value) : std::string("unbounded");
  };
  return fmt::format("used at most {} steps after issue (by {}); age at use {}; span {}", lead,
                     limited_by, text(age), text(span));
}

result<StalenessLedger> StalenessLedger::create(const LedgerOptions& options) {
  TROUPE_TRY_VOID(options.check());
  return StalenessLedger(options);
}

// ---- bounds --------------------------------------------------------------------------------

/// Steps between issue and use that issuing allows: η, and what over-sampling adds to it.
std::int64_t StalenessLedger::pacing_lead() const {
  return options_.lead_max + ceil_div(options_.groups_extra, options_.groups_per_step);
}

EffectiveBound StalenessLedger::effective() const {
  EffectiveBound bound{.lead = pacing_lead(), .limited_by = "lead_max"};
  if (options_.groups_extra > 0) bound.limited_by = "lead_max and groups_extra";
  if (options_.open_max != 0) {
    const std::int64_t lead = ceil_div(options_.open_max, options_.groups_per_step) - 1;
    // Counts from the newest trained step: a publication that lags adds to it.
    if (lead < bound.lead) bound.lead = lead, bound.limited_by = "open_max";
  }
  if (options_.steps_max != 0 && options_.steps_max - 1 < bound.lead) {
    bound.lead = options_.steps_max - 1;
    bound.limited_by = "steps_max";
  }
  // Dropped groups give their places back, so only waiting keeps the lead for the late.
  if (options_.policy == StalePolicy::kWait)
    bound.age = pacing_lead();
  else
    bound.age = age_bound();
  if (options_.span_max) bound.span = options_.span_max;
  if (bound.age && (!bound.span || *bound.age < *bound.span)) bound.span = bound.age;
  return bound;
}

std::int64_t StalenessLedger::age_bound() const { return options_.age_max.value_or(pacing_lead()); }

/// Groups that may ever be issued, cancelled ones taken off, at this version.
std::int64_t StalenessLedger::limit() const {
  std::int64_t steps = options_.lead_max + published_.value + 1;
  if (options_.steps_max != 0) steps = std::min(steps, options_.steps_max);
  return steps * options_.groups_per_step + options_.groups_extra;
}

std::int64_t StalenessLedger::free_groups() const {
  if (closed_) return 0;
  if (options_.steps_max != 0 && steps_trained_ >= options_.steps_max) return 0;
  const auto open = static_cast<std::int64_t>(open_.size());
  std::int64_t free = limit() - consumed_ - open;
  if (options_.running_max != 0) free = std::min(free, options_.running_max - running_);
  if (options_.open_max != 0) free = std::min(free, options_.open_max - open);
  return std::max<std::int64_t>(free, 0);
}

std::string StalenessLedger::explain() const {
  const auto open = static_cast<std::int64_t>(open_.size());
  std::string limited = "nothing";
  if (closed_)
    limited = "the end of the run";
  else if (options_.steps_max != 0 && steps_trained_ >= options_.steps_max)
    limited = fmt::format("steps_max: {} steps are trained", steps_trained_);
  else if (limit() - consumed_ - open <= 0)
    limited = fmt::format("pacing: {} of {} groups at published version {}, trained {}",
                          consumed_ + open, limit(), published_.value, steps_trained_);
  else if (options_.running_max != 0 && running_ >= options_.running_max)
    limited = fmt::format("running_max: {} of {} groups", running_, options_.running_max);
  else if (options_.open_max != 0 && open >= options_.open_max)
    limited = fmt::format("open_max: {} of {} groups", open, options_.open_max);
  return fmt::format(
      "{} groups free, held back by {}; {} running, {} finished, {} taken of {}, {} consumed",
      free_groups(), limited, running_, finished_, taken_, options_.groups_per_step, consumed_);
}

/// Places left in the steps up to each step by which some open group must be used, once all of
/// those are served. Empty unless ages are kept by waiting. Never negative: issuing keeps it so
/// (docs/asynchronous.md), and taking asks here.
std::map<std::int64_t, std::int64_t> StalenessLedger::slack() const {
  std::map<std::int64_t, std::int64_t> slack;
  if (options_.policy != StalePolicy::kWait) return slack;
  for (const auto& [number, group] : open_)
    if (group.stage != GroupStage::kTaken) ++slack[group.ticket.issued_at.value + pacing_lead()];
  std::int64_t due = 0;
  for (auto& [step, count] : slack) {
    due += count;
    count = (step - steps_trained_ + 1) * options_.groups_per_step - taken_ - due;
  }
  return slack;
}

std::optional<CancelReason> StalenessLedger::unusable(const OpenGroup& group) const {
  if (group.span.empty()) return std::nullopt;
  const std::int64_t newest_bound = published_.value - age_bound();
  switch (options_.policy) {
    case StalePolicy::kWait:
      return std::nullopt;
    case StalePolicy::kDrop:
      if (group.span.oldest.value < newest_bound) return CancelReason::kStale;
      if (options_.span_max && group.crossed > *options_.span_max) return CancelReason::kSpan;
      return std::nullopt;
    case StalePolicy::kTruncate:
      // A running group will still get newer tokens.
      if (group.stage != GroupStage::kRunning && group.span.newest.value < newest_bound)
        return CancelReason::kStale;
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<WeightVersion> StalenessLedger::mask_bound(const OpenGroup& group) const {
  if (options_.policy != StalePolicy::kTruncate || group.span.empty()) return std::nullopt;
  std::int64_t bound = std::max<std::int64_t>(published_.value - age_bound(), 0);
  if (options_.span_max) bound = std::max(bound, group.span.newest.value - *options_.span_max);
  if (group.span.oldest.value >= bound) return std::nullopt;
  return WeightVersion{bound};
}

// ---- stages --------------------------------------------------------------------------------

void StalenessLedger::count_stage(GroupStage stage, std::int64_t by) {
  switch (stage) {
    case GroupStage::kRunning:
      running_ += by;
      return;
    case GroupStage::kFinished:
      finished_ += by;
      return;
    case GroupStage::kTaken:
      taken_ += by;
      return;
  }
}

CancelRecord StalenessLedger::leave(std::map<std::uint64_t, OpenGroup>::iterator place,
                                    CancelReason reason) {
  const OpenGroup& group = place->second;
  CancelRecord record{.group = group.ticket.group,
                      .origin = group.ticket.origin,
                      .reason = reason,
                      .issued_at = group.ticket.issued_at,
                      .cancelled_at = published_};
  count_stage(group.stage, -1);
  ++cancelled_[static_cast<std::size_t>(reason)];
  // Losing a race or the end of the run says nothing about whether prompts are any good.
  if (reason != CancelReason::kEndOfRun && reason != CancelReason::kCut &&
      reason != CancelReason::kAsked)
    ++barren_;
  open_.erase(place);
  records_.push_back(record);
  if (records_.size() > kRecordsKept) records_.pop_front();
  return record;
}

std::vector<CancelRecord> StalenessLedger::sweep() {
  std::vector<CancelRecord> records;
  for (auto place = open_.begin(); place != open_.end();) {
    const auto here = place++;
    if (here->second.stage == GroupStage::kTaken) continue;
    if (const auto reason = unusable(here->second)) records.push_back(leave(here, *reason));
  }
  return records;
}

result<GroupTicket> StalenessLedger::issue(const PromptOrigin& origin) {
  if (free_groups() == 0)
    return fail(ErrorCode::kResourceExhausted, "staleness ledger: prompt {}: {}", origin.prompt_id,
                explain());
  OpenGroup group{.ticket = {.group = next_group_, .origin = origin, .issued_at = published_},
                  .stage = GroupStage::kRunning,
                  .span = {},
                  .crossed = 0,
                  .age = 0};
  open_.emplace(next_group_, group);
  ++next_group_;
  ++running_;
  return group.ticket;
}

result<std::vector<CancelRecord>> StalenessLedger::published(WeightVersion version) {
  if (version < published_ || version.value > steps_trained_)
    return fail(ErrorCode::kConflict,
                "staleness ledger: published version {}, wanted {} to {} (trained steps)",
                version.value, published_.value, steps_trained_);
  published_ = version;
  return sweep();
}

result<void> StalenessLedger::began(std::uint64_t group, WeightVersion version) {
  const auto place = open_.find(group);
  if (place == open_.end() || place->second.stage != GroupStage::kRunning)
    return fail(ErrorCode::kNotFound, "staleness ledger: group {} began, but is not running",
                group);
  if (version < place->second.ticket.issued_at || version.value > steps_trained_)
    return fail(ErrorCode::kConflict, "staleness ledger: group {}: version {}, wanted {} to {}",
                group, version.value, place->second.ticket.issued_at.value, steps_trained_);
  place->second.span.add(version);
  return {};
}

result<std::optional<CancelRecord>> StalenessLedger::finish(std::uint64_t group,
                                                            std::span<const VersionSpan> samples) {
  const auto place = open_.find(group);
  if (place == open_.end() || place->second.stage != GroupStage::kRunning)
    return fail(ErrorCode::kNotFound, "staleness ledger: group {} finished, but is not running",
                group);
  VersionSpan all;
  std::int64_t crossed = 0;
  for (const VersionSpan& one : samples) {
    all.add(one);
    if (!one.empty()) crossed = std::max(crossed, one.crossed());
  }
  const WeightVersion issued_at = place->second.ticket.issued_at;
  if (all.empty() || all.oldest < issued_at || all.newest.value > steps_trained_)
    return fail(ErrorCode::kConflict,
                "staleness ledger: group {}: versions {} to {}, wanted {} (at issue) to {} "
                "(trained)",
                group, all.oldest.value, all.newest.value, issued_at.value, steps_trained_);
  OpenGroup& one = place->second;
  count_stage(one.stage, -1);
  one.stage = GroupStage::kFinished;
  count_stage(one.stage, 1);
  one.span = all;
  one.crossed = crossed;
  if (const auto reason = unusable(one)) return std::optional(leave(place, *reason));
  return std::optional<CancelRecord>();
}

result<CancelRecord> StalenessLedger::cancel(std::uint64_t group, CancelReason reason) {
  const auto place = open_.find(group);
  if (place == open_.end())
    return fail(ErrorCode::kNotFound, "staleness ledger: group {} cancelled ({}), but is not open",
                group, cancel_reason_name(reason));
  return leave(place, reason);
}

std::vector<CancelRecord> StalenessLedger::close(bool cancel_all) {
  closed_ = true;
  std::vector<CancelRecord> records;
  const bool over = options_.steps_max != 0 && steps_trained_ >= options_.steps_max;
  if (!cancel_all && !over) return records;
  for (auto place = open_.begin(); place != open_.end();) {
    const auto here = place++;
    if (here->second.stage != GroupStage::kTaken)
      records.push_back(leave(here, CancelReason::kEndOfRun));
  }
  return records;
}

// ---- use -----------------------------------------------------------------------------------

/// Finished groups that the step under way may take, oldest first.
std::vector<std::uint64_t> StalenessLedger::candidates() const {
  std::vector<std::uint64_t> chosen;
  std::map<std::int64_t, std::int64_t> left = slack();
  for (const auto& [number, group] : open_) {
    if (std::cmp_greater_equal(chosen.size(), wanted())) break;
    if (group.stage != GroupStage::kFinished || unusable(group)) continue;
    // Its place is taken from the groups that must be used before it has to.
    const auto own = left.lower_bound(group.ticket.issued_at.value + pacing_lead());
    if (std::any_of(left.begin(), own, [](const auto& one) { return one.second < 1; })) continue;
    std::for_each(left.begin(), own, [](auto& one) { --one.second; });
    chosen.push_back(number);
  }
  return chosen;
}

std::int64_t StalenessLedger::ready() const {
  return static_cast<std::int64_t>(candidates().size());
}

StalenessLedger::Taken StalenessLedger::take(std::int64_t most) {
  Taken taken;
  taken.cancelled = sweep();
  std::vector<std::uint64_t> chosen = candidates();
  chosen.resize(std::min(chosen.size(), static_cast<std::size_t>(std::max<std::int64_t>(most, 0))));
  std::ranges::sort(chosen);
  if (taken_ == 0 && !chosen.empty()) step_lag_ = publish_lag();
  if (!chosen.empty()) barren_ = 0;
  for (const std::uint64_t number : chosen) {
    OpenGroup& group = open_.at(number);
    count_stage(group.stage, -1);
    group.stage = GroupStage::kTaken;
    count_stage(group.stage, 1);
    // With an update in flight, tokens may be newer than what every rank serves.
    group.age = std::max<std::int64_t>(published_.value - group.span.oldest.value, 0);
    taken.groups.push_back({.ticket = group.ticket,
                            .span = group.span,
                            .age = group.age,
                            .lead_used = steps_trained_ - group.ticket.issued_at.value,
                            .mask_older_than = mask_bound(group)});
  }
  return taken;
}

result<StepAccount> StalenessLedger::end_step() {
  const bool last = closed_ && running_ == 0 && finished_ == 0 && taken_ > 0;
  if (taken_ != options_.groups_per_step && !last)
    return fail(ErrorCode::kConflict, "staleness ledger: step {} ends with {} groups, wanted {}",
                steps_trained_, taken_, options_.groups_per_step);
  StepAccount account{.step = steps_trained_, .groups = taken_, .publish_lag = step_lag_};
  for (auto place = open_.begin(); place != open_.end();) {
    const auto here = place++;
    if (here->second.stage != GroupStage::kTaken) continue;
    ++account.ages[here->second.age];
    ++account.spans[here->second.crossed];
    open_.erase(here);
  }
  for (std::size_t i = 0; i < kCancelReasons; ++i)
    account.cancelled[i] = cancelled_[i] - cancelled_before_[i];
  cancelled_before_ = cancelled_;
  consumed_ += taken_;
  taken_ = 0;
  ++steps_trained_;
  return account;
}

void StalenessLedger::abandon_step() {
  for (auto& [number, group] : open_) {
    if (group.stage != GroupStage::kTaken) continue;
    group.stage = GroupStage::kFinished;
    group.age = 0;
  }
  finished_ += taken_;
  taken_ = 0;
}

// ---- views ---------------------------------------------------------------------------------

std::int64_t StalenessLedger::cancelled_total() const {
  std::int64_t total = 0;
  for (const std::int64_t count : cancelled_) total += count;
  return total;
}

std::optional<Error> StalenessLedger::barren() const {
  const std::int64_t most =
      options_.barren_groups_max != 0 ? options_.barren_groups_max : 10 * options_.groups_per_step;
  if (barren_ < most || finished_ > 0 || taken_ > 0) return std::nullopt;
  std::string counts;
  for (std::size_t i = 0; i < kCancelReasons; ++i)
    if (cancelled_[i] != 0)
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", cancelled_[i],
                            cancel_reason_name(static_cast<CancelReason>(i)));
  return Error{.code = ErrorCode::kResourceExhausted,
               .message = fmt::format(
                   "rollout: {} groups in a row were given up, wanted fewer than {} (in all: {})",
                   barren_, most, counts),
               .origin = {},
               .causes = {}};
}

void StalenessLedger::check_invariants() const {
  std::array<std::int64_t, 3> stages{};
  for (const auto& [number, group] : open_) {
    TROUPE_CHECK(number == group.ticket.group && number < next_group_, "ledger: group {} of {}",
                 number, next_group_);
    ++stages[static_cast<std::size_t>(group.stage)];
    TROUPE_CHECK(group.stage == GroupStage::kRunning || !group.span.empty(),
                 "ledger: group {} finished without a version", number);
  }
  TROUPE_CHECK(stages[0] == running_ && stages[1] == finished_ && stages[2] == taken_,
               "ledger: {} running, {} finished, {} taken; counted {}, {}, {}", running_, finished_,
               taken_, stages[0], stages[1], stages[2]);
  for (const auto& [step, left] : slack())
    TROUPE_CHECK(step >= steps_trained_ && left >= 0,
                 "ledger: step {}: groups due by step {} are {} more than there are places",
                 steps_trained_, step, -left);
  const auto open = static_cast<std::int64_t>(open_.size());
  TROUPE_CHECK(static_cast<std::int64_t>(next_group_) == open + consumed_ + cancelled_total(),
               "ledger: {} issued, {} open, {} consumed, {} cancelled", next_group_, open,
               consumed_, cancelled_total());
  TROUPE_CHECK(consumed_ + open <= limit(), "ledger: {} consumed and {} open, limit {}", consumed_,
               open, limit());
  TROUPE_CHECK(published_.value <= steps_trained_ && taken_ <= options_.groups_per_step,
               "ledger: published {}, trained {}, taken {} of {}", published_.value, steps_trained_,
               taken_, options_.groups_per_step);
}

}  // namespace troupe::actors

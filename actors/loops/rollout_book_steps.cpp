// Steps: which groups are taken, rounds, publications; and what the book says about itself.

#include "actors/loops/rollout_book.hpp"
#include "runtime/base/check.hpp"

#include <utility>

namespace troupe::actors {

result<void> RolloutOptions::check() const {
  TROUPE_TRY_VOID(ledger.check());
  TROUPE_TRY_VOID(sampling.check());
  if (group_size < 1 || group_size > (1 << 20))
    return fail(ErrorCode::kInvalidArgument, "rollout: group size {}, wanted 1 to {}", group_size,
                1 << 20);
  if (first_step < 0)
    return fail(ErrorCode::kInvalidArgument, "rollout: {} steps before the first", first_step);
  if (environment_turns_max < 1)
    return fail(ErrorCode::kInvalidArgument, "rollout: {} environment turns, wanted at least 1",
                environment_turns_max);
  return settled().dispatch.check();
}

RolloutOptions RolloutOptions::settled() const {
  RolloutOptions options = *this;
  options.dispatch.group_size = static_cast<std::int32_t>(group_size);
  options.dispatch.new_tokens_max = sampling.max_new_tokens;
  return options;
}

RolloutBook::RolloutBook(const RolloutOptions& options, StalenessLedger ledger,
                         RolloutDispatcher dispatcher)
    : options_(options), ledger_(std::move(ledger)), dispatcher_(std::move(dispatcher)) {
  rounds_ = ledger_.steps_trained();
}

result<RolloutBook> RolloutBook::create(const RolloutOptions& asked) {
  TROUPE_TRY_VOID(asked.check());
  const RolloutOptions options = asked.settled();
  LedgerState state;
  state.steps_trained = options.first_step;
  state.published = options.first_step;
  state.consumed = options.first_step * options.ledger.groups_per_step;
  state.next_group = static_cast<std::uint64_t>(state.consumed);
  TROUPE_TRY(StalenessLedger ledger, StalenessLedger::restore(options.ledger, state));
  TROUPE_TRY(RolloutDispatcher dispatcher, RolloutDispatcher::create(options.dispatch));
  RolloutBook book(options, std::move(ledger), std::move(dispatcher));
  if (!options.dispatch.rounds) book.send(RoundOpened{options.ledger.groups_per_step});
  return book;
}

// ---- rounds --------------------------------------------------------------------------------

void RolloutBook::open_round(bool waits) {
  const DispatchCounts counts = dispatcher_.counts();
  if (counts.waiting + counts.running + counts.scoring > 0) return;
  const std::int64_t due = ledger_.published_version().value + options_.ledger.lead_max + 1;
  if (rounds_ < due) {
    ++rounds_;
    return send(RoundOpened{options_.ledger.groups_per_step});
  }
  // The trainer waits for groups that were cut: they go on now.
  if (waits && counts.parked > 0)
    send(RoundOpened{std::max<std::int64_t>(ledger_.wanted() - ready(), 1)});
}

void RolloutBook::pace(bool waits, TimePoint now) {
  at(now);
  if (!options_.dispatch.rounds) return;
  // Rounds that surplus has filled already end at once.
  for (int i = 0; i < 64; ++i) {
    const DispatchCounts before = dispatcher_.counts();
    open_round(waits);
    if (before.parked == 0 || dispatcher_.counts().parked < before.parked) return;
  }
}

void RolloutBook::tick(TimePoint now) {
  at(now);
  send(DispatchTick{});
}

// ---- steps ---------------------------------------------------------------------------------

std::int64_t RolloutBook::ready() const {
  if (options_.order == TakeOrder::kReady) return ledger_.ready();
  std::int64_t count = 0;
  for (const auto& [number, group] : ledger_.open_groups()) {
    if (group.stage == GroupStage::kTaken) continue;
    if (group.stage != GroupStage::kFinished || count == ledger_.wanted()) break;
    ++count;
  }
  return count;
}

bool RolloutBook::dry() const { return ledger_.closed() && ledger_.running() == 0; }

RolloutBook::Taken RolloutBook::take(std::int64_t most, TimePoint now) {
  at(now);
  cancelled(ledger_.take(0).cancelled);  // sweeps, which may change what is ready
  Taken taken;
  taken.first = static_cast<std::int64_t>(taken_.size());
  StalenessLedger::Taken got = ledger_.take(std::min(most, ready()));
  cancelled(got.cancelled);
  for (const TakenGroup& one : got.groups) {
    const Group& group = groups_.at(one.ticket.group);
    BatchGroup rows{.row = group.row};
    for (const std::uint32_t index : group.winners) {
      const Sample& sample = group.samples[index];
      rows.samples.push_back(sample.best());
      if (one.mask_older_than) rows.samples.back().mask_older_than(*one.mask_older_than);
      rows.rewards.push_back(*sample.reward);
    }
    taken.rows.push_back(std::move(rows));
    taken_.push_back(one.ticket.group);
  }
  if (!got.groups.empty()) ++progress_;
  taken.groups = std::move(got.groups);
  return taken;
}

result<StepAccount> RolloutBook::end_step() {
  TROUPE_TRY(StepAccount account, ledger_.end_step());
  for (const std::uint64_t group : taken_) groups_.erase(group);
  taken_.clear();
  ++progress_;
  if (!options_.dispatch.rounds) send(RoundOpened{options_.ledger.groups_per_step});
  return account;
}

void RolloutBook::abandon_step() {
  ledger_.abandon_step();
  taken_.clear();
}

result<void> RolloutBook::published(WeightVersion version, TimePoint now) {
  at(now);
  TROUPE_TRY(const std::vector<CancelRecord> records, ledger_.published(version));
  ++progress_;
  cancelled(records);
  return {};
}

// ---- views ---------------------------------------------------------------------------------

std::int64_t RolloutBook::generating() const {
  const DispatchCounts counts = dispatcher_.counts();
  return counts.waiting + counts.running;
}

std::string RolloutBook::explain(TimePoint now) const {
  std::string text = fmt::format("{}; {}", ledger_.explain(), dispatcher_.explain(now));
  std::int64_t turns = 0;
  for (const auto& [number, attempt] : attempts_)
    turns += attempt.stage == Stage::kEnvironment ? 1 : 0;
  if (turns > 0) text += fmt::format("; {} samples wait for their environment", turns);
  if (last_error_) text += fmt::format("; last error: {}", last_error_->message);
  return text;
}

void RolloutBook::check_invariants() const {
  ledger_.check_invariants();
  dispatcher_.check_invariants();
  TROUPE_CHECK(groups_.size() == ledger_.open_groups().size(),
               "rollout: {} groups are kept, {} are open", groups_.size(),
               ledger_.open_groups().size());
  for (const auto& [number, group] : groups_) {
    TROUPE_CHECK(ledger_.open_groups().contains(number), "rollout: group {} is not open", number);
    for (const Sample& sample : group.samples) {
      TROUPE_CHECK(sample.partials.size() <= 4, "rollout: group {}: {} partials of a sample",
                   number, sample.partials.size());
      for (const auto& [attempt, one] : sample.partials) {
        const auto checked = one.check();
        TROUPE_CHECK(checked.has_value(), "rollout: {}", checked.error().message);
      }
    }
  }
  for (const auto& [number, attempt] : attempts_) {
    const auto place = replicas_.find(attempt.replica);
    TROUPE_CHECK(place != replicas_.end(), "rollout: attempt {} on replica {}, which is gone",
                 number, attempt.replica.value);
    TROUPE_CHECK((attempt.stage == Stage::kReplica) == place->second.running.contains(number),
                 "rollout: attempt {} and replica {} disagree", number, attempt.replica.value);
  }
}

}  // namespace troupe::actors

// Proves that the staleness ledger paces, sweeps and accounts as docs/asynchronous.md says: every
// rule alone by example, then random histories against a slow reference that recounts everything
// from a list of all groups ever issued, and the reduction to the synchronous order at lead 0.

#include "actors/pacing/staleness_ledger.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace troupe::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StalenessLedger made(const LedgerOptions& options) {
  auto ledger = StalenessLedger::create(options);
  EXPECT_TRUE(ledger.has_value()) << ledger.error().to_string();
  return std::move(*ledger);
}

VersionSpan span_of(std::int64_t oldest, std::int64_t newest) {
  return {.oldest = WeightVersion{oldest}, .newest = WeightVersion{newest}};
}

/// Issues all that is free; prompt ids equal group numbers.
std::vector<std::uint64_t> issue_all(StalenessLedger& ledger) {
  std::vector<std::uint64_t> groups;
  while (ledger.free_groups() > 0)
    groups.push_back(
        ledger.issue({.prompt_id = ledger.issued(), .epoch = 0, .position = 0}).value().group);
  return groups;
}

std::optional<CancelRecord> finish(StalenessLedger& ledger, std::uint64_t group,
                                   std::int64_t oldest, std::int64_t newest) {
  const VersionSpan span = span_of(oldest, newest);
  return ledger.finish(group, {&span, 1}).value();
}

std::vector<std::uint64_t> numbers(const StalenessLedger::Taken& taken) {
  std::vector<std::uint64_t> groups;
  for (const TakenGroup& one : taken.groups) groups.push_back(one.ticket.group);
  return groups;
}

/// Trains and publishes one full step.
StepAccount train(StalenessLedger& ledger) {
  (void)ledger.take(ledger.wanted());
  StepAccount account = ledger.end_step().value();
  (void)ledger.published(WeightVersion{ledger.steps_trained()}).value();
  return account;
}

TEST(StalenessLedger, IssuesUpToTheLeadAndNoFurther) {
  auto ledger = made({.groups_per_step = 4, .lead_max = 2});
  EXPECT_EQ(ledger.free_groups(), (2 + 0 + 1) * 4);
  EXPECT_EQ(issue_all(ledger).size(), 12U);
  const auto refused = ledger.issue({});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("pacing: 12 of 12 groups at published version 0"));
  for (std::uint64_t group = 0; group < 4; ++group) finish(ledger, group, 0, 0);
  train(ledger);
  EXPECT_EQ(ledger.free_groups(), 4);
}

TEST(StalenessLedger, IssuesNothingForTrainingThatWasNotPublished) {
  auto ledger = made({.groups_per_step = 2, .lead_max = 0});
  for (const std::uint64_t group : issue_all(ledger)) finish(ledger, group, 0, 0);
  ASSERT_EQ(ledger.take(2).groups.size(), 2U);
  ASSERT_TRUE(ledger.end_step().has_value());
  EXPECT_EQ(ledger.publish_lag(), 1);
  EXPECT_EQ(ledger.free_groups(), 0);
  EXPECT_THAT(ledger.explain(), HasSubstr("published version 0, trained 1"));
  ASSERT_TRUE(ledger.published(WeightVersion{1}).has_value());
  EXPECT_EQ(ledger.free_groups(), 2);
}

TEST(StalenessLedger, LeadZeroIsTheSynchronousOrderWhateverTheFinishOrder) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    const auto batch = static_cast<std::int64_t>(1 + rng.below(6));
    auto ledger = made({.groups_per_step = batch, .lead_max = 0});
    for (std::int64_t step = 0; step < 10; ++step) {
      const std::vector<std::uint64_t> issued = issue_all(ledger);
      std::vector<std::int64_t> order(issued.begin(), issued.end());
      rng.shuffle(order);
      for (const std::int64_t group : order) {
        EXPECT_LT(ledger.ready(), batch);
        finish(ledger, static_cast<std::uint64_t>(group), step, step);
      }
      const auto taken = ledger.take(ledger.wanted());
      std::vector<std::uint64_t> wanted;
      for (std::int64_t i = 0; i < batch; ++i)
        wanted.push_back(static_cast<std::uint64_t>(step * batch + i));
      ASSERT_EQ(numbers(taken), wanted) << "seed " << seed;
      for (const TakenGroup& one : taken.groups) ASSERT_EQ(one.age + one.lead_used, 0);
      ASSERT_TRUE(ledger.end_step().has_value());
      ASSERT_TRUE(ledger.published(WeightVersion{step + 1}).has_value());
      ledger.check_invariants();
    }
  }
}

TEST(StalenessLedger, WaitingKeepsAPlaceForTheGroupThatWouldBeTooOld) {
  auto ledger = made({.groups_per_step = 2, .lead_max = 1});
  ASSERT_EQ(issue_all(ledger).size(), 4U);
  // Group 0 is slow. Step 0 may go without it, step 1 may not.
  for (const std::uint64_t group : {1, 2, 3}) finish(ledger, group, 0, 0);
  EXPECT_THAT(numbers(ledger.take(2)), ElementsAre(1U, 2U));
  ASSERT_TRUE(ledger.end_step().has_value());
  ASSERT_TRUE(ledger.published(WeightVersion{1}).has_value());
  for (const std::uint64_t group : issue_all(ledger)) finish(ledger, group, 1, 1);
  EXPECT_THAT(numbers(ledger.take(2)), ElementsAre(3U)) << "and not 4: the place is for 0";
  EXPECT_EQ(ledger.ready(), 0);
  EXPECT_FALSE(ledger.end_step().has_value());
  finish(ledger, 0, 0, 1);
  EXPECT_THAT(numbers(ledger.take(2)), ElementsAre(0U));
  EXPECT_EQ(ledger.end_step().value().spans,
            (std::map<std::int64_t, std::int64_t>{{0, 1}, {1, 1}}));
}

TEST(StalenessLedger, WaitingLooksAheadSoThatLaterStepsCanHoldTheirGroups) {
  auto ledger = made({.groups_per_step = 1, .lead_max = 2});
  ASSERT_EQ(issue_all(ledger).size(), 3U);
  finish(ledger, 0, 0, 0);
  train(ledger);
  ASSERT_EQ(issue_all(ledger).size(), 1U);
  // 1 and 2 run; both are due by step 2, so steps 1 and 2 are theirs and 3 must wait.
  finish(ledger, 3, 1, 1);
  EXPECT_EQ(ledger.ready(), 0);
  finish(ledger, 2, 0, 1);
  EXPECT_THAT(numbers(ledger.take(1)), ElementsAre(2U));
}

TEST(StalenessLedger, DroppingSweepsWhatIsTooOldAndIssuesAnew) {
  auto ledger =
      made({.groups_per_step = 2, .lead_max = 4, .policy = StalePolicy::kDrop, .age_max = 1});
  ASSERT_EQ(issue_all(ledger).size(), 10U);
  for (std::uint64_t group = 0; group < 6; ++group) finish(ledger, group, 0, 0);
  ASSERT_TRUE(ledger.began(6, WeightVersion{0}).has_value());
  train(ledger);
  (void)ledger.take(2);
  ASSERT_TRUE(ledger.end_step().has_value());
  const auto swept = ledger.published(WeightVersion{2}).value();
  ASSERT_EQ(swept.size(), 3U) << "4, 5 in stock and 6, which began at version 0";
  EXPECT_EQ(swept[2].group, 6U);
  EXPECT_EQ(swept[2].reason, CancelReason::kStale);
  EXPECT_EQ(swept[2].cancelled_at, WeightVersion{2});
  EXPECT_EQ(ledger.cancelled(CancelReason::kStale), 3);
  EXPECT_EQ(ledger.free_groups(), (4 + 2 + 1) * 2 - 4 - 3);
  // A group that waited for a rank has new tokens, however long ago it was issued.
  EXPECT_EQ(finish(ledger, 7, 2, 2), std::nullopt);
  EXPECT_EQ(finish(ledger, 8, 0, 2)->reason, CancelReason::kStale);
  ledger.check_invariants();
}

TEST(StalenessLedger, TruncatingMasksOldTokensAndDropsWhatHasNoOthers) {
  auto ledger =
      made({.groups_per_step = 1, .lead_max = 3, .policy = StalePolicy::kTruncate, .age_max = 1});
  issue_all(ledger);
  finish(ledger, 0, 0, 0);
  train(ledger);
  finish(ledger, 1, 0, 1);
  train(ledger);
  finish(ledger, 2, 0, 2);
  const auto taken = ledger.take(1);
  ASSERT_EQ(taken.groups.size(), 1U);
  EXPECT_EQ(taken.groups[0].mask_older_than, WeightVersion{1});
  EXPECT_EQ(taken.groups[0].age, 2);
  ASSERT_TRUE(ledger.end_step().has_value());
  (void)ledger.published(WeightVersion{3});
  EXPECT_EQ(finish(ledger, 3, 0, 1)->reason, CancelReason::kStale);
}

TEST(StalenessLedger, SpansBeyondTheBoundAreDropped) {
  auto ledger = made({.groups_per_step = 1,
                      .lead_max = 5,
                      .policy = StalePolicy::kDrop,
                      .age_max = 5,
                      .span_max = 1});
  issue_all(ledger);
  finish(ledger, 0, 0, 0);
  train(ledger);
  finish(ledger, 1, 1, 1);
  train(ledger);
  // Two trajectories that crossed one version each, together two: fine.
  const std::vector<VersionSpan> two{span_of(0, 1), span_of(1, 2)};
  EXPECT_EQ(ledger.finish(2, two).value(), std::nullopt);
  EXPECT_EQ(finish(ledger, 3, 0, 2)->reason, CancelReason::kSpan);
}

TEST(StalenessLedger, EveryGroupLeavesOnce) {
  auto ledger = made({.groups_per_step = 2});
  issue_all(ledger);
  ASSERT_TRUE(ledger.cancel(0, CancelReason::kFailed).has_value());
  EXPECT_EQ(ledger.cancel(0, CancelReason::kFailed).error().code, ErrorCode::kNotFound);
  const VersionSpan span = span_of(0, 0);
  EXPECT_EQ(ledger.finish(0, {&span, 1}).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(ledger.finish(1, {&span, 1}).has_value());
  EXPECT_EQ(ledger.finish(1, {&span, 1}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ledger.free_groups(), 1) << "the place of the cancelled one";
}

TEST(StalenessLedger, RefusesVersionsThatCannotBe) {
  auto ledger = made({.groups_per_step = 1, .lead_max = 1});
  issue_all(ledger);
  EXPECT_EQ(ledger.published(WeightVersion{1}).error().code, ErrorCode::kConflict);
  const VersionSpan future = span_of(0, 1);
  EXPECT_EQ(ledger.finish(0, {&future, 1}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(ledger.finish(0, {}).error().code, ErrorCode::kConflict);
  finish(ledger, 0, 0, 0);
  train(ledger);
  EXPECT_EQ(ledger.published(WeightVersion{0}).error().code, ErrorCode::kConflict);
}

TEST(StalenessLedger, PrintsTheBoundThatReallyHolds) {
  EXPECT_EQ(
      made({.groups_per_step = 16, .lead_max = 4}).effective().to_string(),
      "used at most 4 steps after issue (by lead_max); age at use 4 versions; span 4 versions");
  const auto open = made({.groups_per_step = 16, .lead_max = 4, .open_max = 48}).effective();
  EXPECT_EQ(open.lead, 2);
  EXPECT_EQ(open.limited_by, "open_max");
  const auto extra = made({.groups_per_step = 16, .lead_max = 0, .groups_extra = 4}).effective();
  EXPECT_EQ(extra.lead, 1);
  EXPECT_EQ(extra.limited_by, "lead_max and groups_extra");
}

TEST(StalenessLedger, RefusesOptionsThatWouldDeadlock) {
  const auto message = [](const LedgerOptions& options) {
    return StalenessLedger::create(options).error().message;
  };
  EXPECT_THAT(message({.groups_per_step = 8, .open_max = 4}),
              HasSubstr("no step would ever be full"));
  EXPECT_THAT(message({.groups_per_step = 8, .lead_max = 3, .age_max = 2}),
              HasSubstr("age_max is 2"));
  EXPECT_THAT(message({.groups_per_step = 8, .lead_max = 3, .span_max = 2}),
              HasSubstr("span_max is 2"));
  EXPECT_THAT(message({.groups_per_step = 0}), HasSubstr("groups_per_step is 0"));
}

TEST(StalenessLedger, IssuesNothingForStepsThatWillNotCome) {
  auto ledger = made({.groups_per_step = 2, .lead_max = 3, .groups_extra = 1, .steps_max = 2});
  EXPECT_EQ(issue_all(ledger).size(), 5U) << "two steps and one to spare";
  for (std::uint64_t group = 0; group < 4; ++group) finish(ledger, group, 0, 0);
  train(ledger);
  train(ledger);
  EXPECT_EQ(ledger.free_groups(), 0);
  const auto records = ledger.close(false);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].reason, CancelReason::kEndOfRun);
  EXPECT_TRUE(ledger.drained());
}

TEST(StalenessLedger, TheLastStepAfterTheEndOfDataMayBeShort) {
  auto ledger = made({.groups_per_step = 4, .lead_max = 1});
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ledger.issue({}).has_value());
  EXPECT_THAT(ledger.close(false), IsEmpty());
  EXPECT_EQ(ledger.free_groups(), 0);
  finish(ledger, 0, 0, 0);
  (void)ledger.take(4);
  EXPECT_FALSE(ledger.end_step().has_value()) << "group 1 still runs";
  finish(ledger, 1, 0, 0);
  (void)ledger.take(4);
  EXPECT_EQ(ledger.end_step().value().groups, 2);
  EXPECT_TRUE(ledger.drained());
}

TEST(StalenessLedger, SaysWhenNothingUsableComes) {
  auto ledger = made({.groups_per_step = 2, .barren_groups_max = 5});
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(ledger.barren().has_value());
    const auto ticket = ledger.issue({}).value();
    ASSERT_TRUE(
        ledger.cancel(ticket.group, i < 3 ? CancelReason::kFailed : CancelReason::kZeroVariance)
            .has_value());
  }
  ASSERT_TRUE(ledger.barren().has_value());
  EXPECT_THAT(ledger.barren()->message, HasSubstr("2 zero_variance, 3 failed"));
}

TEST(StalenessLedger, AStepThatFailsGivesItsGroupsBack) {
  auto ledger = made({.groups_per_step = 2});
  for (const std::uint64_t group : issue_all(ledger)) finish(ledger, group, 0, 0);
  const auto first = numbers(ledger.take(2));
  ledger.abandon_step();
  ledger.check_invariants();
  EXPECT_EQ(numbers(ledger.take(2)), first);
}

// ---- random histories against a slow reference -----------------------------------------------

/// Everything ever issued, recounted from scratch at each question.
struct Reference {
  enum class Fate { kRunning, kFinished, kTaken, kConsumed, kCancelled };
  struct One {
    Fate fate = Fate::kRunning;
    std::int64_t issued_at = 0;
    std::int64_t oldest = -1;
    std::int64_t newest = -1;
  };
  LedgerOptions options;
  std::vector<One> all;
  std::int64_t trained = 0;
  std::int64_t published = 0;

  std::int64_t count(Fate fate) const {
    return std::ranges::count_if(all, [fate](const One& one) { return one.fate == fate; });
  }
  std::int64_t free() const {
    const std::int64_t accepted =
        count(Fate::kFinished) + count(Fate::kTaken) + count(Fate::kConsumed);
    const std::int64_t running = count(Fate::kRunning);
    std::int64_t free = (options.lead_max + published + 1) * options.groups_per_step +
                        options.groups_extra - (accepted + running);
    if (options.running_max > 0) free = std::min(free, options.running_max - running);
    if (options.open_max > 0)
      free =
          std::min(free, options.open_max - running - count(Fate::kFinished) - count(Fate::kTaken));
    return std::max<std::int64_t>(free, 0);
  }
  std::int64_t age_bound() const {
    return options.age_max.value_or(options.lead_max +
                                    (options.groups_extra + options.groups_per_step - 1) /
                                        options.groups_per_step);
  }
  bool stale(const One& one) const {
    if (one.oldest < 0 || options.policy == StalePolicy::kWait) return false;
    if (options.policy == StalePolicy::kDrop) return published - one.oldest > age_bound();
    return one.fate == Fate::kFinished && published - one.newest > age_bound();
  }
};

LedgerOptions random_options(Rng& rng) {
  LedgerOptions options{.groups_per_step = static_cast<std::int64_t>(1 + rng.below(5)),
                        .lead_max = static_cast<std::int64_t>(rng.below(5)),
                        .policy = static_cast<StalePolicy>(rng.below(3))};
  if (options.policy != StalePolicy::kWait && rng.below(2) == 0)
    options.age_max = static_cast<std::int64_t>(rng.below(4));
  if (rng.below(3) == 0) options.groups_extra = static_cast<std::int64_t>(rng.below(4));
  if (rng.below(3) == 0) options.running_max = static_cast<std::int64_t>(1 + rng.below(8));
  if (rng.below(3) == 0)
    options.open_max = options.groups_per_step + static_cast<std::int64_t>(rng.below(8));
  return options;
}

/// One random history; both sides see the same events.
class History {
 public:
  explicit History(std::uint64_t seed)
      : rng_(seed), options_(random_options(rng_)), ledger_(made(options_)) {
    reference_.options = options_;
  }

  void run(int events) {
    for (int i = 0; i < events; ++i) {
      event();
      compare();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  std::int64_t steps() const { return reference_.trained; }

 private:
  using Fate = Reference::Fate;

  std::optional<std::uint64_t> pick(std::initializer_list<Fate> fates) {
    std::vector<std::uint64_t> found;
    for (std::size_t i = 0; i < reference_.all.size(); ++i)
      if (std::ranges::find(fates, reference_.all[i].fate) != fates.end()) found.push_back(i);
    if (found.empty()) return std::nullopt;
    return found[rng_.below(found.size())];
  }
  void apply(const std::vector<CancelRecord>& records) {
    for (const CancelRecord& record : records) {
      Reference::One& one = reference_.all[record.group];
      ASSERT_TRUE(one.fate == Fate::kRunning || one.fate == Fate::kFinished) << record.group;
      ASSERT_TRUE(reference_.stale(one)) << record.group;
      one.fate = Fate::kCancelled;
    }
  }
  void expect_swept() {
    for (const Reference::One& one : reference_.all)
      if (one.fate == Fate::kFinished || one.fate == Fate::kRunning) {
        ASSERT_FALSE(reference_.stale(one));
      }
  }

  void event() {
    switch (rng_.below(9)) {
      case 0:
      case 1:
      case 2:
        return issue();
      case 3:
      case 4:
        return finish_one();
      case 5:
        return take();
      case 6:
        return end();
      case 7:
        if (reference_.published < reference_.trained) {
          ++reference_.published;
          apply(ledger_.published(WeightVersion{reference_.published}).value());
          expect_swept();
        }
        return;
      default:
        return rare();
    }
  }
  void issue() {
    const auto ticket =
        ledger_.issue({.prompt_id = reference_.all.size(), .epoch = 1, .position = 2});
    ASSERT_EQ(ticket.has_value(), reference_.free() > 0);
    if (!ticket) return;
    ASSERT_EQ(ticket->group, reference_.all.size());
    ASSERT_EQ(ticket->issued_at.value, reference_.published);
    reference_.all.push_back({.issued_at = reference_.published});
  }
  void finish_one() {
    const auto group = pick({Fate::kRunning});
    if (!group) return;
    Reference::One& one = reference_.all[*group];
    const std::int64_t low = one.oldest >= 0 ? one.oldest : one.issued_at;
    one.oldest = one.oldest >= 0
                     ? low
                     : low + static_cast<std::int64_t>(rng_.below(
                                 static_cast<std::uint64_t>(reference_.published - low + 1)));
    one.newest = one.oldest + static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(
                                  reference_.published - one.oldest + 1)));
    one.fate = Fate::kFinished;
    const auto record = finish(ledger_, *group, one.oldest, one.newest);
    ASSERT_EQ(record.has_value(), reference_.stale(one));
    if (record) one.fate = Fate::kCancelled;
  }
  void take() {
    const auto most = static_cast<std::int64_t>(rng_.below(4));
    const std::int64_t ready = ledger_.ready();
    const auto taken = ledger_.take(most);
    apply(taken.cancelled);
    ASSERT_EQ(static_cast<std::int64_t>(taken.groups.size()), std::min(most, ready));
    for (const TakenGroup& group : taken.groups) {
      Reference::One& one = reference_.all[group.ticket.group];
      ASSERT_EQ(one.fate, Fate::kFinished);
      one.fate = Fate::kTaken;
      ASSERT_EQ(group.age, reference_.published - one.oldest);
      if (options_.policy == StalePolicy::kWait) {
        ASSERT_LE(reference_.trained - one.issued_at, *ledger_.effective().age);
      }
      if (options_.policy == StalePolicy::kDrop) {
        ASSERT_LE(group.age, reference_.age_bound());
      }
      if (group.mask_older_than) {
        ASSERT_EQ(group.mask_older_than->value, reference_.published - reference_.age_bound());
      }
    }
  }
  void end() {
    const std::int64_t taken = reference_.count(Fate::kTaken);
    const auto account = ledger_.end_step();
    ASSERT_EQ(account.has_value(), taken == options_.groups_per_step);
    if (!account) return;
    ASSERT_EQ(account->groups, taken);
    ++reference_.trained;
    for (Reference::One& one : reference_.all)
      if (one.fate == Fate::kTaken) one.fate = Fate::kConsumed;
  }
  void rare() {
    switch (rng_.below(6)) {
      case 0:
        if (const auto group = pick({Fate::kRunning, Fate::kFinished, Fate::kTaken})) {
          ASSERT_TRUE(ledger_.cancel(*group, CancelReason::kFailed).has_value());
          reference_.all[*group].fate = Fate::kCancelled;
        }
        return;
      case 1:
        ledger_.abandon_step();
        return give_back();
      case 2: {
        // A crash: what the step under way took is back, and nothing else changed.
        const auto bytes = ledger_.save().to_bytes().value();
        const auto state = LedgerState::from_bytes(bytes);
        ASSERT_TRUE(state.has_value()) << state.error().to_string();
        auto restored = StalenessLedger::restore(options_, *state);
        ASSERT_TRUE(restored.has_value()) << restored.error().to_string();
        ledger_ = std::move(*restored);
        return give_back();
      }
      case 3:
        if (const auto group = pick({Fate::kRunning})) {
          Reference::One& one = reference_.all[*group];
          if (one.oldest < 0) one.oldest = reference_.published;
          ASSERT_TRUE(ledger_.began(*group, WeightVersion{one.oldest}).has_value());
        }
        return;
      default:
        return;
    }
  }
  void give_back() {
    for (Reference::One& one : reference_.all)
      if (one.fate == Fate::kTaken) one.fate = Fate::kFinished;
  }
  void compare() {
    ledger_.check_invariants();
    ASSERT_EQ(ledger_.free_groups(), reference_.free());
    ASSERT_EQ(ledger_.running(), reference_.count(Fate::kRunning));
    ASSERT_EQ(ledger_.finished(), reference_.count(Fate::kFinished));
    ASSERT_EQ(ledger_.consumed(), reference_.count(Fate::kConsumed));
    ASSERT_EQ(ledger_.cancelled_total(), reference_.count(Fate::kCancelled));
  }

  Rng rng_;
  LedgerOptions options_;
  StalenessLedger ledger_;
  Reference reference_;
};

TEST(StalenessLedger, AgreesWithASlowReferenceOverRandomHistories) {
  std::int64_t steps = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    History history(seed);
    history.run(400);
    if (HasFatalFailure()) return;
    steps += history.steps();
  }
  EXPECT_GT(steps, 2000) << "histories that train nothing show nothing";
}

/// Whatever the options, a driver that does its duty trains all steps: nothing waits for ever.
TEST(StalenessLedger, NeverDeadlocksWhenGroupsFinishInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    LedgerOptions options = random_options(rng);
    options.steps_max = 12;
    auto ledger = made(options);
    std::vector<std::uint64_t> running;
    int idle = 0;
    while (ledger.steps_trained() < options.steps_max) {
      ASSERT_LT(++idle, 1000) << ledger.explain();
      // Publications may lag, but come when there is nothing else to do.
      if (running.empty() && ledger.free_groups() == 0)
        (void)ledger.published(WeightVersion{ledger.steps_trained()}).value();
      for (const std::uint64_t group : issue_all(ledger)) running.push_back(group);
      if (!running.empty()) {
        const std::size_t at = rng.below(running.size());
        const std::uint64_t group = running[at];
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
        const std::int64_t now = ledger.published_version().value;
        if (ledger.open_groups().contains(group)) finish(ledger, group, now, now);
      }
      (void)ledger.take(static_cast<std::int64_t>(rng.below(3)));
      if (!ledger.end_step()) continue;
      idle = 0;
      ledger.check_invariants();
      if (rng.below(3) != 0) (void)ledger.published(WeightVersion{ledger.steps_trained()}).value();
      ledger.check_invariants();
    }
    (void)ledger.close(false);
    ledger.check_invariants();
    EXPECT_TRUE(ledger.drained());
  }
}

TEST(StalenessLedger, ResumesWithTheBoundItHad) {
  const LedgerOptions options{.groups_per_step = 4, .lead_max = 2};
  auto ledger = made(options);
  issue_all(ledger);
  for (std::uint64_t group = 0; group < 6; ++group) finish(ledger, group, 0, 0);
  train(ledger);
  const LedgerState state = ledger.save();
  auto resumed = StalenessLedger::restore(options, state).value();
  EXPECT_EQ(resumed.free_groups(), 4) << "counters that began at 0 would allow 16";
  EXPECT_EQ(resumed.steps_trained(), 1);
  EXPECT_EQ(resumed.save(), state);
  // Less lead than before cannot be honoured with what is open.
  const auto refused = StalenessLedger::restore({.groups_per_step = 4, .lead_max = 0}, state);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("at least the lead of the saved run"));
}

TEST(StalenessLedger, RefusesStateThatContradictsItself) {
  auto ledger = made({.groups_per_step = 2, .lead_max = 1});
  issue_all(ledger);
  finish(ledger, 0, 0, 0);
  const LedgerState good = ledger.save();
  const auto code = [](const LedgerState& state) {
    return LedgerState::from_bytes(state.to_bytes().value()).error().code;
  };
  ASSERT_TRUE(LedgerState::from_bytes(good.to_bytes().value()).has_value());
  LedgerState bad = good;
  bad.next_group = 9;
  EXPECT_EQ(code(bad), ErrorCode::kCorrupt);
  bad = good;
  bad.published = 3;
  EXPECT_EQ(code(bad), ErrorCode::kCorrupt);
  bad = good;
  bad.open[1].ticket.group = 0;
  EXPECT_EQ(code(bad), ErrorCode::kCorrupt);
  bad = good;
  bad.open[0].span.newest = WeightVersion{7};
  EXPECT_EQ(code(bad), ErrorCode::kCorrupt);
  EXPECT_FALSE(LedgerState::from_bytes({}).has_value());
}

}  // namespace
}  // namespace troupe::actors

// Proves that the dispatcher loses and doubles nothing: random option mixes in a world of random
// finish orders, rank deaths, silence, failures and cancellations (dispatcher_world.hpp checks each
// effect), then a drain in which every group must end. Each straggler tool by example.

#include "actors/pacing/rollout_dispatcher.hpp"

#include "tests/actors/pacing/dispatcher_world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::actors {
namespace {

using std::chrono::seconds;
using testing::DispatcherWorld;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::WorldOptions;

DispatchOptions random_options(Rng& rng) {
  DispatchOptions options{.group_size = static_cast<std::int32_t>(1 + rng.below(4))};
  options.rounds = rng.below(2) == 0;
  options.cut = static_cast<CutAction>(rng.below(3));
  if (options.rounds && options.cut != CutAction::kDrop && rng.below(2) == 0)
    options.tail_round_groups = static_cast<std::int64_t>(1 + rng.below(4));
  options.samples_extra = static_cast<std::int32_t>(rng.below(3));
  if (rng.below(2) == 0) options.hedge_after = seconds(3);
  if (rng.below(2) == 0) options.sample_deadline = seconds(8);
  options.on_deadline = static_cast<DeadlineAction>(rng.below(3));
  if (rng.below(2) == 0) options.stall_after = seconds(6);
  if (rng.below(2) == 0) options.score_deadline = seconds(9);
  options.longest_first = rng.below(2) == 0;
  options.overtakes_max = static_cast<std::int64_t>(rng.below(20));
  options.new_tokens_max = 60;
  options.repack_below = static_cast<std::int64_t>(rng.below(6));
  options.drop_zero_variance = options.group_size > 1 && rng.below(2) == 0;
  options.on_refills = static_cast<RefillAction>(rng.below(2));
  options.refills_max = static_cast<std::int64_t>(rng.below(5));
  return options;
}

TEST(RolloutDispatcher, LosesAndDoublesNothingWhateverHappens) {
  std::int64_t complete = 0;
  std::int64_t dropped = 0;
  std::int64_t wasted = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    DispatcherWorld world(seed * 7, {.dispatch = random_options(rng)});
    world.chaos(600);
    world.drain();
    if (HasFatalFailure()) return;
    ASSERT_EQ(world.complete().size() + world.dropped().size(), world.issued());
    const TokenAccount& tokens = world.dispatcher().tokens();
    ASSERT_EQ(tokens.under_way(), 0) << tokens.generated;
    ASSERT_EQ(world.dispatcher().counts().attempts, 0);
    complete += static_cast<std::int64_t>(world.complete().size());
    dropped += static_cast<std::int64_t>(world.dropped().size());
    wasted += tokens.wasted_total();
  }
  EXPECT_GT(complete, 4000);
  EXPECT_GT(dropped, 500);
  EXPECT_GT(wasted, 0);
}

TEST(RolloutDispatcher, WithoutFaultsEveryGroupIsCompleteAndNoTokenIsWasted) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    DispatchOptions options{
        .group_size = 3, .longest_first = rng.below(2) == 0, .new_tokens_max = 60};
    options.rounds = rng.below(2) == 0;
    options.tail_round_groups = options.rounds ? static_cast<std::int64_t>(rng.below(3)) : 0;
    DispatcherWorld world(seed, {.dispatch = options, .faults = false});
    world.chaos(400);
    world.drain();
    if (HasFatalFailure()) return;
    ASSERT_EQ(world.complete().size(), world.issued());
    ASSERT_EQ(world.dispatcher().tokens().wasted_total(), 0);
    ASSERT_DOUBLE_EQ(world.dispatcher().length_bias().ratio(), 1.0);
  }
}

TEST(RolloutDispatcher, EqualHistoriesGiveEqualEffects) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    const DispatchOptions options = random_options(rng);
    DispatcherWorld a(seed, {.dispatch = options});
    DispatcherWorld b(seed, {.dispatch = options});
    a.chaos(300);
    b.chaos(300);
    ASSERT_EQ(a.starts(), b.starts()) << "seed " << seed;
    ASSERT_EQ(a.stops(), b.stops()) << "seed " << seed;
  }
}

// ---- by example: one dispatcher, events by hand ----------------------------------------------

class Hand {
 public:
  explicit Hand(DispatchOptions options) : dispatcher_(made(options)) {}

  DispatchEffects send(const DispatchEvent& event) {
    DispatchEffects effects = dispatcher_.step(event, now);
    dispatcher_.check_invariants();
    return effects;
  }
  void rank(std::int32_t rank, std::int64_t samples = 8, std::int64_t tokens = 10'000) {
    send(RankJoined{RankId{rank}, samples, tokens});
    send(RankPulls{RankId{rank}, samples, tokens});
  }
  template <class Effect>
  static std::vector<Effect> only(const DispatchEffects& effects) {
    std::vector<Effect> found;
    for (const DispatchEffect& effect : effects)
      if (const auto* one = std::get_if<Effect>(&effect)) found.push_back(*one);
    return found;
  }
  DispatchEffects finish(std::uint64_t attempt, std::int64_t tokens) {
    return send(AttemptEnded{attempt, AttemptOutcome::kFinished, tokens});
  }
  DispatchEffects interrupt(std::uint64_t attempt, std::int64_t tokens) {
    return send(AttemptEnded{attempt, AttemptOutcome::kInterrupted, tokens});
  }
  RolloutDispatcher& dispatcher() { return dispatcher_; }
  TimePoint now{};

 private:
  static RolloutDispatcher made(DispatchOptions& options) {
    // What is not known counts as longest: small, so that many fit.
    options.new_tokens_max = std::min<std::int64_t>(options.new_tokens_max, 100);
    return RolloutDispatcher::create(options).value();
  }
  RolloutDispatcher dispatcher_;
};

std::vector<SampleId> started(const DispatchEffects& effects) {
  std::vector<SampleId> samples;
  for (const StartSample& one : Hand::only<StartSample>(effects)) samples.push_back(one.sample);
  return samples;
}

TEST(RolloutDispatcher, ACrashGoesOnFromTheSavedPrefixAndCountsLateAnswersForNothing) {
  Hand hand({.group_size = 1});
  hand.rank(0);
  const auto first =
      Hand::only<StartSample>(hand.send(GroupIssued{.group = 0, .prompt_tokens = 5}));
  ASSERT_EQ(first.size(), 1U);
  hand.send(AttemptProgress{1, 7});
  EXPECT_THAT(hand.send(RankLost{RankId{0}}), IsEmpty());
  EXPECT_THAT(hand.dispatcher().explain(hand.now), HasSubstr("sample 0 waits for room"));
  EXPECT_THAT(hand.finish(1, 9), IsEmpty()) << "the dead rank speaks";
  hand.send(RankJoined{RankId{1}, 1, 100});
  const auto again = Hand::only<StartSample>(hand.send(RankPulls{RankId{1}, 1, 100}));
  EXPECT_THAT(again, ElementsAre(StartSample{RankId{1}, {0, 0}, 2, 1, 7}));
  EXPECT_EQ(hand.dispatcher().tokens().recomputed, 5 + 7);
  const auto score = Hand::only<ScoreSample>(hand.finish(2, 9));
  EXPECT_THAT(score, ElementsAre(ScoreSample{{0, 0}, 2, 9, false}));
  const auto done = Hand::only<GroupComplete>(hand.send(SampleScored{{0, 0}, 1}));
  ASSERT_EQ(done.size(), 1U);
  EXPECT_THAT(hand.send(SampleScored{{0, 0}, 1}), IsEmpty()) << "the reward comes again";
  EXPECT_EQ(hand.dispatcher().tokens().used, 9);
}

TEST(RolloutDispatcher, TheRoundIsCutWhenEnoughGroupsHaveTheirRewards) {
  Hand hand({.group_size = 1, .rounds = true});
  hand.rank(0);
  for (std::uint64_t group = 0; group < 3; ++group)
    EXPECT_THAT(hand.send(GroupIssued{.group = group, .prompt_tokens = 5}), IsEmpty())
        << "no round yet";
  EXPECT_EQ(started(hand.send(RoundOpened{1})).size(), 3U);
  hand.finish(2, 4);
  EXPECT_EQ(hand.dispatcher().counts().running, 2) << "generated, but its reward is not there";
  const auto cut = hand.send(SampleScored{{1, 0}, 1});
  EXPECT_THAT(Hand::only<RoundEnded>(cut), ElementsAre(RoundEnded{1, 2}));
  EXPECT_EQ(Hand::only<StopAttempt>(cut).size(), 2U);
  // One gives its partial back, the other had just finished: surplus, kept for the next round.
  hand.interrupt(1, 3);
  hand.finish(3, 6);
  const auto surplus = Hand::only<GroupComplete>(hand.send(SampleScored{{2, 0}, 1}));
  ASSERT_EQ(surplus.size(), 1U);
  EXPECT_TRUE(surplus[0].surplus);
  const auto next = hand.send(RoundOpened{2});
  EXPECT_THAT(Hand::only<RoundBegan>(next), ElementsAre(RoundBegan{false, 1}));
  EXPECT_THAT(Hand::only<StartSample>(next), ElementsAre(StartSample{RankId{0}, {0, 0}, 4, 1, 3}));
}

TEST(RolloutDispatcher, CutGroupsAreDroppedOrRestartedIfPartialsAreNotKept) {
  for (const CutAction action : {CutAction::kDrop, CutAction::kRestart}) {
    Hand hand({.group_size = 1, .rounds = true, .cut = action});
    hand.rank(0);
    hand.send(RoundOpened{1});
    for (std::uint64_t group = 0; group < 2; ++group)
      hand.send(GroupIssued{.group = group, .prompt_tokens = 5});
    hand.send(AttemptProgress{1, 3});
    hand.finish(2, 4);
    const auto cut = hand.send(SampleScored{{1, 0}, 1});
    const auto dropped = Hand::only<GroupDropped>(cut);
    hand.interrupt(1, 4);
    const TokenAccount& tokens = hand.dispatcher().tokens();
    if (action == CutAction::kDrop) {
      EXPECT_THAT(dropped, ElementsAre(GroupDropped{0, CancelReason::kCut}));
      EXPECT_EQ(tokens.wasted[static_cast<std::size_t>(WasteReason::kDropped)], 4);
      EXPECT_DOUBLE_EQ(hand.dispatcher().length_bias().ratio(), 4.0 / 3.5);
    } else {
      EXPECT_THAT(dropped, IsEmpty());
      EXPECT_EQ(tokens.wasted[static_cast<std::size_t>(WasteReason::kRestart)], 4);
      EXPECT_THAT(Hand::only<StartSample>(hand.send(RoundOpened{1})),
                  ElementsAre(StartSample{RankId{0}, {0, 0}, 3, 0, 0}));
    }
  }
}

TEST(RolloutDispatcher, TailGroupsHaveARoundOfTheirOwnThatIsNotCut) {
  Hand hand({.group_size = 1, .rounds = true, .tail_round_groups = 2});
  hand.rank(0, 16);
  std::uint64_t group = 0;
  std::uint64_t attempt = 0;
  for (int round = 0; round < 2; ++round) {
    hand.send(GroupIssued{.group = group++, .prompt_tokens = 5});
    hand.send(GroupIssued{.group = group++, .prompt_tokens = 5});
    const auto began = hand.send(RoundOpened{1});
    ASSERT_THAT(Hand::only<RoundBegan>(began), ElementsAre(RoundBegan{false, 1}));
    ASSERT_EQ(started(began).size(), 2U) << "the tail waits";
    const std::uint64_t slow = ++attempt;
    hand.finish(++attempt, 4);
    hand.send(SampleScored{{group - 1, 0}, 1});
    hand.interrupt(slow, 9);
    ASSERT_EQ(hand.dispatcher().counts().tail_groups, round + 1);
  }
  hand.send(GroupIssued{.group = group, .prompt_tokens = 5});
  const auto tail = hand.send(RoundOpened{2});
  EXPECT_THAT(Hand::only<RoundBegan>(tail), ElementsAre(RoundBegan{true, 2}));
  EXPECT_THAT(started(tail), ElementsAre(SampleId{0, 0}, SampleId{2, 0}))
      << "and not the new group";
  hand.finish(5, 20);
  EXPECT_THAT(Hand::only<RoundEnded>(hand.send(SampleScored{{0, 0}, 1})), IsEmpty());
  hand.finish(6, 20);
  EXPECT_THAT(Hand::only<RoundEnded>(hand.send(SampleScored{{2, 0}, 1})),
              ElementsAre(RoundEnded{2, 0}));
}

TEST(RolloutDispatcher, FirstSamplesOfAGroupWinAndTheOthersAreStoppedOnce) {
  Hand hand({.group_size = 2, .samples_extra = 1});
  hand.rank(0);
  EXPECT_EQ(started(hand.send(GroupIssued{.group = 0, .prompt_tokens = 5})).size(), 3U);
  hand.send(AttemptProgress{1, 30});
  hand.finish(3, 4);
  hand.send(SampleScored{{0, 2}, 1});
  hand.finish(2, 4);
  const auto done = hand.send(SampleScored{{0, 1}, 0});
  EXPECT_THAT(Hand::only<GroupComplete>(done), ElementsAre(GroupComplete{0, {1, 2}, false}));
  EXPECT_THAT(Hand::only<StopAttempt>(done),
              ElementsAre(StopAttempt{RankId{0}, {0, 0}, 1, StopCause::kDropped}));
  hand.finish(1, 35);
  EXPECT_EQ(hand.dispatcher().tokens().wasted[static_cast<std::size_t>(WasteReason::kRedundant)],
            35);
  EXPECT_NEAR(hand.dispatcher().length_bias().ratio(), 4.0 / (38.0 / 3.0), 1e-12)
      << "the long one lost, with 30 tokens when it was given up";
}

TEST(RolloutDispatcher, AnIdleRankRunsTheSlowSampleTooAndTheFirstWins) {
  Hand hand({.group_size = 1, .hedge_after = seconds(5)});
  hand.rank(0);
  hand.send(GroupIssued{.group = 0, .prompt_tokens = 5});
  hand.send(AttemptProgress{1, 6});
  hand.rank(1);
  EXPECT_EQ(hand.dispatcher().next_wake(), hand.now + seconds(5));
  hand.now += seconds(5);
  const auto hedged = hand.send(DispatchTick{});
  EXPECT_THAT(Hand::only<StartSample>(hedged),
              ElementsAre(StartSample{RankId{1}, {0, 0}, 2, 1, 6}));
  hand.now += seconds(9);
  EXPECT_THAT(started(hand.send(DispatchTick{})), IsEmpty()) << "two are enough";
  hand.send(AttemptProgress{1, 8});
  const auto won = hand.finish(2, 10);
  EXPECT_THAT(Hand::only<StopAttempt>(won),
              ElementsAre(StopAttempt{RankId{0}, {0, 0}, 1, StopCause::kHedge}));
  EXPECT_THAT(Hand::only<ScoreSample>(won), ElementsAre(ScoreSample{{0, 0}, 2, 10, false}));
  EXPECT_THAT(hand.finish(1, 10), IsEmpty());
  EXPECT_EQ(hand.dispatcher().tokens().wasted[static_cast<std::size_t>(WasteReason::kHedge)], 4);
}

TEST(RolloutDispatcher, ASampleThatNeverEndsIsCutShortRetriedOrDropped) {
  for (const DeadlineAction action :
       {DeadlineAction::kTruncate, DeadlineAction::kRetry, DeadlineAction::kDrop}) {
    SCOPED_TRACE(static_cast<int>(action));
    const DispatchOptions dispatch{
        .group_size = 2, .sample_deadline = seconds(20), .on_deadline = action, .retries_max = 1};
    DispatcherWorld world(3, {.dispatch = dispatch, .faults = false, .endless = SampleId{0, 1}});
    world.issue();
    world.issue();
    world.drain();
    if (HasFatalFailure()) return;
    EXPECT_EQ(world.complete().size(), action == DeadlineAction::kTruncate ? 2U : 1U);
    if (action != DeadlineAction::kTruncate) {
      EXPECT_EQ(world.dropped().at(0), CancelReason::kDeadline);
    }
  }
}

TEST(RolloutDispatcher, ASilentAttemptGoesElsewhereAndARankThatNeverAnswersIsNotWaitedFor) {
  Hand hand({.group_size = 1, .stall_after = seconds(4), .stop_within = seconds(2)});
  hand.rank(0);
  hand.send(GroupIssued{.group = 0, .prompt_tokens = 5});
  hand.send(AttemptProgress{1, 6});
  hand.rank(1);
  hand.now += seconds(4);
  EXPECT_THAT(Hand::only<StopAttempt>(hand.send(DispatchTick{})),
              ElementsAre(StopAttempt{RankId{0}, {0, 0}, 1, StopCause::kStall}));
  EXPECT_EQ(hand.dispatcher().next_wake(), hand.now + seconds(2));
  hand.now += seconds(2);
  EXPECT_THAT(Hand::only<StartSample>(hand.send(DispatchTick{})),
              ElementsAre(StartSample{RankId{1}, {0, 0}, 2, 1, 6}));
}

TEST(RolloutDispatcher, RewardsThatDoNotComeAreAskedForAgainAndThenGivenUp) {
  Hand hand({.group_size = 1, .score_deadline = seconds(3), .retries_max = 1});
  hand.rank(0);
  hand.send(GroupIssued{.group = 0, .prompt_tokens = 5});
  hand.finish(1, 4);
  hand.now += seconds(3);
  EXPECT_EQ(Hand::only<ScoreSample>(hand.send(DispatchTick{})).size(), 1U);
  hand.now += seconds(3);
  EXPECT_THAT(Hand::only<GroupDropped>(hand.send(DispatchTick{})),
              ElementsAre(GroupDropped{0, CancelReason::kDeadline}));
}

TEST(RolloutDispatcher, GroupsWithoutVarianceAreReplacedUpToABound) {
  for (const RefillAction action : {RefillAction::kKeep, RefillAction::kFail}) {
    const DispatchOptions dispatch{
        .group_size = 2, .drop_zero_variance = true, .refills_max = 3, .on_refills = action};
    DispatcherWorld world(5, {.dispatch = dispatch, .faults = false, .scores_vary = false});
    for (int i = 0; i < 5; ++i) world.issue();
    world.drain();
    if (HasFatalFailure()) return;
    const bool keeps = action == RefillAction::kKeep;
    EXPECT_EQ(world.dropped().size(), keeps ? 3U : 5U);
    EXPECT_EQ(world.complete().size(), keeps ? 2U : 0U);
    EXPECT_EQ(world.starved, keeps ? 0 : 1);
  }
}

TEST(RolloutDispatcher, ProbesEachGroupThenStartsTheLongestFirst) {
  Hand hand({.group_size = 2, .longest_first = true, .new_tokens_max = 100});
  hand.send(GroupIssued{.group = 0, .prompt_tokens = 5, .length_hint = 10});
  hand.send(GroupIssued{.group = 1, .prompt_tokens = 5});
  hand.send(GroupIssued{.group = 2, .prompt_tokens = 5, .length_hint = 80});
  hand.send(RankJoined{RankId{0}, 8, 10'000});
  const auto first = started(hand.send(RankPulls{RankId{0}, 3, 10'000}));
  EXPECT_THAT(first, ElementsAre(SampleId{1, 0}, SampleId{1, 1}, SampleId{2, 0}))
      << "the probe; of its group nothing is known, so it counts as longest; then by hint";
  const auto rest = started(hand.send(RankPulls{RankId{0}, 5, 10'000}));
  EXPECT_THAT(rest, ElementsAre(SampleId{2, 1}, SampleId{0, 0}, SampleId{0, 1}));
}

TEST(RolloutDispatcher, NoSampleIsPassedMoreOftenThanAllowed) {
  Hand hand({.group_size = 1, .longest_first = true, .overtakes_max = 3});
  hand.send(RankJoined{RankId{0}, 100, 1'000'000});
  hand.send(GroupIssued{.group = 0, .prompt_tokens = 5, .length_hint = 1});
  for (std::uint64_t group = 1; group < 10; ++group)
    hand.send(GroupIssued{.group = group, .prompt_tokens = 5, .length_hint = 50});
  const auto order = started(hand.send(RankPulls{RankId{0}, 10, 1'000'000}));
  EXPECT_EQ(order[4], (SampleId{0, 0}));
}

TEST(RolloutDispatcher, PacksTheTailAndReleasesTheRank) {
  Hand hand({.group_size = 1, .new_tokens_max = 50, .repack_below = 2});
  hand.rank(0, 4, 500);
  hand.send(GroupIssued{.group = 0, .prompt_tokens = 5});
  hand.send(RankPulls{RankId{0}, 0, 0});
  hand.rank(1, 4, 500);
  auto effects = hand.send(GroupIssued{.group = 1, .prompt_tokens = 5});
  auto stops = Hand::only<StopAttempt>(effects);
  ASSERT_EQ(stops.size(), 1U) << "two samples on two ranks: one rank is enough";
  EXPECT_EQ(stops[0].cause, StopCause::kMove);
  const std::int32_t kept = 1 - stops[0].rank.value;
  hand.send(RankPulls{RankId{kept}, 3, 400});
  effects = hand.interrupt(stops[0].attempt, 3);
  EXPECT_THAT(Hand::only<RankReleased>(effects), ElementsAre(RankReleased{stops[0].rank}));
  const auto moved = Hand::only<StartSample>(effects);
  ASSERT_EQ(moved.size(), 1U);
  EXPECT_EQ(moved[0].rank.value, kept);
  EXPECT_EQ(moved[0].from_tokens, 3);
  EXPECT_EQ(hand.dispatcher().tokens().moved, 1);
  // New work calls the rank back.
  hand.send(RankPulls{stops[0].rank, 4, 500});
  EXPECT_EQ(started(hand.send(GroupIssued{.group = 2, .prompt_tokens = 5})).size(), 1U);
}

TEST(RolloutDispatcher, RefusesWhatIsBeyondItsBoundsAndNumbersUsedBefore) {
  Hand hand({.group_size = 1, .groups_max = 1, .ranks_max = 1});
  hand.send(GroupIssued{.group = 4, .prompt_tokens = 5});
  EXPECT_THAT(Hand::only<GroupRefused>(hand.send(GroupIssued{.group = 5, .prompt_tokens = 5}))[0]
                  .error.message,
              HasSubstr("1 of 1 groups are open"));
  hand.send(GroupCancelled{4, CancelReason::kAsked});
  EXPECT_EQ(Hand::only<GroupRefused>(hand.send(GroupIssued{.group = 4, .prompt_tokens = 5})).size(),
            1U);
  hand.rank(0);
  EXPECT_EQ(Hand::only<RankRefused>(hand.send(RankJoined{RankId{1}, 1, 1})).size(), 1U);
}

TEST(RolloutDispatcher, RefusesOptionsThatContradictEachOther) {
  const auto message = [](const DispatchOptions& options) {
    return RolloutDispatcher::create(options).error().message;
  };
  EXPECT_THAT(message({.group_size = 0}), HasSubstr("group_size is 0"));
  EXPECT_THAT(message({.tail_round_groups = 2}), HasSubstr("there are no rounds"));
  EXPECT_THAT(message({.rounds = true, .cut = CutAction::kDrop, .tail_round_groups = 2}),
              HasSubstr("groups that are cut are dropped"));
  EXPECT_THAT(message({.drop_zero_variance = true}), HasSubstr("groups of 1 sample"));
  EXPECT_THAT(message({.stop_within = Duration(0)}), HasSubstr("stop_within is 0"));
}

}  // namespace
}  // namespace troupe::actors

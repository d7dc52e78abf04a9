// Proves what an agent promises about one device: a turn is granted only when what its phase needs
// is in place, moves go one at a time to the owners of entries, a refusal brings the table of who
// holds what and lets the next go, and a dead rank leaves nothing behind. By examples, and by
// random histories after each step of which the invariants are looked at and at whose end every
// request has been answered once. Seeds are printed.

#include "runtime/cluster/lane_core.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace troupe::runtime {
namespace {

using testing::HasSubstr;

constexpr const char* kPolicy = "job/policy/0";
constexpr const char* kRollout = "job/rollout/0";

TimePoint at(int milliseconds) { return TimePoint{std::chrono::milliseconds(1000 + milliseconds)}; }

AskTurn ask(LaneRequestId request, std::uint64_t number, const std::string& rank,
            std::vector<std::string> resident = {}, Bytes scratch = {}) {
  Phase phase{.name = "phase", .resident = {}, .scratch = scratch};
  for (std::string& what : resident) phase.resident.push_back({rank, std::move(what)});
  const bool declared = !phase.resident.empty() || scratch.value > 0;
  return {.request = request, .number = number, .rank = rank, .phase = phase, .declared = declared};
}

MemoryEntry entry(const std::string& rank, const std::string& what, int mebibytes_of,
                  Eviction eviction, Residency residency) {
  return {.key = {rank, what},
          .bytes = mebibytes(mebibytes_of),
          .eviction = eviction,
          .residency = residency,
          .last_needed = 0};
}

template <class Effect>
std::vector<Effect> only(const std::vector<LaneEffect>& effects) {
  std::vector<Effect> found;
  for (const LaneEffect& effect : effects) {
    if (const auto* one = std::get_if<Effect>(&effect)) found.push_back(*one);
  }
  return found;
}

/// 100 MiB; the rollout rank keeps a cache of 60 that may be dropped, the policy weights of 30, and
/// a gradient buffer of 50 that is not there.
LaneCore two_roles() {
  LaneCore core("job/0", DeviceId{0}, mebibytes(100));
  EXPECT_TRUE(core.add(entry(kRollout, "cache", 60, Eviction::kDrop, Residency::kResident)));
  EXPECT_TRUE(core.add(entry(kPolicy, "weights", 30, Eviction::kNever, Residency::kResident)));
  EXPECT_TRUE(core.add(entry(kPolicy, "gradients", 50, Eviction::kDrop, Residency::kDropped)));
  return core;
}

TEST(LaneCore, GrantsATurnOnlyWhenItsMemoryIsInPlace) {
  LaneCore core = two_roles();
  auto effects = core.step(ask(1, 1, kPolicy, {"weights", "gradients"}), at(0));
  ASSERT_EQ(effects.size(), 1U);
  const auto drop = only<MoveWanted>(effects);
  ASSERT_EQ(drop.size(), 1U) << "one move at a time";
  EXPECT_EQ(drop[0].what, (MemoryMove{MoveKind::kDrop, {kRollout, "cache"}, mebibytes(60)}));

  effects = core.step(MoveEnded{drop[0].move, {}}, at(1));
  const auto load = only<MoveWanted>(effects);
  ASSERT_EQ(load.size(), 1U);
  EXPECT_EQ(load[0].what, (MemoryMove{MoveKind::kLoad, {kPolicy, "gradients"}, mebibytes(50)}));
  EXPECT_TRUE(only<TurnGranted>(effects).empty());

  effects = core.step(MoveEnded{load[0].move, {}}, at(2));
  ASSERT_EQ(only<TurnGranted>(effects).size(), 1U);
  EXPECT_EQ(core.memory().used(), mebibytes(80));
  ASSERT_TRUE(core.memory().phase());

  effects = core.step(EndTurn{1, kPolicy}, at(5));
  const auto over = only<TurnOver>(effects);
  ASSERT_EQ(over.size(), 1U);
  EXPECT_EQ(over[0].place.number, 1U);
  EXPECT_EQ(over[0].ended, at(5));
  EXPECT_FALSE(core.memory().phase());
}

TEST(LaneCore, RefusesAPhaseThatCannotFitWithTheTableAndLetsTheNextGo) {
  LaneCore core = two_roles();
  EXPECT_TRUE(only<TurnGranted>(core.step(ask(1, 2, kRollout), at(0))).empty());
  const auto effects = core.step(ask(2, 1, kPolicy, {"weights"}, mebibytes(90)), at(1));
  const auto refused = only<TurnRefused>(effects);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].request, 2U);
  EXPECT_EQ(refused[0].cause.code, ErrorCode::kResourceExhausted);
  const std::string text = refused[0].cause.to_string();
  EXPECT_THAT(text, HasSubstr("lane job/0"));
  EXPECT_THAT(text, HasSubstr("job/rollout/0/cache"));
  EXPECT_THAT(text, HasSubstr("60.0 MiB"));
  const auto granted = only<TurnGranted>(effects);
  ASSERT_EQ(granted.size(), 1U);
  EXPECT_EQ(granted[0].request, 1U);
}

TEST(LaneCore, AFailedMoveEndsThatTicketOnlyAndTheEntryStaysWhereItIs) {
  LaneCore core = two_roles();
  const auto drop = only<MoveWanted>(core.step(ask(1, 1, kPolicy, {"gradients"}), at(0)));
  ASSERT_EQ(drop.size(), 1U);
  (void)core.step(ask(2, 2, kRollout), at(0));
  const Error failure{
      .code = ErrorCode::kIo, .message = "host memory is full", .origin = {}, .causes = {}};
  const auto effects = core.step(MoveEnded{drop[0].move, failure}, at(1));
  const auto refused = only<TurnRefused>(effects);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].cause.root_cause().message, "host memory is full");
  EXPECT_THAT(refused[0].cause.message, HasSubstr("cannot drop job/rollout/0/cache (60.0 MiB)"));
  EXPECT_EQ(only<TurnGranted>(effects).size(), 1U) << "the rollout's turn";
  EXPECT_EQ(core.memory().find({kRollout, "cache"})->residency, Residency::kResident);
}

TEST(LaneCore, TheDeathOfAMovesOwnerFreesWhatItHeldAndTheTurnComes) {
  LaneCore core = two_roles();
  const auto drop = only<MoveWanted>(core.step(ask(1, 1, kPolicy, {"gradients"}), at(0)));
  ASSERT_EQ(drop.size(), 1U);
  const Error death{
      .code = ErrorCode::kRankDead, .message = "signal 9", .origin = {}, .causes = {}};
  auto effects = core.step(RankGone{kRollout, death}, at(1));
  const auto load = only<MoveWanted>(effects);
  ASSERT_EQ(load.size(), 1U) << "straight to the load";
  EXPECT_EQ(load[0].what.kind, MoveKind::kLoad);
  EXPECT_EQ(core.memory().find({kRollout, "cache"}), nullptr);
  EXPECT_TRUE(core.step(MoveEnded{drop[0].move, death}, at(2)).empty()) << "an answer too late";
  effects = core.step(MoveEnded{load[0].move, {}}, at(3));
  EXPECT_EQ(only<TurnGranted>(effects).size(), 1U);
}

TEST(LaneCore, TheDeathOfTheHolderHandsTheTurnOn) {
  LaneCore core = two_roles();
  ASSERT_EQ(only<TurnGranted>(core.step(ask(1, 1, kPolicy, {"weights"}), at(0))).size(), 1U);
  (void)core.step(ask(2, 3, kRollout, {"cache"}), at(0));
  (void)core.step(ask(3, 2, kPolicy), at(0));
  const Error death{
      .code = ErrorCode::kRankDead, .message = "signal 9", .origin = {}, .causes = {}};
  const auto effects = core.step(RankGone{kPolicy, death}, at(1));
  EXPECT_EQ(only<TurnOver>(effects).size(), 1U);
  ASSERT_EQ(only<TurnRefused>(effects).size(), 1U);
  EXPECT_EQ(only<TurnRefused>(effects)[0].request, 3U);
  ASSERT_EQ(only<TurnGranted>(effects).size(), 1U);
  EXPECT_EQ(only<TurnGranted>(effects)[0].request, 2U);
  EXPECT_EQ(core.memory().entries().size(), 1U);
}

TEST(LaneCore, SkippingLeavesTheHolderAloneAndFreesTheRest) {
  LaneCore core("job/0", DeviceId{0}, mebibytes(1));
  ASSERT_EQ(only<TurnGranted>(core.step(ask(1, 1, kPolicy), at(0))).size(), 1U);
  (void)core.step(ask(2, 2, kRollout), at(0));
  const auto effects = core.step(SkipTickets{{1, 2, 3}}, at(1));
  ASSERT_EQ(only<TurnRefused>(effects).size(), 1U);
  EXPECT_EQ(only<TurnRefused>(effects)[0].cause.code, ErrorCode::kCancelled);
  EXPECT_EQ(core.lane().holder()->number, 1U) << "its method still runs";
  (void)core.step(ask(4, 4, kRollout), at(2));
  EXPECT_EQ(only<TurnGranted>(core.step(EndTurn{1, kPolicy}, at(3))).size(), 1U);
}

TEST(LaneCore, ARankCannotEndTheTicketOfAnother) {
  LaneCore core("job/0", DeviceId{0}, mebibytes(1));
  (void)core.step(ask(1, 1, kPolicy), at(0));
  EXPECT_TRUE(core.step(EndTurn{1, kRollout}, at(1)).empty());
  EXPECT_TRUE(core.step(EndTurn{2, kRollout}, at(1)).empty());
  EXPECT_EQ(core.lane().next(), 1U);
}

TEST(LaneCore, AnOverdueWaitSaysWhoHoldsTheLaneAndSinceWhen) {
  LaneCore core("job/0", DeviceId{0}, mebibytes(1));
  (void)core.step(ask(1, 1, kPolicy), at(0));
  (void)core.step(ask(2, 2, kRollout), at(0));
  auto refused = only<TurnRefused>(core.step(AskExpired{2}, at(2500)));
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].cause.code, ErrorCode::kDeadline);
  EXPECT_THAT(refused[0].cause.message,
              HasSubstr("job/policy/0 holds it for phase with ticket 1 for 2.500 s"));

  (void)core.step(EndTurn{1, kPolicy}, at(3000));
  (void)core.step(ask(3, 4, kRollout), at(3000));
  refused = only<TurnRefused>(core.step(AskExpired{3}, at(4000)));
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_THAT(refused[0].cause.message,
              HasSubstr("the line is at ticket 3, which nobody has shown for 1.000 s"));
}

/// A random history: tickets are given as a controller does, waits arrive out of order, moves end
/// late or fail, ranks die.
class History {
 public:
  explicit History(std::uint64_t seed) : rng_(seed) {}

  void run() {
    for (const std::string& rank : ranks_) {
      for (const char* what : {"a", "b"}) add_entry(rank, what);
    }
    for (int step = 0; step < 200 && !testing::Test::HasFatalFailure(); ++step) one_event();
    drain();
    ASSERT_EQ(core_.open_requests(), 0U);
    ASSERT_EQ(answered_.size(), asked_.size());
  }

 private:
  void add_entry(const std::string& rank, const std::string& what) {
    const auto eviction = static_cast<Eviction>(rng_.below(3));
    const auto residency =
        eviction == Eviction::kNever ? Residency::kResident : Residency::kDropped;
    (void)core_.add(entry(rank, what, static_cast<int>(rng_.below(30)), eviction, residency));
  }

  void one_event() {
    ++clock_;
    switch (rng_.below(8)) {
      case 0:
      case 1:
        pending_.push_back(++given_);
        break;
      case 2:
      case 3:
        if (!pending_.empty()) show(take(pending_));
        break;
      case 4:
        if (holder_) end_turn();
        break;
      case 5:
        if (move_) end_move();
        break;
      case 6:
        if (rng_.below(3) == 0 && given_ > 0) perform(SkipTickets{{1 + rng_.below(given_)}});
        break;
      default:
        if (rng_.below(6) == 0) die(ranks_[rng_.below(ranks_.size())]);
        if (rng_.below(6) == 0 && last_request_ > 0)
          perform(AskExpired{1 + rng_.below(last_request_)});
    }
  }

  void show(std::uint64_t number) {
    const std::string rank = ranks_[rng_.below(ranks_.size())];
    std::vector<std::string> resident;
    if (rng_.below(2) == 0) resident.push_back("a");
    if (rng_.below(2) == 0) resident.push_back("b");
    const LaneRequestId request = ++last_request_;
    asked_[request] = {number, rank};
    perform(
        ask(request, number, rank, resident, mebibytes(static_cast<std::int64_t>(rng_.below(40)))));
  }
  void end_turn() {
    const auto [number, rank] = *holder_;
    holder_.reset();
    perform(EndTurn{number, rank});
  }
  void end_move() {
    const std::uint64_t move = *std::exchange(move_, std::nullopt);
    std::optional<Error> failure;
    if (rng_.below(5) == 0)
      failure = Error{.code = ErrorCode::kIo, .message = "no", .origin = {}, .causes = {}};
    perform(MoveEnded{move, failure});
  }
  void die(const std::string& rank) {
    if (holder_ && holder_->second == rank) holder_.reset();
    perform(RankGone{
        rank, Error{.code = ErrorCode::kRankDead, .message = "dead", .origin = {}, .causes = {}}});
    for (const MemoryEntry& left : core_.memory().entries()) ASSERT_NE(left.key.owner, rank);
    if (rng_.below(2) == 0) add_entry(rank, "a");
  }

  void perform(const LaneEvent& event) {
    for (const LaneEffect& effect : core_.step(event, at(clock_))) {
      if (const auto* granted = std::get_if<TurnGranted>(&effect)) {
        answer(granted->request);
        ASSERT_FALSE(holder_) << "two turns at a time";
        holder_ = asked_.at(granted->request);
        ASSERT_GT(holder_->first, last_turn_) << "turns go up";
        last_turn_ = holder_->first;
      } else if (const auto* refused = std::get_if<TurnRefused>(&effect)) {
        answer(refused->request);
      } else if (const auto* move = std::get_if<MoveWanted>(&effect)) {
        ASSERT_FALSE(holder_) << "memory moves during a turn";
        move_ = move->move;
        ASSERT_NE(core_.memory().find(move->what.key), nullptr);
      }
    }
    ASSERT_LE(core_.memory().used(), core_.memory().capacity());
    ASSERT_TRUE(holder_ || !core_.memory().phase()) << "a phase without a turn";
  }
  void answer(LaneRequestId request) {
    ASSERT_TRUE(answered_.insert(request).second) << "answered twice";
  }
  std::uint64_t take(std::vector<std::uint64_t>& from) {
    const auto place = from.begin() + static_cast<std::ptrdiff_t>(rng_.below(from.size()));
    const std::uint64_t value = *place;
    from.erase(place);
    return value;
  }

  /// The controller goes: every ticket is skipped, moves and turns end.
  void drain() {
    for (int round = 0; round < 100; ++round) {
      ++clock_;
      if (move_) end_move();
      if (holder_) end_turn();
      std::vector<std::uint64_t> all;
      for (std::uint64_t number = 1; number <= given_; ++number) all.push_back(number);
      perform(SkipTickets{all});
    }
  }

  Rng rng_;
  const std::vector<std::string> ranks_{"job/a/0", "job/b/0", "job/c/0"};
  LaneCore core_{"job/0", DeviceId{0}, mebibytes(100)};
  int clock_ = 0;
  std::uint64_t given_ = 0;
  std::uint64_t last_turn_ = 0;
  std::vector<std::uint64_t> pending_;
  LaneRequestId last_request_ = 0;
  std::map<LaneRequestId, std::pair<std::uint64_t, std::string>> asked_;
  std::set<LaneRequestId> answered_;
  std::optional<std::pair<std::uint64_t, std::string>> holder_;
  std::optional<std::uint64_t> move_;
};

TEST(LaneCore, KeepsItsInvariantsOnRandomHistoriesAndAnswersEachRequestOnce) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History(seed).run();
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace troupe::runtime

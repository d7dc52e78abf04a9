// Proves the decisions of a node agent on a clock of the test's: who may start what, what a lost
// controller, a silent rank, a stuck rank, a revoked reservation and a drain lead to, and, under
// random events (seeds are printed), that every start is answered once and every rank that ran has
// one exit, within the bounds.

#include "runtime/cluster/agent_core.hpp"

#include "runtime/base/rng.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace troupe::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using namespace std::chrono_literals;
using Effects = AgentCore::Effects;
using Serial = AgentCore::Serial;

constexpr TimePoint kStart{std::chrono::hours(1)};

template <class Kind>
std::vector<Kind> only(const Effects& effects) {
  std::vector<Kind> found;
  for (const auto& effect : effects) {
    if (const auto* one = std::get_if<Kind>(&effect)) found.push_back(*one);
  }
  return found;
}

RankStart start_of(int rank, const std::string& job = "job",
                   const std::string& reservation = "pool") {
  RankStart start;
  start.job = job;
  start.group = "policy";
  start.rank = RankId{rank};
  start.reservation = reservation;
  start.command = {"rank"};
  return start;
}

DeathReport death(int rank, int signal = 9) {
  DeathReport report;
  report.job = "job";
  report.group = "policy";
  report.rank = RankId{rank};
  report.node = "gpu-1";
  report.exit.kind = ProcessExit::Kind::kSignalled;
  report.exit.signal = signal;
  return report;
}

Error lost() {
  return Error{.code = ErrorCode::kIo, .message = "closed", .origin = {}, .causes = {}};
}

class AgentCoreTest : public ::testing::Test {
 protected:
  void SetUp() override { reset({}); }
  void reset(AgentPolicy policy) {
    policy.rank_connects_within = connects_within_;
    core_ = std::make_unique<AgentCore>("gpu-1", 77, policy);
    now_ = kStart;
    ASSERT_TRUE(core_->hello({.job = "job", .instance = 1}, 10, now_, effects_));
  }
  Serial run(int rank) {
    const auto serial = core_->start(start_of(rank), {}, 10, now_, effects_);
    EXPECT_TRUE(serial) << serial.error().to_string();
    core_->started(serial.value_or(0), 1000 + rank, now_, effects_);
    return serial.value_or(0);
  }
  Effects tick(Duration later) {
    now_ += later;
    Effects effects;
    core_->tick(now_, effects);
    return effects;
  }
  Duration connects_within_ = 0s;
  std::unique_ptr<AgentCore> core_;
  TimePoint now_;
  Effects effects_;
};

TEST_F(AgentCoreTest, AStartIsForItsOwnControllerAndOnlyOnce) {
  EXPECT_EQ(core_->start(start_of(0), {}, 11, now_, effects_).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(core_->start(start_of(0, "other"), {}, 10, now_, effects_).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(core_->start(start_of(-1), {}, 10, now_, effects_).error().code,
            ErrorCode::kInvalidArgument);
  run(0);
  EXPECT_EQ(core_->start(start_of(0), {}, 10, now_, effects_).error().code,
            ErrorCode::kAlreadyExists);
  ASSERT_THAT(only<AgentCore::AnswerStart>(effects_), SizeIs(1));
  EXPECT_EQ(only<AgentCore::AnswerStart>(effects_)[0].outcome->pid, 1000);
}

TEST_F(AgentCoreTest, NumbersAreBounded) {
  reset({.jobs_max = 1, .ranks_max = 2});
  EXPECT_EQ(core_->hello({.job = "more", .instance = 1}, 12, now_, effects_).error().code,
            ErrorCode::kResourceExhausted);
  run(0);
  run(1);
  EXPECT_EQ(core_->start(start_of(2), {}, 10, now_, effects_).error().code,
            ErrorCode::kResourceExhausted);
}

TEST_F(AgentCoreTest, AnExitIsToldToTheController) {
  const Serial serial = run(3);
  effects_.clear();
  core_->exited(serial, death(3), now_, effects_);
  const auto told = only<AgentCore::TellExit>(effects_);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].controller, 10U);
  EXPECT_THAT(told[0].exit.cause.message,
              HasSubstr("policy rank 3 on gpu-1 was killed by signal 9"));
  EXPECT_EQ(core_->state(now_).ranks.at(0).phase, RankPhase::kEnded);
  EXPECT_THAT(core_->state(now_).ranks.at(0).ending, HasSubstr("signal 9"));
}

TEST_F(AgentCoreTest, AnExitThatWasToldOverABrokenChannelIsSaidAgain) {
  const Serial serial = run(3);
  core_->exited(serial, death(3), now_, effects_);
  core_->down(10, lost(), false, now_, effects_);
  effects_.clear();
  const auto welcome = core_->hello({.job = "job", .instance = 1}, 20, now_ + 2s, effects_);
  ASSERT_TRUE(welcome) << welcome.error().to_string();
  EXPECT_TRUE(effects_.empty());
  ASSERT_THAT(welcome->told, SizeIs(1));
  EXPECT_THAT(welcome->told[0].cause.message, HasSubstr("policy rank 3 on gpu-1 was killed"));
  core_->down(20, lost(), false, now_ + 2s, effects_);
  const auto late = core_->hello({.job = "job", .instance = 1}, 30, now_ + 11s, effects_);
  ASSERT_TRUE(late) << late.error().to_string();
  EXPECT_THAT(late->told, SizeIs(0)) << "who comes so late has heard of it or given up";
}

TEST_F(AgentCoreTest, AFailedStartIsAnsweredAndHasNoExit) {
  const auto serial = core_->start(start_of(0), {}, 10, now_, effects_);
  effects_.clear();
  core_->exited(*serial, death(0), now_, effects_);
  ASSERT_THAT(effects_, SizeIs(1));
  EXPECT_FALSE(only<AgentCore::AnswerStart>(effects_).at(0).outcome);
}

TEST_F(AgentCoreTest, ALostControllerHasAGraceToComeBack) {
  const Serial serial = run(0);
  effects_.clear();
  core_->down(10, lost(), false, now_, effects_);
  EXPECT_TRUE(effects_.empty());
  EXPECT_EQ(core_->next_tick(), now_ + 3s);
  EXPECT_TRUE(tick(2900ms).empty());
  core_->exited(serial, death(0), now_, effects_);  // meanwhile a rank ends
  const auto welcome = core_->hello({.job = "job", .instance = 1}, 20, now_, effects_);
  ASSERT_TRUE(welcome) << welcome.error().to_string();
  EXPECT_EQ(welcome->instance, 77U);
  ASSERT_THAT(only<AgentCore::TellExit>(effects_), SizeIs(1));
  EXPECT_EQ(only<AgentCore::TellExit>(effects_)[0].controller, 20U);
  EXPECT_TRUE(tick(1h).empty());
}

TEST_F(AgentCoreTest, ALostControllersRanksAreKilledAfterTheGrace) {
  const Serial serial = run(0);
  core_->down(10, lost(), false, now_, effects_);
  const auto stops = only<AgentCore::StopProcess>(tick(3s));
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].serial, serial);
  EXPECT_EQ(stops[0].grace, 0s);
  EXPECT_FALSE(stops[0].asked);
  EXPECT_EQ(stops[0].reason, "its controller is gone for 3.0 s: closed");
  EXPECT_EQ(core_->hello({.job = "job", .instance = 1}, 20, now_, effects_).error().code,
            ErrorCode::kAborted);
  EXPECT_EQ(core_->hello({.job = "job", .instance = 2}, 20, now_, effects_).error().code,
            ErrorCode::kConflict);
  effects_.clear();
  core_->exited(serial, death(0), now_, effects_);
  ASSERT_THAT(only<AgentCore::JobOver>(effects_), SizeIs(1));
  EXPECT_TRUE(core_->hello({.job = "job", .instance = 2}, 20, now_, effects_))
      << "the name is free";
}

TEST_F(AgentCoreTest, ASilentControllerHasBeenGoneLongEnough) {
  run(0);
  effects_.clear();
  core_->down(10, lost(), true, now_, effects_);
  EXPECT_THAT(only<AgentCore::StopProcess>(effects_), SizeIs(1));
}

TEST_F(AgentCoreTest, ASecondControllerOfAConnectedJobIsRefused) {
  EXPECT_EQ(core_->hello({.job = "job", .instance = 2}, 30, now_, effects_).error().code,
            ErrorCode::kAlreadyExists);
}

TEST_F(AgentCoreTest, EndingAJobStopsItsRanksOnly) {
  ASSERT_TRUE(core_->hello({.job = "other", .instance = 1}, 12, now_, effects_));
  const Serial mine = run(0);
  ASSERT_TRUE(core_->start(start_of(0, "other"), {}, 12, now_, effects_));
  effects_.clear();
  EXPECT_EQ(core_->end_job("job", 12, 1s, "over", effects_).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(core_->end_job("none", std::nullopt, 1s, "over", effects_).error().code,
            ErrorCode::kNotFound);
  ASSERT_TRUE(core_->end_job("job", 10, 1s, "over", effects_));
  const auto stops = only<AgentCore::StopProcess>(effects_);
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].serial, mine);
  EXPECT_TRUE(stops[0].asked);
  EXPECT_EQ(core_->start(start_of(5), {}, 10, now_, effects_).error().code, ErrorCode::kAborted);
  core_->exited(mine, death(0), now_, effects_);
  EXPECT_THAT(only<AgentCore::JobOver>(effects_), SizeIs(1));
}

TEST_F(AgentCoreTest, ARankWhoseChannelClosesMayStillSayWhy) {
  const Serial serial = run(0);
  ASSERT_TRUE(core_->rank_up("job/policy/0", 40, now_));
  effects_.clear();
  core_->down(40, lost(), false, now_, effects_);
  EXPECT_TRUE(effects_.empty()) << "it is probably ending";
  const auto stops = only<AgentCore::StopProcess>(tick(500ms));
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].serial, serial);
}

TEST_F(AgentCoreTest, ASilentRankIsKilledAtOnce) {
  run(0);
  EXPECT_EQ(core_->rank_up("job/policy/9", 41, now_).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(core_->rank_up("job/policy/0", 40, now_));
  EXPECT_EQ(core_->rank_up("job/policy/0", 42, now_).error().code, ErrorCode::kAlreadyExists);
  effects_.clear();
  core_->down(40, lost(), true, now_, effects_);
  ASSERT_THAT(only<AgentCore::StopProcess>(effects_), SizeIs(1));
  EXPECT_EQ(only<AgentCore::StopProcess>(effects_)[0].grace, 0s);
}

TEST_F(AgentCoreTest, ARankThatStaysStoppedBeforeItDialsIsKilled) {
  connects_within_ = 60s;
  reset({.look_every = 500ms, .stopped_start_after = 2s});
  const Serial serial = run(0);
  const auto look = [&](bool stopped) {
    EXPECT_THAT(only<AgentCore::LookAtStart>(tick(500ms)), SizeIs(1)) << "looks twice a second";
    Effects effects;
    core_->seen(serial, stopped, now_, effects);
    return only<AgentCore::StopProcess>(effects);
  };
  EXPECT_THAT(look(true), SizeIs(0));
  EXPECT_THAT(look(true), SizeIs(0));
  EXPECT_THAT(look(false), SizeIs(0)) << "it goes on";
  for (int i = 0; i < 4; ++i) EXPECT_THAT(look(true), SizeIs(0));
  const auto stops = look(true);
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].grace, 0s);
  EXPECT_THAT(stops[0].reason, HasSubstr("for 2.0 s and has not dialled"));
}

TEST_F(AgentCoreTest, ARankThatHasDialledIsNoLongerLookedAt) {
  connects_within_ = 60s;
  reset({});
  const Serial serial = run(0);
  ASSERT_TRUE(core_->rank_up("job/policy/0", 20, now_));
  EXPECT_THAT(only<AgentCore::LookAtStart>(tick(1s)), SizeIs(0));
  Effects effects;
  core_->seen(serial, true, now_, effects);
  core_->seen(serial, true, now_ + 10s, effects);
  EXPECT_THAT(effects, SizeIs(0));
}

TEST_F(AgentCoreTest, ARankThatNeverDialsItsAgentIsKilled) {
  connects_within_ = 10s;
  reset({});
  run(0);
  run(1);
  ASSERT_TRUE(core_->rank_up("job/policy/1", 40, now_));
  EXPECT_TRUE(only<AgentCore::StopProcess>(tick(9900ms)).empty());
  const auto stops = only<AgentCore::StopProcess>(tick(100ms));
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_THAT(stops[0].reason, HasSubstr("not dialled its agent within 10.0 s"));
}

TEST_F(AgentCoreTest, AStuckRankIsLookedAtOnceAndKilledIfSoWished) {
  for (const bool kill : {false, true}) {
    reset({.stuck_after = 60s, .kill_stuck = kill});
    run(0);
    ASSERT_TRUE(core_->rank_up("job/policy/0", 40, now_));
    core_->progress(40, {.steps = 1, .doing = "update"}, now_);
    EXPECT_TRUE(tick(59s).empty());
    core_->progress(40, {.steps = 1, .doing = "update"}, now_);  // alive, no progress
    const Effects late = tick(1s);
    ASSERT_THAT(only<AgentCore::LookAtStuck>(late), SizeIs(1));
    EXPECT_EQ(only<AgentCore::LookAtStuck>(late)[0].what,
              "policy rank 0 has been in update for 60 s without progress");
    EXPECT_THAT(only<AgentCore::StopProcess>(late), SizeIs(kill ? 1 : 0));
    EXPECT_TRUE(core_->state(now_).ranks.at(0).stuck);
    EXPECT_TRUE(only<AgentCore::LookAtStuck>(tick(1h)).empty()) << "once";
    if (kill) continue;
    core_->progress(40, {.steps = 2, .doing = "update"}, now_);
    EXPECT_FALSE(core_->state(now_).ranks.at(0).stuck);
    EXPECT_THAT(only<AgentCore::LookAtStuck>(tick(60s)), SizeIs(1)) << "stuck again";
    core_->progress(40, {.steps = 3, .doing = ""}, now_);
    EXPECT_TRUE(tick(1h).empty()) << "idle is never stuck";
  }
}

TEST_F(AgentCoreTest, ARevokedReservationKillsItsRanks) {
  run(0);
  ASSERT_TRUE(core_->start(start_of(1, "job", "second"), {}, 10, now_, effects_));
  effects_.clear();
  core_->revoke("pool", 7, "another bundle", effects_);
  EXPECT_TRUE(effects_.empty());
  core_->revoke("pool", std::nullopt, "it expired", effects_);
  const auto stops = only<AgentCore::StopProcess>(effects_);
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].grace, 0s);
  EXPECT_FALSE(stops[0].asked);
}

TEST_F(AgentCoreTest, DrainingRefusesAndStops) {
  run(0);
  effects_.clear();
  core_->drain(2s, "maintenance", effects_);
  ASSERT_THAT(only<AgentCore::StopProcess>(effects_), SizeIs(1));
  EXPECT_EQ(only<AgentCore::StopProcess>(effects_)[0].grace, 2s);
  EXPECT_EQ(core_->start(start_of(1), {}, 10, now_, effects_).error().code, ErrorCode::kAborted);
  EXPECT_EQ(core_->hello({.job = "new", .instance = 1}, 12, now_, effects_).error().code,
            ErrorCode::kAborted);
  EXPECT_TRUE(core_->state(now_).draining);
}

/// Whatever happens in whatever order, the books balance.
TEST(AgentCoreProperty, EveryStartIsAnsweredAndEveryLifeEndsOnce) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    AgentPolicy policy;
    policy.ranks_max = 6;
    policy.jobs_max = 2;
    policy.stuck_after = 20s;
    policy.kill_stuck = rng.below(2) == 0;
    policy.rank_connects_within = 5s;
    AgentCore core("n", 1, policy);
    TimePoint now = kStart;
    std::set<Serial> starting;
    std::set<Serial> running;
    std::set<Serial> answered;
    std::size_t told = 0;
    std::size_t lived = 0;
    std::size_t untold = 0;
    AgentCore::Connection connections = 100;
    std::map<std::string, AgentCore::Connection> controllers;
    const auto take = [&](const Effects& effects) {
      for (const auto& effect : effects) {
        if (const auto* answer = std::get_if<AgentCore::AnswerStart>(&effect)) {
          EXPECT_TRUE(answered.insert(answer->serial).second) << "answered twice";
        }
        if (std::holds_alternative<AgentCore::TellExit>(effect)) ++told;
        if (const auto* stop = std::get_if<AgentCore::StopProcess>(&effect)) {
          EXPECT_TRUE(starting.contains(stop->serial) || running.contains(stop->serial))
              << "stops what is over";
        }
      }
    };
    for (int step = 0; step < 400; ++step) {
      Effects effects;
      const std::string job = rng.below(2) == 0 ? "a" : "b";
      const auto pick = [&](std::set<Serial>& from) {
        return *std::next(from.begin(), static_cast<long>(rng.below(from.size())));
      };
      switch (rng.below(9)) {
        case 0: {
          const auto connection = ++connections;
          if (core.hello({.job = job, .instance = 1 + rng.below(2)}, connection, now, effects))
            controllers[job] = connection;
          break;
        }
        case 1:
        case 2:
          if (const auto serial = core.start(start_of(static_cast<int>(rng.below(5)), job), {},
                                             controllers[job], now, effects))
            starting.insert(*serial);
          break;
        case 3:
          if (!starting.empty()) {
            const Serial serial = pick(starting);
            starting.erase(serial);
            running.insert(serial);
            core.started(serial, 1, now, effects);
            ++lived;
          }
          break;
        case 4:
        case 5: {
          auto& from = rng.below(4) == 0 ? starting : running;
          if (from.empty()) break;
          const Serial serial = pick(from);
          from.erase(serial);
          core.exited(serial, death(0), now, effects);
          if (&from == &running && only<AgentCore::TellExit>(effects).empty()) ++untold;
          break;
        }
        case 6:
          core.down(controllers[job], lost(), rng.below(2) == 0, now, effects);
          break;
        case 7:
          if (rng.below(4) == 0) core.revoke("pool", std::nullopt, "r", effects);
          break;
        default:
          now += std::chrono::milliseconds(rng.below(3000));
          core.tick(now, effects);
          EXPECT_GT(core.next_tick(), now) << "a tick that is due again at once";
          for (const auto& look : only<AgentCore::LookAtStart>(effects))
            core.seen(look.serial, rng.below(4) != 0, now, effects);
      }
      take(effects);
      EXPECT_EQ(core.ranks_alive(), starting.size() + running.size());
      EXPECT_LE(core.ranks_alive(), 6U);
      EXPECT_LE(core.state(now).jobs.size(), 2U);
    }
    Effects effects;
    core.drain(0s, "end", effects);
    take(effects);
    for (const Serial serial : starting) {
      Effects more;
      core.exited(serial, death(0), now, more);
      take(more);
    }
    for (const Serial serial : running) {
      Effects more;
      core.exited(serial, death(0), now, more);
      if (only<AgentCore::TellExit>(more).empty()) ++untold;
      take(more);
    }
    EXPECT_EQ(core.ranks_alive(), 0U);
    // An exit that nobody was there to hear is kept, and told at the next hello or dropped with the
    // job.
    EXPECT_LE(told, lived);
    EXPECT_GE(told + untold, lived);
  }
}

}  // namespace
}  // namespace troupe::runtime
